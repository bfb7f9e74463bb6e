# SPDX-License-Identifier: Apache-2.0
"""A process that has torch loaded and forks itself for every run.

A run that crashes, or that leaves something behind in the process, harms no other one. The first
process calls no operator, so no thread of torch is lost in the fork. It reads an order from each
line of its input and answers with a line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.diagnose.blame.runs import Order, as_plain, done, units_from
from pytest_udftorch.diagnose.blame.trial import Outcome, measured
from pytest_udftorch.diagnose.runs.switch import Unit
from pytest_udftorch.errors import DiagnosisError, UdfError

#: Modules that a run would load, and that are loaded once for all runs; torch's modes need its
#: compiler, and Hypothesis comes with a plugin of pytest.
_LOADED: Final = (
    "torch", compat.DYNAMO, "pytest_udftorch.diagnose.runs.switch", "pytest", "hypothesis",
)  # fmt: skip
#: The sessions of units, which the last one leaves open, are not the test's own.
_PYTEST: Final = (
    "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:udftorch-left-open", "--no-header",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What is run, by names that another process understands.

    Attributes:
        where: ``model.py:metric``, or the id of a test.
        folder: in which it runs.
        a: name or folder of the first library.
        b: of the second.
        seed: of the random numbers of a metric; tests seed themselves.
    """

    where: str
    folder: str
    a: str
    b: str
    seed: int = 0

    @property
    def is_test(self) -> bool:
        """Whether pytest runs it."""
        return "::" in self.where


class Runner:
    """A process for runs; it starts with the first one, and again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __call__(self, target: Target, order: Order) -> tuple[Outcome, list[Unit]]:
        """Do what an order says, in a process of its own.

        Raises:
            DiagnosisError: the run failed.
        """
        line = json.dumps(
            {
                "target": asdict(target),
                "what": order.what,
                "chosen": as_plain(order.chosen),
                "known": as_plain(order.known),
            }
        )
        with self._lock:
            process = self._started(target.folder)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                self._process = None
                raise DiagnosisError(f"The process of the runs ended with status {process.wait()}.")
        found = json.loads(answer)
        if "error" in found:
            raise DiagnosisError(found["error"])
        value = found["value"]
        outcome = Outcome(found["shown"], found["digest"], float("nan") if value is None else value)
        return outcome, list(units_from(found["units"]))

    def _started(self, folder: str) -> subprocess.Popen[str]:
        if self._process is None:
            environment = {**os.environ, "PYTHONPATH": _path()}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest_udftorch.diagnose.blame.process"],
                cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _path() -> str:
    own = str(Path(__file__).parents[3])
    return os.pathsep.join(filter(None, [own, os.environ.get("PYTHONPATH", "")]))


_of_this_worker = Runner()


def remotely(target: Target, order: Order) -> tuple[Outcome, list[Unit]]:
    """Do what an order says; a worker of dask calls this."""
    return _of_this_worker(target, order)


# In the process ----------------------------------------------------------------------


def main() -> None:
    """Answer orders until the input ends."""
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        print(_in_child(json.loads(line)), file=answers, flush=True)
    # Frozen objects cannot be torn down in order, and there is nothing to lose.
    os._exit(0)


def _in_child(order: dict[str, Any]) -> str:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Other threads than this one wait for work of NumPy's; the child uses none of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reading)
        text = json.dumps(_answer(order))
        with os.fdopen(writing, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        return text
    shown = f"died ({os.waitstatus_to_exitcode(status)})"
    return json.dumps({"shown": shown, "digest": shown, "value": None, "units": []})


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    from pytest_udftorch.diagnose.runs.switch import Pair

    target = Target(**order["target"])
    what = Order(order["what"], units_from(order["chosen"]), units_from(order["known"]))
    try:
        outcome, units = done(Pair(target.a, target.b), _run_of(target), what)
    except UdfError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{target.where} failed: {type(error).__name__}: {error}"}
    value = outcome.value if outcome.value == outcome.value else None
    return {
        "shown": outcome.shown, "digest": outcome.digest, "value": value, "units": as_plain(units)
    }  # fmt: skip


def _run_of(target: Target) -> Callable[[], Outcome]:
    if target.is_test:
        return lambda: _tested(target.where)
    from pytest_udftorch.diagnose.runs.files import load_make

    metric = load_make(target.where)
    return lambda: measured(metric, target.seed)


def _tested(where: str) -> Outcome:
    """Run a test with pytest."""
    import pytest

    class Reports:
        """Keeps how the phases of the test ended."""

        def __init__(self) -> None:
            self.found: dict[str, Any] = {}
            self.tests: set[str] = set()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.tests.add(report.nodeid)
            if report.outcome != "passed" or report.when == "call":
                self.found.setdefault(report.outcome, report)

    reports = Reports()
    status = pytest.main([*_PYTEST, where], plugins=[reports])
    if not reports.tests:
        raise DiagnosisError(
            f"pytest ran no test for {where!r} (status {int(status)}). Name one test: "
            "tests/test_x.py::test_y."
        )
    for word in ("failed", "skipped", "passed"):
        if word in reports.found:
            return Outcome(word + _reason(reports.found[word]), word)
    raise DiagnosisError(f"pytest ended with status {int(status)} before {where!r} had an outcome.")


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return f" ({crash.message.splitlines()[0]})" if crash is not None else ""


def text_of(outcome: Outcome) -> Mapping[str, Any]:
    """Return an outcome as plain data."""
    value = outcome.value if outcome.value == outcome.value else None
    return {"shown": outcome.shown, "digest": outcome.digest, "value": value}


if __name__ == "__main__":
    main()
