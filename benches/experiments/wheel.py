# SPDX-License-Identifier: Apache-2.0
"""The wheel of ``make wheel``: its size, and the way from ``pip install`` to a first table.

    python -m benches.experiments.wheel --store benches/results/wheel.json

Installs the newest wheel of ``dist/`` from its file into a fresh environment, which borrows the
packages of this one (torch's download is left out), hides every compiler, linker and header, and
runs a small suite under corem and a profile with an empty cache. The steps are timed, three times.

With ``--demo BEFORE`` it also times ``make demo`` in fresh clones, of this commit and of BEFORE,
from the command to the table, with an empty cache. The packages are downloaded before (7 GB).

With ``--torch 2.11.0`` (again for each) it also runs the wheel beside another torch, whose CUDA
libraries are those of this environment's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches import stored

ROOT = Path(__file__).parents[2]

_SHIPPED = re.compile(
    r"/_prebuilt/(observer|gate|switchboard|contract_kernels|pack)-\w+/build\.json$"
)

#: How often everything is installed and run.
ROUNDS = 3
STEPS = {
    "suite_under_corem": ("pytest", "--udf-lib=corem"),
    "suite_under_corem_again": ("pytest", "--udf-lib=corem"),
    "profile_of_std": ("pytest", "--udf-lib=std", "--udf-profile=counters"),
}


def contents(wheel: Path) -> dict[str, Any]:
    """Return the sizes of a wheel in bytes: the file, and what it unpacks to, by folder."""
    unpacked: dict[str, int] = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            folder = "/".join(info.filename.split("/")[:2]) if "/" in info.filename else ""
            kind = folder if folder.startswith("pytest_udftorch/_") else info.filename.split("/")[0]
            if "/udfs/" in info.filename:
                kind = "pytest_udftorch/udfs"
            unpacked[kind] = unpacked.get(kind, 0) + info.file_size
    return {"file": wheel.name, "bytes": wheel.stat().st_size, "unpacked_bytes": unpacked}


def shipped(wheel: Path) -> dict[str, list[str]]:
    """Return which torches the observers, gates and switchboards of a wheel are for."""
    found: dict[str, set[str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if kind := _SHIPPED.search(name):
                facts = json.loads(archive.read(name))
                found.setdefault(kind[1], set()).add(facts.get("torch", name.split("/")[-2]))
    return {kind: sorted(torches) for kind, torches in sorted(found.items())}


CHECKS = {
    "corem": (("pytest", "--udf-lib=corem", "test_suite.py"), "1 passed"),
    "std, the control": (("pytest", "--udf-lib=std", "test_suite.py"), "1 failed"),
    "profile": (
        ("pytest", "--udf-lib=std", "--udf-profile", "test_suite.py"), "exp.*100,000",
    ),
    "strict": (
        ("pytest", "--udf-lib=corem", "--udf-strict", "test_double.py"),
        "float64 exp in aten::exp of Softmax|float64 exp in aten::_softmax of Softmax",
    ),
    "exclusive": (("pytest", "--udf-lib=corem", "--udf-exclusive", "test_suite.py"), "1 passed"),
    "composites": (("pytest", "--udf-lib=corem", "--udf-composites", "test_suite.py"), "1 passed"),
    "a profiled UDF in Python": (("python", "script.py"), "^301 -2.0 4.0$"),
}  # fmt: skip
DOUBLE = "import torch\ndef test(): torch.nn.Softmax(0)(torch.ones(8, dtype=torch.float64))\n"
SCRIPT = """
import torch
from pytest_udftorch import patched, udf
@udf("exp")
def one_more(x): return x + 1.0
with patched(one_more, profile=True) as session:
    torch.exp(torch.linspace(-3, 3, 301))
(row,) = session.profile.rows("function")
print(*(row.cell[n] for n in ("elements", "out_min", "out_max")))
"""


def beside(wheel: Path, version: str) -> dict[str, Any]:
    """Return which checks the wheel passes beside a version of torch, with no compiler there."""
    sys.path.insert(0, str(ROOT / "tests"))
    import hidden

    with tempfile.TemporaryDirectory() as folder:
        machine = hidden.Machine(Path(folder), wheel)
        site = machine.package.parent
        for name in ("torch", "torchgen", "functorch", "torchvision", "triton"):
            for path in (site / name, *site.glob(f"{name}-*.dist-info")):
                path.unlink(missing_ok=True)  # links into this environment
        pip = [machine.bin / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-compile", f"torch=={version}"], check=True)
        # Older torches load a library that the one of this environment does without. It must not
        # go into the folder nvidia, which is a link into this environment.
        more = Path(folder, "more")
        subprocess.run([*pip, "--target", more, "nvidia-curand"], check=True)
        libraries = ":".join(str(p) for p in more.glob("nvidia/*/lib"))
        for name, text in {
            "test_suite.py": hidden.SUITE, "test_double.py": DOUBLE, "script.py": SCRIPT,
        }.items():  # fmt: skip
            (machine.home / name).write_text(text, encoding="utf-8")
        passed = {}
        for name, (command, wanted) in CHECKS.items():
            done = machine.run(*command, LD_LIBRARY_PATH=libraries)
            passed[name] = bool(re.search(wanted, done.stdout, re.MULTILINE))
            if not passed[name]:
                print(f"torch {version}, {name}:\n{done.stdout}\n{done.stderr}", file=sys.stderr)
        shipped = {p.read_bytes() for p in machine.package.rglob("*.so")}
        compiled = [p.name for p in machine.cache.rglob("*.so") if p.read_bytes() not in shipped]
    return {"passed": passed, "compiled": compiled}


#: What both commits need from a registry, and what ``.ci/setup`` says it installs at either.
BUILD = ("scikit-build-core>=1", "cmake>=3.22", "ninja", "pathspec", "setuptools", "uv", "wheel")
EXTRAS = ("torch", "verify", "profile", "bench", "test")


def download(commits: Sequence[Path], folder: Path) -> None:
    """Download what clones of some commits install, so that no time depends on the network."""
    wanted = set(BUILD)
    for clone in commits:
        project = tomllib.loads((clone / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted.update(project["dependencies"])
        for extra in EXTRAS:
            wanted.update(project["optional-dependencies"][extra])
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder]
    subprocess.run([*pip, *sorted(wanted)], check=True)


def demo(clone: Path, packages: Path) -> dict[str, float]:
    """Return what ``make demo`` takes in a clone, its packages being downloaded.

    The processor's seconds say more than those of the clock where other programs run beside it.
    """
    environment = {
        **os.environ,
        "UDFTORCH_CACHE_DIR": str(clone / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(packages),
        "PIP_NO_CACHE_DIR": "1",
    }
    start, used = time.perf_counter(), _used()
    subprocess.run(
        ["make", "demo"], cwd=clone, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(_used() - used, 1),
    }


def _used() -> float:
    """Return the processor's seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def demos(before: str) -> dict[str, Any]:
    """Return the seconds of ``make demo``, after the download, at this commit and at another."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder, "packages")
        for name, commit in (("now", "HEAD"), ("before", before)):
            said = ["git", "-C", str(ROOT), "rev-parse", "--short", commit]
            short = subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()
            found[name] = {"commit": short}
            clone = Path(folder, name)
            subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
            subprocess.run(["git", "-C", clone, "checkout", "--quiet", short], check=True)
        download([Path(folder, name) for name in found], packages)
        for name, row in found.items():
            row |= demo(Path(folder, name), packages)
            row["load_average"] = round(os.getloadavg()[1], 1)
            shutil.rmtree(Path(folder, name))
    return found


def measure(wheel: Path) -> dict[str, Any]:
    """Return the wheel's sizes, what was hidden, and the seconds of each step."""
    sys.path.insert(0, str(ROOT / "tests"))
    import hidden

    rounds, compiled = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            seconds: dict[str, float] = {}
            start = time.perf_counter()
            machine = hidden.Machine(Path(folder), wheel)
            seconds["install"] = time.perf_counter() - start
            (machine.home / "test_suite.py").write_text(hidden.SUITE, encoding="utf-8")
            for name, command in STEPS.items():
                start = time.perf_counter()
                done = machine.run(*command, "test_suite.py")
                seconds[name] = time.perf_counter() - start
                if done.returncode not in (0, 1):
                    raise SystemExit(done.stdout + done.stderr)
            seconds["to_the_first_table"] = seconds["install"] + seconds["suite_under_corem"]
            rounds.append(seconds)
            compiled += [p.name for p in machine.cache.rglob("*.so")]
    return {
        "wheel": contents(wheel),
        "shipped": shipped(wheel),
        "seconds": {
            name: stored.summary([round(r[name], 2) for r in rounds]) for name in rounds[0]
        },
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "compiled": compiled,
        "hidden": {
            "folders": [str(p).replace(str(Path.home()), "~") for p in hidden.folders()],
            "files": [str(p) for p in hidden.files()],
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and store if asked."""
    parser = argparse.ArgumentParser(prog="python -m benches.experiments.wheel")
    parser.add_argument("--store", type=Path, metavar="FILE")
    parser.add_argument("--demo", metavar="BEFORE", help="also time make demo, here and at BEFORE")
    parser.add_argument("--torch", action="append", default=[], metavar="VERSION")
    options = parser.parse_args(arguments)
    found = sorted((ROOT / "dist").glob("pytest_udftorch-*.whl"))
    if not found:
        print("There is no wheel in dist/: run make wheel first.", file=sys.stderr)
        return 2
    result = measure(found[-1])
    for name, value in result["seconds"].items():
        print(f"{name:28} {value['median']:7.2f} s")
    print(f"{result['wheel']['file']}: {result['wheel']['bytes'] / 2**20:.2f} MiB")
    if options.store and options.store.exists():  # what took minutes is kept
        before = stored.load(options.store)
        result |= {k: v for k, v in before.items() if k in ("demo", "beside")}
    if options.demo:
        result["demo"] = demos(options.demo)
        print(result["demo"])
    for version in options.torch:
        result.setdefault("beside", {})[version] = beside(found[-1], version)
        print(version, result["beside"][version])
    if options.store:
        stored.save(options.store, "python -m benches.store wheel", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
