# SPDX-License-Identifier: Apache-2.0
"""Find the smallest set of function, layer and operator that makes two libraries differ."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.delta_debugging import smallest
from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.diagnose.blame.process import Runner, Target, remotely, text_of
from pytest_udftorch.diagnose.blame.result import Blame, Cause
from pytest_udftorch.diagnose.blame.runs import Order, done
from pytest_udftorch.diagnose.blame.trial import RAISED, Outcome, measured
from pytest_udftorch.diagnose.runs.switch import Pair, Unit
from pytest_udftorch.errors import DiagnosisError
from pytest_udftorch.swap.toolchain.progress import tell

Answer = tuple[Outcome, list[Unit]]
#: Does orders, several at once if it can, and gives the answers in their order as they come.
Do = Callable[[Sequence[Order]], Iterator[Answer]]

_LINE: Final = shapes.record({"trial": shapes.of(str), "outcome": shapes.of(dict)}, closed=True)


class _Memory(Journal):
    """The outcomes of trials, by a digest of what got the functions of b."""

    kind = "blame"
    words = Words(parts="trials")
    makes_folder = True

    def __init__(self, path: Path, run: dict[str, Any], *, resume: bool) -> None:
        self.known: dict[str, Outcome] = {}
        super().__init__(path, run, resume=resume)

    def read(self, payload: dict[str, Any]) -> None:
        _LINE(payload, "the line")
        plain = payload["outcome"]
        value = plain.get("value")
        self.known[payload["trial"]] = Outcome(
            str(plain.get("shown")),
            str(plain.get("digest")),
            float(value) if isinstance(value, int | float) else math.nan,
        )


def _key(some: Sequence[Unit]) -> str:
    lines = [f"{u.function}\t{u.layer}\t{u.operator}" for u in sorted(some)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


class _Search:
    """Trials, each of which runs once."""

    def __init__(self, do: Do, units: Sequence[Unit], by: float, memory: _Memory | None) -> None:
        self._do, self._units, self._by = do, tuple(units), by
        self._memory = memory
        self._known: dict[str, Outcome] = {} if memory is None else memory.known
        self.remembered = 0
        self.trials = 0
        self.a: Outcome | None = None

    def outcomes(self, sets: Sequence[Sequence[Unit]]) -> Iterator[Outcome]:
        """Yield the outcomes of trials in their order."""
        fresh = {_key(s): s for s in sets if _key(s) not in self._known}
        answers = self._do([Order("trial", tuple(s), self._units) for s in fresh.values()])
        waiting = iter(fresh)
        for some in sets:
            while _key(some) not in self._known:
                tell(f"trial {self.trials + 1}, {len(some)} of {len(self._units)} units from b")
                key, (outcome, _) = next(waiting), next(answers)
                self._keep(key, outcome)
            yield self._known[_key(some)]
        with contextlib.suppress(AttributeError):
            answers.close()  # type: ignore[attr-defined]

    def _keep(self, key: str, outcome: Outcome) -> None:
        self._known[key] = outcome
        self.trials += 1
        if self._memory is not None:
            self._memory.add({"trial": key, "outcome": text_of(outcome)})

    def outcome(self, some: Sequence[Unit]) -> Outcome:
        """Return the outcome of one trial."""
        (found,) = self.outcomes([some])
        return found

    def shows(self, some: Sequence[Unit]) -> bool:
        """Tell whether functions of b in some units make a difference."""
        assert self.a is not None
        return self.outcome(some).differs(self.a, self._by)

    def first(self, sets: Sequence[Sequence[Unit]]) -> int | None:
        """Return the position of the first set that makes a difference."""
        assert self.a is not None
        for at, found in enumerate(self.outcomes(sets)):
            if found.differs(self.a, self._by):
                return at
        return None


def units_of(a: Any, b: Any, metric: Callable[[], Any], seed: int = 0) -> tuple[Unit, ...]:
    """Return the functions of two libraries that a metric calls, by layer and operator.

    Args:
        a: the first library: its name or folder.
        b: the second one.
        metric: a function without parameters, as of :func:`blame`.
        seed: of its random numbers.

    Raises:
        DiagnosisError: the metric returns nothing that can be compared.
        UdfError: as from opening sessions of the libraries.
    """
    run = functools.partial(measured, metric, seed)
    return tuple(done(Pair(a, b), run, Order("units"))[1])


# Each option of a search is a parameter.
def smallest_cause(  # noqa: PLR0913
    a: Any,
    b: Any,
    target: Callable[[], Any] | str,
    *,
    by: float = 0.0,
    causes: int = 3,
    tries: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    journal: str | Path | None = None,
    resume: bool = False,
) -> Blame:
    """Find the smallest set of function, layer and operator that makes a test or metric differ.

    Every run has the functions of ``a``, and those of ``b`` in chosen operators of chosen layers.
    Delta debugging finds a set that makes the difference and of which nothing can be left out.
    Then it is left out of a run under ``b``: what still differs has another cause.

    Args:
        a: the first library: its name or folder.
        b: the second one.
        target: a function without parameters that returns a number, a tensor, or lists of them;
            or, to be run in processes of their own, ``model.py:metric`` or the id of a test.
        by: a number differs if it is farther apart than this; by default if a bit differs.
        causes: how many independent causes are looked for, at most.
        tries: trials for one cause, at most.
        seed: of the random numbers of a metric.
        workers: processes at a time; by default one for each processor. A function runs in this
            process.
        scheduler: the address of a dask scheduler, whose workers run the trials.
        journal: a file that keeps every outcome, so that a search goes on where it ended.
        resume: go on with the journal of an earlier search.

    Raises:
        DiagnosisError: nothing differs, the target fails, is not deterministic, or cannot be run as
            asked; or the difference lies outside of eager operators.
        UdfError: as from opening sessions of the libraries, and from the journal.
    """
    pair = Pair(a, b)
    if not pair.names:
        raise DiagnosisError("Both libraries are the stock one, so nothing can differ.")
    if by < 0 or math.isnan(by):
        raise DiagnosisError(f"by={by} is no distance. Give 0 or more.")
    if causes < 1 or (tries is not None and tries < 1):
        raise DiagnosisError("Look for at least one cause, with at least one try.")
    with _doing(pair, target, seed, workers, scheduler) as do:
        memory = None
        if journal is not None:
            memory = _Memory(Path(journal), _name(pair, target, seed), resume=resume)
        return _found(pair, target, do, by, (causes, tries), memory)


def _found(
    pair: Pair,
    target: Any,
    do: Do,
    by: float,
    limits: tuple[int, int | None],
    memory: _Memory | None,
) -> Blame:
    names = (pair.a.name, pair.b.name)
    called = target if isinstance(target, str) else getattr(target, "__name__", "the metric")
    orders = [Order("a"), Order("b"), Order("a"), Order("b"), Order("units")]
    (a, _), (b, _), (again_a, _), (again_b, _), (_, units) = _counted(do, orders)
    if a.shown.startswith(RAISED):
        raise DiagnosisError(f"{called} {a.shown}, under {names[0]} already.")
    for name, one, other in ((names[0], a, again_a), (names[1], b, again_b)):
        if one.digest != other.digest:
            raise DiagnosisError(
                f"{called} is not deterministic: two runs under {name} give {one.shown} and "
                f"{other.shown}. Seed what it draws, or take the mean of several runs."
            )
    if not b.differs(a, by):
        more = f" by more than {by:g}" if by else ""
        raise DiagnosisError(
            f"{called} does not differ{more} between {names[0]} ({a.shown}) and {names[1]} "
            f"({b.shown}), so there is nothing to blame."
        )
    search = _Search(do, units, by, memory)
    remembered = 0 if memory is None else len(memory.known)
    search.a = a
    _check_watched(search, units, (a, b), by, called)
    found: list[Cause] = []
    left = list(units)
    without = search.outcome(left)
    while without.differs(a, by) and len(found) < limits[0] and left:
        some, known = smallest(left, search.shows, limits[1], search.first)
        if not some:
            break
        found.append(Cause(tuple(some), search.outcome(some), known))
        left = [u for u in left if u not in set(some)]
        without = search.outcome(left)
    return Blame(
        called, names, a, b, len(units), tuple(found), without,
        not without.differs(a, by), search.trials, remembered,
    )  # fmt: skip


def _counted(do: Do, orders: Sequence[Order]) -> Iterator[Answer]:
    """Yield the answers to orders; say before each which one it is."""
    answers = do(orders)
    for number in range(len(orders)):
        tell(f"run {number + 1} of {len(orders)} before the trials")
        yield next(answers)


def _check_watched(
    search: _Search, units: Sequence[Unit], ends: tuple[Outcome, Outcome], by: float, called: str
) -> None:
    """See to it that trials with nothing and with everything from b end as a and b do.

    A journal of other sources would contradict this as well.
    """
    a, b = ends
    none, every = search.outcomes([(), units])
    if none.digest == a.digest and every.differs(a, by):
        return
    if none.digest != a.digest:
        what = f"{none.shown} instead of {a.shown}, with nothing swapped"
    else:
        what = f"{every.shown} instead of {b.shown}, with every function of {len(units)} swapped"
    raise DiagnosisError(
        f"The difference of {called} cannot be taken apart: watched operator by operator, it gives "
        f"{what}. Compiled code, processes of its own, and code that calls no operator of torch "
        "are not seen; or the journal is of another state of the files. Blame an eager run."
    )


# How runs are done -------------------------------------------------------------------


@contextlib.contextmanager
def _doing(
    pair: Pair, target: Any, seed: int, workers: int | None, scheduler: str | None
) -> Iterator[Do]:
    if callable(target):
        if workers is not None or scheduler is not None:
            raise DiagnosisError(
                "A function of this process cannot run in other ones. Name it as a text: "
                "'model.py:metric'."
            )
        run = functools.partial(measured, target, seed)
        yield lambda orders: (done(pair, run, order) for order in orders)
        return
    if not isinstance(target, str):
        raise DiagnosisError(f"{target!r} is neither a function nor the name of one.")
    where = _checked(target)
    if scheduler is not None:
        from pytest_udftorch.prove.verify.workers import cluster

        with cluster(0, scheduler) as dask:
            yield functools.partial(_by_dask, dask, _target(pair, where, seed))
        return
    from pytest_udftorch.prove.verify.workers import default_workers

    if workers is not None and workers < 1:
        raise DiagnosisError(f"{workers} processes run nothing. Give 1 or more.")
    count = workers or default_workers()
    with ThreadPoolExecutor(count) as pool, contextlib.ExitStack() as stack:
        idle = [Runner() for _ in range(count)]
        for runner in idle:
            stack.callback(runner.close)
        yield functools.partial(_by_threads, pool, idle, _target(pair, where, seed))


def _checked(where: str) -> str:
    """Refuse what names neither a test nor a function of a file."""
    file = where.partition("::")[0] if "::" in where else where.rpartition(":")[0]
    if not file:
        raise DiagnosisError(
            f"{where!r} names neither a metric nor a test. Write model.py:metric or "
            "tests/test_x.py::test_y."
        )
    if not Path(file).is_file():
        raise DiagnosisError(f"There is no file {file} to run.")
    return where


def _target(pair: Pair, where: str, seed: int) -> Target:
    a, b = ("std" if one.stock else str(one.folder) for one in (pair.a, pair.b))
    return Target(where, str(Path.cwd()), a, b, seed)


def _by_threads(
    pool: ThreadPoolExecutor, idle: list[Runner], target: Target, orders: Sequence[Order]
) -> Iterator[Answer]:
    def one(order: Order) -> Answer:
        runner = idle.pop()
        try:
            return runner(target, order)
        finally:
            idle.append(runner)

    futures = [pool.submit(one, order) for order in orders]
    try:
        for future in futures:
            yield future.result()
    finally:
        # Those behind the first that shows a difference are not needed.
        for future in futures:
            future.cancel()


def _by_dask(dask: Any, target: Target, orders: Sequence[Order]) -> Iterator[Answer]:
    futures = [dask.submit(remotely, target, order, pure=False) for order in orders]
    try:
        for future in futures:
            yield future.result()
    finally:
        dask.cancel(futures)


def _name(pair: Pair, target: Any, seed: int) -> dict[str, Any]:
    """Return what a search must share with an earlier one to go on with its journal."""
    if not isinstance(target, str):
        raise DiagnosisError(
            "A journal is for a target that is named, 'model.py:metric' or a test: nobody can "
            "tell whether a function of this process is the same next time."
        )
    file = Path(target.partition("::")[0] if "::" in target else target.rpartition(":")[0])
    return {
        "target": target,
        "source": hashlib.sha256(file.read_bytes()).hexdigest(),
        "a": _identity(pair.a),
        "b": _identity(pair.b),
        "seed": seed,
    }


def _identity(library: Any) -> str:
    """Return the name of a library, and a digest of its files."""
    digest = hashlib.sha256()
    for folder in () if library.stock else (library.folder, *library.inherited):
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            digest.update(f"{path.relative_to(folder)}\n".encode())
            digest.update(path.read_bytes())
    return f"{library.name} {digest.hexdigest()[:16]}"
