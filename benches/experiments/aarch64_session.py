# SPDX-License-Identifier: Apache-2.0
r"""Does a session work in torch's wheel for aarch64, as far as QEMU imitates the machine?

    python -m benches.experiments.aarch64_session --rootfs DIR --site DIR [--store FILE]

``--rootfs`` is a folder with Debian's Python for arm64, unpacked with ``dpkg -x`` from
``python3.11-minimal``, ``libpython3.11-stdlib`` and the libraries that they need. ``--site`` is
where pip unpacked the registry's wheels of torch, its dependencies and NumPy for aarch64
(``pip install --target DIR --platform manylinux_2_28_aarch64 --only-binary=:all:``).

The package is copied with a runtime that clang cross-compiles. Inside QEMU a Python of aarch64
imports torch and the package, which builds corem with the clang of this machine. A session opens
and closes. The child says which slots it found, what each function reached, and digests of results
before, inside and after; the same program then runs here under corem. In softmax two numbers are
added, so that the order, which is the processor's own, does not matter.

torch reads facts of the CPU from files that QEMU does not imitate. The program writes those of an
Arm Neoverse N1 into the rootfs. It needs ``qemu-user`` and ``libc6-dev-arm64-cross``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

CPU: Final = "neoverse-n1"
MIDR: Final = 0x413FD0C1  # r3p1, Arm's reference manual of that core
FEATURES: Final = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
    "asimddp ssbs"
)
CLANG: Final = os.environ.get("UDFTORCH_CLANG") or "/usr/bin/clang-19"
SYSROOT: Final = Path("/usr/aarch64-linux-gnu")
TARGET: Final = ("--target=aarch64-linux-gnu", "-isystem", f"{SYSROOT}/include")
RUNTIME: Final = ("names.c", "udfprof.c", "udfrt.c", "trampolines.S")
LIBRARIES: Final = ("libc.so.6", "libc_nonshared.a", "libm.so.6", "ld-linux-aarch64.so.1")
PYTHON: Final = "usr/bin/python3.11"
ROOT: Final = Path(__file__).parents[2]

#: Runs a clang of this machine for a process that QEMU imitates.
WRAPPER: Final = """#!/bin/sh
case " $* " in
  *" --version "*) exec {clang} --version ;;
  *" -shared "*) exec {clang} {target} -nostdlib -L{lib} "$@" {lib}/libc.so.6 ;;
  *) exec {clang} {target} "$@" ;;
esac
"""


# In the child --------------------------------------------------------------------------


def operators() -> dict[str, Callable[[], Any]]:
    """Return name -> an operator on fixed inputs whose bits do not depend on the processor."""
    import torch

    x = torch.linspace(-80.0, 80.0, 100_001)
    pairs = torch.stack([x, x.flip(0) * 0.7])
    plain, unit, positive = (x,), (x / 80.5,), (x.abs() + 1.0,)
    arguments = {
        **dict.fromkeys(("exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh"), plain),
        **dict.fromkeys(("tanh", "atan", "asinh", "erfc"), plain),
        **dict.fromkeys(("asin", "acos", "atanh"), unit),
        **dict.fromkeys(("log", "log2", "log10", "log1p", "acosh"), positive),
        **dict.fromkeys(("pow", "atan2", "hypot"), (x.abs() * 0.05 + 0.1, pairs[1] * 0.1)),
    }
    found = {name: partial(getattr(torch, name), *given) for name, given in arguments.items()}
    return {"softmax": partial(torch.softmax, pairs, 0), **found}


def digests() -> dict[str, str]:
    """Return operator -> SHA-256 of its result."""
    return {
        name: hashlib.sha256(run().contiguous().numpy().tobytes()).hexdigest()
        for name, run in operators().items()
    }


def child() -> dict[str, Any]:
    """Return what a session does in this process."""
    import platform

    import torch

    from pytest_udftorch import UdfError, patched
    from pytest_udftorch.swap import FUNCTIONS
    from pytest_udftorch.swap.session.binder import binder

    facts: dict[str, Any] = {
        "processor": platform.machine(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    slots: dict[str, dict[str, int]] = {}
    for slot in binder().slots:
        kinds = slots.setdefault(slot.object, {})
        kinds[slot.kind] = kinds.get(slot.kind, 0) + 1
    before = digests()
    reached: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name in FUNCTIONS:
        try:
            with patched("corem", functions=(name,)) as session:
                reached[name] = sorted(session.reached[name])
        except UdfError as error:
            refused[name] = f"{type(error).__name__}: {error}"
    if not reached:
        return {**facts, "slots": slots, "reached": reached, "refused": refused}
    with patched("corem", functions=tuple(reached)):
        inside = digests()
    after = digests()
    return {
        **facts, "slots": slots, "reached": reached, "refused": refused,
        "before": before, "inside": inside, "restored": after == before,
    }  # fmt: skip


# Outside -------------------------------------------------------------------------------


def package(folder: Path) -> Path:
    """Copy the package for aarch64 into a folder; return the folder."""
    import pytest_udftorch
    from pytest_udftorch.swap.native.runtime import native_file

    source = Path(pytest_udftorch.__file__).parent
    made = folder / "pytest_udftorch"
    shutil.copytree(source, made, ignore=shutil.ignore_patterns("__pycache__", "_native", "udfs"))
    shutil.copytree(native_file("udfrt.c").parent, made / "_native")
    shutil.copytree(ROOT / "udfs", made / "udfs")
    objects = []
    for name in RUNTIME:
        objects.append(str(folder / f"{name}.o"))
        words = [CLANG, *TARGET, "-O2", "-fPIC", "-fvisibility=hidden"]
        subprocess.run(
            [*words, "-c", ROOT / "pytest_udftorch/swap/native/c" / name, "-o", objects[-1]],
            check=True,
        )
    link = [TARGET[0], "-fuse-ld=lld", "-nostdlib", "-shared", "-Wl,-z,now", "-Wl,--no-undefined"]
    files = [str(SYSROOT / "lib" / name) for name in LIBRARIES]
    output = str(made / "_native" / "libudfrt.so")
    subprocess.run([CLANG, *link, *objects, *files, "-o", output], check=True)
    return folder


def imitate(rootfs: Path) -> None:
    """Write the files in which torch looks for facts of the CPU."""
    cores = range(os.cpu_count() or 1)
    text = "".join(
        f"processor\t: {i}\nFeatures\t: {FEATURES}\nCPU implementer\t: 0x{MIDR >> 24:02x}\n"
        f"CPU architecture: 8\nCPU variant\t: 0x{MIDR >> 20 & 15:x}\n"
        f"CPU part\t: 0x{MIDR >> 4 & 0xFFF:03x}\nCPU revision\t: {MIDR & 15}\n\n"
        for i in cores
    )
    (rootfs / "proc").mkdir(exist_ok=True)
    (rootfs / "proc" / "cpuinfo").write_text(text, encoding="utf-8")
    for i in cores:
        folder = rootfs / f"sys/devices/system/cpu/cpu{i}/regs/identification"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "midr_el1").write_text(f"0x{MIDR:016x}\n", encoding="utf-8")


def emulated(
    rootfs: Path, site: Path, folder: Path, words: Sequence[str] = (__file__, "--child")
) -> dict[str, Any]:
    """Run a program of Python in QEMU; return what its last line says, or where it stopped.

    Args:
        rootfs: Debian's Python for arm64.
        site: the packages for aarch64.
        folder: where the package is built.
        words: what Python is given.
    """
    wrapper = folder / "clang"
    target = " ".join(TARGET)
    text = WRAPPER.format(clang=CLANG, target=target, lib=SYSROOT / "lib")
    wrapper.write_text(text, encoding="utf-8")
    wrapper.chmod(0o755)
    environment = os.environ | {
        "PYTHONPATH": f"{site}:{package(folder)}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1", "UDFTORCH_TRY_AARCH64": "1", "UDFTORCH_CLANG": str(wrapper),
        "UDFTORCH_CACHE_DIR": str(folder / "cache"),
    }  # fmt: skip
    imitated = ["qemu-aarch64", "-cpu", CPU, "-L", str(rootfs), str(rootfs / PYTHON), "-s"]
    done = subprocess.run(
        [*imitated, *words],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return {"stopped": done.returncode, "said": done.stderr[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(there: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """Return what the two say of each operator."""
    same = {name: there["inside"][name] == here["inside"][name] for name in there["inside"]}
    stock = {name: there["before"][name] == here["before"][name] for name in there["before"]}
    swapped = {name: there["inside"][name] != there["before"][name] for name in there["inside"]}
    return {
        "same_as_here": sorted(n for n, equal in same.items() if equal),
        "different_from_here": sorted(n for n, equal in same.items() if not equal),
        "stock_same_as_here": sorted(n for n, equal in stock.items() if equal),
        "swapped": sorted(n for n, changed in swapped.items() if changed),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run both; return 1 if bits differ or were not restored, 2 if torch does not load there."""
    if (arguments or sys.argv[1:]) == ["--child"]:
        print(json.dumps(child()))
        return 0
    from benches import stored
    from benches.experiments import command

    parser = command.parser("aarch64_session", __doc__)
    parser.add_argument("--rootfs", type=Path, required=True)
    parser.add_argument("--site", type=Path, required=True)
    options = parser.parse_args(arguments)
    imitate(options.rootfs)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        there = emulated(options.rootfs.resolve(), options.site.resolve(), Path(scratch))
    seconds = time.perf_counter() - started
    if "stopped" in there:
        print(f"aarch64_session: stopped with {there['stopped']}:\n{there['said']}")
        return 2
    here = child()
    verdict = compare(there, here)
    print(json.dumps({**there, **verdict}, indent=1), f"{seconds:.0f} s")
    if options.store is not None:
        repeat = "python -m benches.experiments.aarch64_session --rootfs DIR --site DIR"
        version = subprocess.run(
            ["qemu-aarch64", "--version"], capture_output=True, text=True, check=True
        )
        emulator = version.stdout.partition("\n")[0]
        figures = {"cpu": CPU, "emulator": emulator, "there": there, "verdict": verdict}
        stored.save(options.store, repeat, figures)
    return int(bool(verdict["different_from_here"]) or not there["restored"])


if __name__ == "__main__":
    sys.exit(main())
