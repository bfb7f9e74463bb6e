# SPDX-License-Identifier: Apache-2.0
"""Judging many candidate substitutions: on all cores or on a dask cluster, with a journal.

A journal holds a line for each candidate that was judged. A run that was interrupted, or that has
more candidates, judges only what the journal does not hold.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.base.optional import package
from pytest_udftorch.base.plain_data import shown
from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure.rewrite.taso.language import Term, show
from pytest_udftorch.measure.rewrite.taso.rules import AXIOMS, INSTANCES, Proof, judge_rule

_OTHER: Final = (
    "{path} is not a journal of judgements with these axioms: it begins with {start}. Name another "
    "file, or delete it."
)
_JUDGEMENT: Final = shapes.record(
    {
        "rule": shapes.text(),
        "by_axioms": shapes.flag,
        "by_numbers": shapes.text(),
        "why": shapes.text(),
    },
    closed=True,
)

#: Candidates that one task judges: a line of the journal is written at the latest after so many.
_TASK: Final = 16


def _name(pair: tuple[Term, Term]) -> str:
    return f"{show(pair[0])} => {show(pair[1])}"


def _alone() -> None:
    """Leave the other cores to the other processes."""
    torch.set_num_threads(1)


def _judged(pairs: Sequence[tuple[Term, Term]]) -> list[Proof]:
    return [judge_rule(*pair) for pair in pairs]


class _Judgements(Journal):
    """Proofs by the names of the rules."""

    kind = "judgements"
    words = Words(parts="proofs", foreign=_OTHER, other=_OTHER)

    def __init__(self, path: Path) -> None:
        self.known: dict[str, Proof] = {}
        axioms = hashlib.sha256(AXIOMS.read_bytes()).hexdigest()[:16]
        # What judgements depend on.
        super().__init__(path, {"axioms": axioms, "instances": INSTANCES})

    def read(self, payload: dict[str, Any]) -> None:
        _JUDGEMENT(payload, "the line")
        rule = payload.pop("rule")
        self.known[rule] = Proof(**payload)


def _on_cores(
    tasks: Sequence[Sequence[tuple[Term, Term]]], workers: int | None
) -> Iterator[tuple[int, list[Proof]]]:
    # Threads of torch do not live on in a process that is forked.
    context = multiprocessing.get_context("spawn")
    count = min(workers or len(os.sched_getaffinity(0)), len(tasks))
    with concurrent.futures.ProcessPoolExecutor(count, context, _alone) as pool:
        waiting = {pool.submit(_judged, task): number for number, task in enumerate(tasks)}
        try:
            for done in concurrent.futures.as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _on_cluster(
    tasks: Sequence[Sequence[tuple[Term, Term]]], scheduler: str
) -> Iterator[tuple[int, list[Proof]]]:
    distributed = package("distributed", "Judging on a dask cluster")
    try:
        client = distributed.Client(scheduler, timeout="10s")
    except (OSError, ValueError) as error:
        raise RewriteError(
            f"No dask scheduler answers at {shown(scheduler)}: {error}. Give its address, for "
            "instance tcp://host:8786."
        ) from error
    with client:
        waiting = {
            future: number
            for number, future in enumerate(client.map(_judged, list(tasks), pure=False))
        }
        for done in distributed.as_completed(waiting):
            yield waiting[done], done.result()


def judge_rules(
    candidates: Sequence[tuple[Term, Term]],
    *,
    journal: str | Path | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
) -> list[Proof]:
    """Judge candidate substitutions on all cores, or on a dask cluster.

    Args:
        candidates: pairs of terms.
        journal: a file of judgements: those in it are not made again, and new ones are added.
        scheduler: the address of a dask scheduler, whose workers have this package.
        workers: processes on this machine; by default one for each core.

    Returns:
        The proofs, in the order of the candidates.

    Raises:
        JournalError: the journal is another file, was made with other axioms, or cannot be used.
        RewriteError: no scheduler answers.
        PackageMissingError: z3-solver is not installed, or a scheduler is given and dask is not
            whole.
    """
    package("z3", "Proving rules of rewriting")
    kept = None if journal is None else _Judgements(Path(journal))
    known = {} if kept is None else kept.known
    new = [pair for pair in dict.fromkeys(candidates) if _name(pair) not in known]
    tasks = [new[start : start + _TASK] for start in range(0, len(new), _TASK)]
    if not tasks:
        found: Iterator[tuple[int, list[Proof]]] = iter(())
    elif scheduler is not None:
        found = _on_cluster(tasks, scheduler)
    else:
        found = _on_cores(tasks, workers)
    for number, proofs in found:
        names = list(map(_name, tasks[number]))
        known.update(zip(names, proofs, strict=True))
        if kept is not None:
            kept.add(*({"rule": n, **asdict(p)} for n, p in zip(names, proofs, strict=True)))
    return [known[_name(pair)] for pair in candidates]
