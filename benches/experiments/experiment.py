# SPDX-License-Identifier: Apache-2.0
"""Experiments on torch.compile: cases, timing within a budget, and files that resume.

An experiment is a list of cases, each a JSON object, and a function that makes the contenders
of one case. It runs as a pytest-benchmark suite, with a bench for each case, and as a command that
stores a row for each case:

    python -m benches.experiments.compile_convolutions OUT.json --scale full --device cuda
        --budget 80

A case does not start if the last three suggest that it would exceed the budget. The command prints
the cases that it left out, and the file counts them. The command continues an existing file of the
same experiment, scale, device and versions; ``--again`` starts over. A file in benches/results is a
summary; only a file elsewhere keeps the time of every run. Ctrl-C keeps the rows so far.
``--processes N`` makes the contenders of N cases side by side and times one case at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import functools
import json
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benches import rows as benchmark_rows
from benches import stored
from pytest_udftorch import UdfError
from pytest_udftorch.measure import Comparison, SyncTimer
from pytest_udftorch.measure.timing.device import describe_device
from pytest_udftorch.measure.timing.statistics import FEWEST_RUNS, median
from pytest_udftorch.measure.timing.timers import require_device

if TYPE_CHECKING:
    from pytest_udftorch.measure import ModelPair

Case = dict[str, Any]
Call = Callable[[], Any]

SCALES: Final = ("small", "full")

#: The published study's twenty runs of ten rounds, where a case's share of the budget allows it.
RUNS: Final = 20
ROUNDS: Final = 10

#: How many of the omitted cases the command prints by name.
SAID: Final = 12

#: Seconds that the rounds of one case may take.
CASE_SECONDS: Final = {"small": 0.5, "full": 1.5}

#: If one round of all contenders takes longer than this, in seconds, one pilot round is enough.
LONG_ROUND: Final = 0.02


#: Executors by device. On CUDA, both forms are also replayed from a CUDA graph, which times the
#: kernels without their launches.
EXECUTORS: Final = {
    "cpu": ["eager", "compile"],
    "cuda": ["eager", "compile", "eager+cudagraph", "compile+cudagraph"],
}


class ResumeError(UdfError):
    """The output file holds something that this run cannot continue."""


class ProcessEndedError(UdfError):
    """A process that measured cases ended unexpectedly."""


@contextlib.contextmanager
def turn(lock: Path | None, kind: int) -> Iterator[None]:
    """Hold a lock file that processes share; without one, do nothing.

    Processes that make contenders (``fcntl.LOCK_SH``) run side by side; one that measures
    (``fcntl.LOCK_EX``) runs alone. Measuring has priority: making begins when no process measures
    or waits to measure.
    """
    if lock is None:
        yield
        return
    with (
        open(lock, "w", encoding="utf-8") as file,
        open(f"{lock}.measuring", "w", encoding="utf-8") as measuring,
    ):
        # Every process that measures, or waits to, holds it shared.
        making = kind == fcntl.LOCK_SH
        fcntl.flock(measuring, fcntl.LOCK_EX if making else fcntl.LOCK_SH)
        fcntl.flock(file, kind)
        if making:
            fcntl.flock(measuring, fcntl.LOCK_UN)
        yield


@dataclass
class Prepared:
    """The contenders of one case.

    Attributes:
        calls: by name; the first is the baseline of the speed-ups.
        info: what is known without timing, as a JSON object. It becomes part of the row.
    """

    calls: dict[str, Call]
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One figure.

    Attributes:
        name: of the module and of its stored file.
        cases: device type and scale -> cases, the most telling first.
        prepare: makes the contenders of a case on a device.
        finish: rows -> what is derived from all of them, or None.
        keep_runs: whether rows keep the time of every run, and not only the medians.
        budget_s: scale -> seconds that a run of the command may take by default.
    """

    name: str
    cases: Callable[[str, str], list[Case]]
    prepare: Callable[[Case, str], Prepared]
    finish: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None
    keep_runs: bool = False
    budget_s: dict[str, float] = field(default_factory=lambda: {"small": 120.0, "full": 80.0})


def pair_calls(pair: ModelPair) -> Prepared:
    """Return the working members of a pair as contenders, with what was learnt by making them."""

    def bind(name: str) -> Call:
        call = pair[name]
        return lambda: call(*pair.inputs)

    members = {name: pair.members[name] for name in pair.complete().working}
    return Prepared(
        {name: bind(name) for name in members},
        {
            "first_call_ns": {n: m.first_call_ns for n, m in members.items()},
            "disagree": [n for n, m in members.items() if not m.agrees],
            "failures": pair.failures,
            "graph_breaks": {n: m.graph_breaks for n, m in members.items()},
        },
    )


def cold() -> AbstractContextManager[None]:
    """Compile with empty caches: a first call that hits the cache of an earlier run is shorter."""
    from torch._inductor.utils import fresh_cache

    return fresh_cache()


def compare(calls: dict[str, Call], device: str, seconds: float) -> Comparison:
    """Time contenders, interleaved, with as many runs and rounds as fit in ``seconds``.

    There are at least six runs of one round, however long they take: fewer give no verdict.
    """
    with torch.no_grad():
        each = _seconds(SyncTimer(device, runs=1, rounds=1, warmup=0, gpu_state=False), calls)
        if each < LONG_ROUND:
            each = _seconds(SyncTimer(device, runs=3, rounds=3, warmup=1, gpu_state=False), calls)
        # A run has one call more than it has rounds.
        calls_each = seconds / max(each, 1e-9)
        runs = max(FEWEST_RUNS, min(RUNS, int(calls_each / 2)))
        rounds = max(1, min(ROUNDS, int(calls_each / runs) - 1))
        timer = SyncTimer(device, runs=runs, rounds=rounds, warmup=0, gpu_state=False)
        return timer.compare(calls).complete()


def _seconds(timer: SyncTimer, calls: dict[str, Call]) -> float:
    """Return what one round of all contenders takes."""
    timed = timer.compare(calls).complete()
    return sum(median(t.wall_ns) for t in timed.timings.values()) / 1e9


def timings_json(timed: Comparison) -> dict[str, Any]:
    """Return medians and intervals of all contenders, and speed-ups over the first."""
    names = list(timed.timings)
    shown = {}
    for name, timing in timed.timings.items():
        interval = timing.interval_ns
        shown[name] = {
            "median_ns": round(timing.median_ns, 1),
            "low_ns": round(interval.low, 1),
            "high_ns": round(interval.high, 1),
            **({"launch_ns": round(median(timing.launch_ns), 1)} if timing.launch_ns else {}),
            **({"caveats": timing.caveats} if timing.caveats else {}),
        }
    return {
        "runs": timed.options["runs"],
        "rounds": timed.options["rounds"],
        "timings": shown,
        "speedup": {n: speedup(timed, n, names[0]) for n in names[1:]},
    }


def speedup(timed: Comparison, name: str, over: str) -> dict[str, Any]:
    """Return how many times faster, with interval and verdict."""
    found = timed.speedup(name, over)
    return {
        "over": over,
        "value": round(found.value, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "verdict": timed.verdict(name, over),
    }


def bench(
    benchmark: Any, experiment: Experiment, case: Case, device: str, scale: str
) -> dict[str, Any]:
    """Run one case as a bench of pytest-benchmark and return its row.

    Each contender has a row in the table of pytest-benchmark.
    """
    described = describe_run(experiment, device, scale)
    _warm_compiler(device)
    torch._dynamo.reset()
    prepared = experiment.prepare(case, device)
    timed = compare(prepared.calls, device, CASE_SECONDS[scale])
    row = {"case": case, **prepared.info, **timings_json(timed)}
    benchmark_rows.add(
        benchmark,
        {name: timing.runs_ns for name, timing in timed.timings.items()},
        experiment=experiment.name,
        run=described,
        row=row,
    )
    return row


def measure(
    experiment: Experiment, case: Case, device: str, scale: str, lock: Path | None = None
) -> dict[str, Any]:
    """Return the row of one case: what preparing it showed, and the times.

    A case that fails (a compiler's error, too little memory) gives ``error`` instead.
    """
    # Every case compiles anew. Cache entries of earlier cases would slow the guards down.
    torch._dynamo.reset()
    try:
        with turn(lock, fcntl.LOCK_SH):
            prepared = experiment.prepare(case, device)
        row = dict(prepared.info)
        with turn(lock, fcntl.LOCK_EX):
            timed = compare(prepared.calls, device, CASE_SECONDS[scale])
        row |= timings_json(timed)
        if experiment.keep_runs:
            row["runs_ns"] = {
                name: [round(v) for v in timing.runs_ns] for name, timing in timed.timings.items()
            }
    except Exception as error:
        text = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {text[0] if text else ''}"[:500]}
    finally:
        if device == "cuda":
            torch.cuda.empty_cache()
    return row


def _settings(experiment: Experiment, device: str, scale: str) -> dict[str, Any]:
    _set_flags()
    return {"experiment": experiment.name, "scale": scale, **describe_device(device)}


def _set_flags() -> None:
    torch.backends.cudnn.benchmark = True


def describe_run(experiment: Experiment, device: str, scale: str) -> dict[str, Any]:
    """Return the context of a row: experiment, scale, machine, versions, flags."""
    return {**_settings(experiment, device, scale), "date": _today()}


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _key(case: Case) -> str:
    return json.dumps(case, sort_keys=True)


def _earlier(
    path: Path, experiment: Experiment, settings: dict[str, Any], keys: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the rows of an existing file that need not be measured again."""
    try:
        document = stored.load(path)
        rows = list(document["rows"])
        others = differing(document, settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(
            f"{path} is not a stored result of this bench ({type(error).__name__}). Name another "
            "file, or delete it."
        ) from error
    if others:
        raise ResumeError(
            f"{path} was measured with another {', '.join(others)}, and rows of both would be "
            "mixed. Name another file, or delete it."
        )
    # A summary has no runs, which the rows of some experiments need to be judged.
    whole = [row for row in rows if "runs_ns" in row or not experiment.keep_runs]
    by_key = {_key(row["case"]): row for row in whole if "error" not in row}
    return [by_key[key] for key in keys if key in by_key]


def differing(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return the settings in which a stored document differs.

    Older files do not name the kernels that torch chose for the CPU, or the single process; those
    settings count as equal.

    Raises:
        KeyError, TypeError: ``found`` does not describe a machine.
    """
    capability = settings["machine"]["torch_capability"]
    machine = {"torch_capability": capability, **found["machine"]}
    document = {"processes": 1, **found, "machine": machine}
    return [key for key, value in settings.items() if document.get(key) != value]


def missing_folder(path: Path) -> str | None:
    """Return an error message if the folder of an output does not exist, or None."""
    if path.parent.is_dir():
        return None
    return f"The output's folder, {path.parent}, does not exist. Make it."


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document as JSON, if there is a path."""
    if path is not None:
        stored.write(path, document)


class _Budget:
    """Seconds for all cases; the last three predict what the next one takes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start = time.monotonic()
        self.spent: list[float] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def allows_another(self) -> bool:
        """Return whether another case would end before the budget does."""
        return not self.spent or self.elapsed + median(self.spent[-3:]) <= self.seconds


#: A case, what it showed, and the seconds that it took.
Measured = tuple[Case, dict[str, Any], float]


def _timed(
    experiment: Experiment, case: Case, device: str, scale: str, lock: Path | None = None
) -> Measured:
    begun = time.monotonic()
    row = measure(experiment, case, device, scale, lock)
    return case, row, time.monotonic() - begun


def _one_by_one(
    experiment: Experiment, cases: list[Case], device: str, scale: str, budget: _Budget
) -> Generator[Measured, None, None]:
    _warm_compiler(device)
    for case in cases:
        if not budget.allows_another():
            return
        yield _timed(experiment, case, device, scale)


def _begin_process(device: str) -> None:
    # Ctrl-C reaches all processes of a command. The parent reports it; the workers just end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _set_flags()
    _warm_compiler(device)


def _side_by_side(
    experiment: Experiment,
    cases: list[Case],
    device: str,
    scale: str,
    budget: _Budget,
    processes: int,
) -> Generator[Measured, None, None]:
    left = iter(cases)
    running: dict[futures.Future[Measured], Case] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        futures.ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), _begin_process, (device,)
        ) as pool,
    ):
        lock = Path(folder) / "lock"
        while True:
            while len(running) < processes and budget.allows_another():
                if (case := next(left, None)) is None:
                    break
                future = pool.submit(_timed, experiment, case, device, scale, lock)
                running[future] = case
            if not running:
                return
            done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            for future in done:
                try:
                    measured = future.result()
                except BrokenProcessPool as error:
                    texts = "; ".join(_text(case) for case in running.values())
                    raise ProcessEndedError(
                        "A process ended without an error (a crash in compiled code, or too little "
                        f"memory) in one of these cases: {texts}. Finished rows are kept, and "
                        "the same command continues; --processes 1 shows which case it is."
                    ) from error
                del running[future]
                yield measured


def _check_options(output: Path | None, budget_s: float | None, processes: int) -> None:
    if budget_s is not None and not budget_s > 0:
        raise ResumeError(f"The budget is {budget_s:g} s. Give a positive number of seconds.")
    if processes < 1:
        raise ResumeError(f"The number of processes is {processes}. Give at least 1.")
    if output is not None and (missing := missing_folder(output)):
        raise ResumeError(missing)


def run(
    experiment: Experiment,
    output: Path | None,
    device: str,
    scale: str,
    budget_s: float | None = None,
    say: Callable[[str], None] = print,
    processes: int = 1,
) -> dict[str, Any]:
    """Measure an experiment's cases within the budget; return, and store, its document.

    Args:
        experiment: what to measure; for several processes, its functions must be importable.
        output: file to write after every case, and to continue if it exists; or None.
        device: cpu or cuda.
        scale: ``small`` or ``full``.
        budget_s: seconds; by default the experiment's own.
        say: gets a line per case.
        processes: how many make contenders side by side; only one measures at a time. With
            several, first calls are timed on a busy machine.

    Raises:
        DeviceMissingError: CUDA was asked for and is absent.
        ProcessEndedError: one of several processes ended; the rows so far are stored.
        ResumeError: ``output`` holds something else, or its folder is missing; or the budget or
            the number of processes is not positive.
    """
    require_device(device)
    _check_options(output, budget_s, processes)
    settings = {**_settings(experiment, device, scale), "processes": processes}
    seconds = experiment.budget_s[scale] if budget_s is None else budget_s
    cases = experiment.cases(device, scale)
    keys = [_key(case) for case in cases]
    place = {key: number for number, key in enumerate(keys, 1)}
    rows = []
    if output is not None and output.exists():
        rows = _earlier(output, experiment, settings, keys)
    done = {_key(row["case"]) for row in rows}
    todo = [case for case, key in zip(cases, keys, strict=True) if key not in done]
    document: dict[str, Any] = {
        **settings,
        "date": _today(),
        "command": f"python -m benches.experiments.{experiment.name} OUT.json --scale {scale} "
        f"--device {device} --budget {seconds:g}"
        + (f" --processes {processes}" if processes > 1 else ""),
        "interrupted": True,
        "left_out": len(todo),
        "rows": rows,
    }
    try:
        budget = _Budget(seconds)
        if processes == 1:
            measured = _one_by_one(experiment, todo, device, scale, budget)
        else:
            measured = _side_by_side(experiment, todo, device, scale, budget, processes)
        with contextlib.closing(measured):
            for case, row, spent in measured:
                budget.spent.append(spent)
                rows.append({"case": case, **row})
                done.add(_key(case))
                document["left_out"] = len(cases) - len(done)
                save(output, document)
                say(
                    f"{place[_key(case)]}/{len(cases)}, {budget.elapsed:.0f} s of {seconds:g} s: "
                    f"{summary(case, rows[-1])}"
                )
        document["interrupted"] = False
    except KeyboardInterrupt:
        say(f"Interrupted after {len(rows)} of {len(cases)} cases. The same command continues.")
    rows.sort(key=lambda row: place[_key(row["case"])])
    left_out = [case for case, key in zip(cases, keys, strict=True) if key not in done]
    for case in left_out[:SAID]:
        say(f"left out: {_text(case)}")
    if len(left_out) > SAID:
        say(f"left out: {len(left_out) - SAID} more")
    if experiment.finish is not None:
        document |= experiment.finish([r for r in rows if "error" not in r])
    save(output, document)
    return document


@functools.cache
def _warm_compiler(device: str) -> None:
    """Compile something: the first compilation of a process also loads the compiler."""
    with torch.no_grad():
        torch.compile(lambda x: x @ x + 1, dynamic=False)(torch.ones(8, 8, device=device))


def _text(case: Case) -> str:
    return ", ".join(f"{k} {v}" for k, v in case.items() if not isinstance(v, list | dict))


def summary(case: Case, row: dict[str, Any]) -> str:
    """Return one line about a row."""
    if "error" in row:
        return f"{_text(case)}: {row['error']}"
    shown = ", ".join(f"{n} {s['value']:.2f}x" for n, s in row.get("speedup", {}).items())
    return f"{_text(case)}: {shown}"


def main(
    experiment: Experiment, description: str | None, arguments: Sequence[str] | None = None
) -> int:
    """Run an experiment's command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benches.experiments.{experiment.name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("output", type=Path, metavar="OUT.json", help="continued if it exists")
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="by default cuda where there is one"
    )
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help=f"by default {experiment.budget_s}"
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="that make contenders; 1 by default"
    )
    parser.add_argument("--again", action="store_true", help="overwrite OUT.json if it exists")
    options = parser.parse_args(arguments)
    if options.again and options.output.is_file():
        options.output.unlink()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        document = run(
            experiment,
            options.output,
            device,
            options.scale,
            options.budget,
            say=lambda line: print(line, flush=True),
            processes=options.processes,
        )
    except UdfError as error:
        print(f"{experiment.name}: {error}", file=sys.stderr)
        return 2
    if document["interrupted"]:
        return 130
    return 1 if any("error" in row for row in document["rows"]) else 0
