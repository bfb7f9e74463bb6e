# SPDX-License-Identifier: Apache-2.0
"""Do the test suites of other projects end the same under std and corem, test by test?

    python -m benches.experiments.foreign_suites [--suite NAME ...] [--cache DIR] [--store FILE]

Each suite comes from the source distribution that its project put on PyPI, in a pinned version. It
gets a virtual environment of its own, which finds torch and this package in the running one. Its
tests are copied to an empty folder, without the project's sources, and run in one process for each
library. A recorder beside them (``benches/data/foreign``) seeds every test alike and writes down
how it ended.

torch's own tests are in no distribution. ``benches/data/foreign/torch`` runs the database of
operators and modules that its wheel brings: samples, references, tolerances and known failures.

Tests that ended otherwise under corem run again alone, twice under each library. If they differ
from themselves, chance decides them; otherwise ``EXPLAINED`` has to say why, or the command fails.

Two negative controls run a part of each suite. Under ``canary`` every result is wrong by one bit;
``null`` computes nothing. If no suite shows a difference under null, nothing was observed. A digest
of three functions, taken in each process, shows that the process had the library that it names.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import stored
from benches.experiments import command
from pytest_udftorch import UdfError

CACHE = Path(__file__).parents[2] / "build" / "foreign_suites"
RECORDER = Path(__file__).parents[1] / "data" / "foreign"
OWN = RECORDER / "torch"
NULL = Path(__file__).parents[1] / "data" / "null"

#: How often a test that ended otherwise runs again, alone, under each library.
AGAIN = 2
#: A suite that takes longer than this, in seconds, hangs.
LIMIT = 3600


class SuiteError(UdfError):
    """A suite could not be fetched or run, or its outcome does not show what it has to."""


@dataclass(frozen=True)
class Suite:
    """A suite and the part of it that is run.

    Attributes:
        name: of the distribution on PyPI.
        version: of it.
        about: what it tests.
        requires: the other distributions that it needs and torch does not bring, pinned.
        tests: files and folders of the source distribution, as arguments of pytest.
        options: further arguments of pytest, which select tests.
        control: as ``tests``, for the negative controls.
        files: files of the source distribution that the tests need beside them.
        folder: holds the tests where a distribution does not; its own environment then gets only
            what the suite requires.
    """

    name: str
    version: str
    about: str
    requires: tuple[str, ...]
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    folder: Path | None = None


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "zuko", "1.6.0", "normalising flows and distributions", (), ("tests",),
            control=("tests/test_distributions.py", "tests/test_transforms.py"),
        ),
        Suite(
            "vit-pytorch", "1.26.11", "vision transformers", ("einops==0.8.2",), ("tests",),
            control=("tests/test_vit_nd.py", "tests/test_dino_loss.py", "tests/test_lejepa.py"),
        ),
        Suite(
            "gpytorch", "1.15.2", "Gaussian processes",
            ("linear_operator==0.6.1",),
            tuple(
                f"test/{part}"
                for part in (
                    "constraints", "distributions", "functions", "kernels", "likelihoods",
                    "means", "metrics", "mlls", "priors",
                )
            ),
            control=("test/functions", "test/priors"),
        ),
        Suite(
            "timm", "1.0.31", "image models, forward, backward, scripted and traced",
            (
                "anyio==4.16.0", "expecttest==0.3.0", "h11==0.16.0", "hf-xet==1.8.0",
                "httpcore2==2.16.2", "httpx2==2.16.2", "huggingface_hub==2.4.0", "idna==3.20",
                "pytest-timeout==2.4.0", "safetensors==0.8.0", "truststore==0.10.5",
            ),
            ("tests/test_models.py", "tests/test_layers.py"),
            options=(
                "-k",
                "test_layers or -test_vit] or -test_resnet] or -test_convnext] or"
                " -test_efficientnet_evos]",
            ),
            control=("tests/test_layers.py",),
            files=("pyproject.toml",),
        ),
        Suite(
            "pytorch_optimizer", "4.1.0", "losses, schedules and optimisers", (),
            (
                "tests/test_loss_functions.py", "tests/test_lr_schedulers.py",
                "tests/test_gradients.py", "tests/optimizers",
            ),
            control=("tests/test_loss_functions.py",),
        ),
        Suite(
            "torch", importlib.metadata.version("torch"),
            "torch's database of operators and modules", ("expecttest==0.3.0",),
            ("test_database.py",),
            control=(
                "test_database.py::TestUnaryUfuncsCPU", "test_database.py::TestBwdGradientsCPU",
            ),
            folder=OWN,
        ),
    )
}  # fmt: skip

#: Suite and test -> why it ends otherwise under corem.
EXPLAINED: Mapping[tuple[str, str], str] = {
    ("zuko", "tests/test_transforms.py::test_multivariate_transforms"): (
        "inverts a random triangular matrix, which loses about as much as the test allows: stock "
        "fails for other seeds. Sessions override normal_, so the last bits of the matrix differ"
    ),
}


@dataclass(frozen=True)
class Way:
    """How a process gets its mathematics.

    Attributes:
        name: in the results.
        options: of pytest.
        path: folders that go before all others on ``PYTHONPATH``.
    """

    name: str
    options: tuple[str, ...]
    path: tuple[str, ...] = ()


STD = Way("std", ("--udf-lib=std",))
COREM = Way("corem", ("--udf-lib=corem",))
CONTROLS = (Way("canary", ("--udf-lib=canary",)), Way("null", (f"--udf-lib={NULL}",)))


@dataclass(frozen=True)
class Run:
    """How the tests of one process ended.

    Attributes:
        outcomes: test -> passed, failed, error, skipped, xfailed or xpassed.
        messages: test that failed -> what it said.
        mathematics: digest of three functions in the process.
        seconds: wall clock.
    """

    outcomes: Mapping[str, str]
    messages: Mapping[str, str]
    mathematics: str
    seconds: float

    def counts(self) -> dict[str, int]:
        """Return outcome -> number of tests."""
        return dict(sorted(Counter(self.outcomes.values()).items()))

    def digest(self) -> str:
        """Return the SHA-256 of the sorted lines ``test outcome``."""
        lines = "".join(f"{test} {how}\n" for test, how in sorted(self.outcomes.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def _call(arguments: Sequence[str], **options: Any) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SuiteError(f"{' '.join(arguments)} failed: {done.stdout[-800:]}{done.stderr[-800:]}")


class Prepared:
    """A suite on disk: its interpreter and the folder of its tests."""

    def __init__(self, suite: Suite, cache: Path) -> None:
        self.suite = suite
        home = cache / f"{suite.name}-{suite.version}"
        home.mkdir(parents=True, exist_ok=True)
        self.python = self._interpreter(home / "venv")
        self.folder = self._unpacked(home)

    def _interpreter(self, folder: Path) -> Path:
        python = folder / "bin" / "python"
        wanted = [*self.suite.requires]
        if self.suite.folder is None:
            wanted.insert(0, f"{self.suite.name}=={self.suite.version}")
        state = folder / "installed.json"
        if state.exists() and json.loads(state.read_text()) == wanted:
            return python
        venv.create(folder, clear=True, with_pip=False)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        # torch, pip and this package come from the running environment, after the folder's own.
        shared = sysconfig.get_path("purelib")
        (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
        _call([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *wanted])
        state.write_text(json.dumps(wanted))
        return python

    def _unpacked(self, home: Path) -> Path:
        """Return a folder that holds the tests, and nothing else of the project."""
        folder = home / "suite"
        if self.suite.folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.suite.folder, folder)
            (folder / "pytest.ini").write_text("[pytest]\n")
            return folder
        if folder.exists():
            return folder
        pinned = f"{self.suite.name}=={self.suite.version}"
        _call(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary",
             ":all:", "--dest", str(home), pinned]
        )  # fmt: skip
        (archive,) = home.glob("*.tar.gz")
        scratch = home / "source"
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (root,) = scratch.iterdir()
        new = home / "new"
        new.mkdir(exist_ok=True)
        for name in {Path(test).parts[0] for test in self.suite.tests} | set(self.suite.files):
            target = new / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                (root / name).rename(target)
        if not (new / "pyproject.toml").exists():
            # Without a file of its own, pytest would take the settings of this project.
            (new / "pytest.ini").write_text("[pytest]\n")
        return new.rename(folder)

    def run(self, way: Way, tests: Sequence[str], *, selected: bool = True) -> Run:
        """Run tests in a process of their own.

        Args:
            way: where the process gets its mathematics from.
            tests: arguments of pytest.
            selected: with the suite's own selection.

        Raises:
            SuiteError: the process ended otherwise than with passed or failed tests, or its
                mathematics changed meanwhile.
        """
        record = self.folder.parent / f"{way.name}.jsonl"
        chosen = self.folder.parent / f"{way.name}.arguments"
        chosen.write_text("".join(f"{test}\n" for test in tests))
        environment = {
            **os.environ, "SUITE_RECORD": str(record), "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join([*way.path, str(RECORDER)]), "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0",
        }  # fmt: skip
        options = self.suite.options if selected else ()
        start = time.perf_counter()
        done = subprocess.run(
            [self.python, "-m", "pytest", "-q", "-p", "suite_recorder", "-p", "no:cacheprovider",
             "-o", "addopts=", *way.options, *options, f"@{chosen}"],
            cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
            timeout=LIMIT,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise SuiteError(
                f"{self.suite.name} under {way.name} ended with status {done.returncode}: "
                f"{done.stdout[-1500:]}{done.stderr[-500:]}"
            )
        return read(record, time.perf_counter() - start)


def read(record: Path, seconds: float = 0.0) -> Run:
    """Return what the recorder wrote.

    Raises:
        SuiteError: no test ran, the process ended early, or its mathematics changed meanwhile.
    """
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    mathematics: list[str] = []
    for text in record.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "mathematics" in line:
            mathematics.append(line["mathematics"])
            continue
        how = line["outcome"]
        if line["xfail"]:
            how = {"skipped": "xfailed", "passed": "xpassed"}.get(how, how)
        elif how == "failed" and line["phase"] != "call":
            how = "error"
        # The first phase that did not pass decides.
        if outcomes.get(line["id"], "passed") == "passed":
            outcomes[line["id"]] = how
            if line["message"]:
                messages[line["id"]] = line["message"]
    if not outcomes:
        raise SuiteError(f"{record} holds no test: the selection is empty.")
    if len(mathematics) != 2 or len(set(mathematics)) != 1:
        raise SuiteError(f"{record}: the process ended early, or tests changed its mathematics.")
    return Run(outcomes, messages, mathematics[0], seconds)


def differing(one: Run, other: Run) -> list[str]:
    """Return the tests that ended otherwise, or ran in only one of the two."""
    tests = sorted({*one.outcomes, *other.outcomes})
    return [test for test in tests if one.outcomes.get(test) != other.outcomes.get(test)]


def summary(run: Run) -> dict[str, Any]:
    """Return a run in the form in which it is stored."""
    listed = {"failed", "error", "xfailed", "xpassed"}
    return {
        "counts": run.counts(),
        "sha256_of_outcomes": run.digest(),
        "mathematics": run.mathematics[:16],
        "seconds": round(run.seconds, 1),
        "not_passed": {t: how for t, how in sorted(run.outcomes.items()) if how in listed},
    }


def compare(prepared: Prepared, first: Way, second: Way, ran: Mapping[str, Run]) -> dict[str, Any]:
    """Return what two ways have in common, with a row for each test in which they differ.

    Args:
        prepared: the suite.
        first: whose outcomes are taken for granted.
        second: the other way.
        ran: name of a way -> its outcomes.

    Raises:
        SuiteError: the two processes had the same mathematics.
    """
    one, other = ran[first.name], ran[second.name]
    if one.mathematics == other.mathematics and first.name == "std":
        raise SuiteError(f"{prepared.suite.name}: {second.name} computed with std's functions.")
    different = differing(one, other)
    again: dict[str, list[Run]] = {first.name: [], second.name: []}
    if different:
        for _ in range(AGAIN):
            for way in (first, second):
                again[way.name].append(prepared.run(way, different, selected=False))
    rows = []
    for test in different:
        alone = {n: [r.outcomes.get(test, "absent") for r in runs] for n, runs in again.items()}
        seen = [{ran[n].outcomes.get(test, "absent"), *alone[n]} for n in alone]
        flaky = any(len(outcomes) > 1 for outcomes in seen)
        reason = EXPLAINED.get((prepared.suite.name, test), "")
        if flaky and not reason:
            reason = "ends one way and the other under one library too"
        rows.append(
            {
                "test": test,
                **{n: ran[n].outcomes.get(test, "absent") for n in alone},
                "alone": alone,
                "message": (other.messages.get(test) or one.messages.get(test, ""))[:300],
                "explained": reason,
            }
        )
    same = [test for test, how in one.outcomes.items() if other.outcomes.get(test) == how]
    return {
        "tests": len(one.outcomes),
        "passed": sum(one.outcomes[t] == "passed" for t in same),
        "skipped": sum(one.outcomes[t] == "skipped" for t in same),
        "failed_both": sum(one.outcomes[t] in ("failed", "error") for t in same),
        "differing": len(rows),
        "explained": sum(bool(row["explained"]) for row in rows),
        "differences": rows,
    }


def versions(prepared: Prepared) -> dict[str, str]:
    """Return the distributions that the suite's own environment holds."""
    own = sysconfig.get_path("purelib", vars={"base": str(prepared.python.parents[1])})
    done = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=json", "--path", own],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {entry["name"]: entry["version"] for entry in json.loads(done.stdout)}


def measure(suite: Suite, cache: Path) -> dict[str, Any]:
    """Run one suite under every library, and return its row."""
    prepared = Prepared(suite, cache)
    ran = {way.name: prepared.run(way, suite.tests) for way in (STD, COREM)}
    row = {
        "suite": suite.name,
        "version": suite.version,
        "about": suite.about,
        "selection": " ".join(
            [*suite.tests, *(f"'{o}'" if " " in o else o for o in suite.options)]
        ),
        "installed": versions(prepared),
        **compare(prepared, STD, COREM, ran),
        "runs": {name: summary(run) for name, run in ran.items()},
    }
    row["controls"] = {way.name: control(prepared, way, ran["std"]) for way in CONTROLS}
    return row


def control(prepared: Prepared, way: Way, stock: Run) -> dict[str, Any]:
    """Return how many tests of a part of the suite end otherwise under a wrong library.

    Raises:
        SuiteError: the process had the stock functions.
    """
    run = prepared.run(way, prepared.suite.control)
    if run.mathematics == stock.mathematics:
        raise SuiteError(f"{prepared.suite.name}: {way.name} computed with std's functions.")
    part = {test: stock.outcomes.get(test, "absent") for test in run.outcomes}
    counted = Run(part, {}, stock.mathematics, 0.0)
    return {
        "tests": len(part),
        "differing": len(differing(counted, run)),
        "counts": run.counts(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("foreign_suites", __doc__)
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this; repeatable")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where suites are kept")
    options = parser.parse_args(arguments)
    # What was measured before stays, so that suites can be run one at a time.
    path = options.store
    rows = stored.load(path)["suites"] if path is not None and path.exists() else []
    found = {row["suite"]: row for row in rows if row["suite"] in SUITES}
    for name in options.suite or SUITES:
        try:
            row = found[name] = measure(SUITES[name], options.cache)
        except UdfError as error:
            print(f"foreign_suites: {error}", file=sys.stderr)
            return 2
        print(
            f"{name} {row['version']}: {row['tests']} tests, {row['differing']} differ, "
            f"{row['explained']} of these explained; controls {row['controls']}"
        )
        command.store(
            "foreign_suites", options, {"suites": [found[n] for n in SUITES if n in found]}
        )
    if not any(row["controls"]["null"]["differing"] for row in found.values()):
        print("foreign_suites: the negative control shows no difference.", file=sys.stderr)
        return 1
    return int(any(row["differing"] != row["explained"] for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
