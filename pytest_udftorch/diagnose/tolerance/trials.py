# SPDX-License-Identifier: Apache-2.0
"""Runs of a metric under assignments: cached, kept in a journal, and several at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.diagnose.runs.switch import Assignment, Site, assigned
from pytest_udftorch.errors import DiagnosisError, UdfError
from pytest_udftorch.swap.toolchain.progress import tell

_OTHER: Final = (
    "{path} belongs to another search. Name another journal, or leave out --resume and remove it."
)
_UNWRITTEN: Final = (
    "The journal {path} cannot be written: {error.strerror}. Name a file in a folder that exists "
    "and can be written."
)
_VALUE: Final = shapes.record(
    {"assignment": shapes.each(shapes.each(shapes.text())), "value": shapes.of(float)}, closed=True
)

Metric = Callable[[], Any]


def metric_of(where: str | Metric) -> Metric:
    """Return the metric that ``model.py:metric`` names, or the callable itself.

    Raises:
        CoverageError: there is no such function.
    """
    if callable(where):
        return where
    from pytest_udftorch.diagnose.runs.files import load_make

    return load_make(where)


def measured(metric: Metric, seed: int) -> float:
    """Call a metric with seeded generators.

    Raises:
        DiagnosisError: it fails, or does not give one number.
    """
    import torch

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            value = float(metric())
    except UdfError:
        raise
    except Exception as error:
        raise DiagnosisError(
            f"The metric failed: {type(error).__name__}: {error}. It has to be a function without "
            "parameters that returns a number."
        ) from error
    return value


def plain(assignment: Assignment) -> list[list[str]]:
    """Return an assignment as plain data, in one order."""
    return sorted([*site, library] for site, library in assignment.items())


def trial(where: str | Metric, seed: int, rows: Sequence[Sequence[str]]) -> float:
    """Run the metric under an assignment; a worker of dask calls this."""
    with assigned({Site(f, layer): library for f, layer, library in rows}):
        return measured(metric_of(where), seed)


class _Values(Journal):
    """Values of a metric, by the text of an assignment."""

    kind = "tolerance"
    words = Words(
        unusable=_UNWRITTEN,
        full=_UNWRITTEN,
        foreign=_OTHER,
        other=_OTHER,
        unfinished="There is a journal {path} already. Go on with --resume, or remove it.",
    )
    finite = False

    def __init__(self, path: Path, about: Mapping[str, Any], *, resume: bool) -> None:
        self.known: dict[str, float] = {}
        super().__init__(path, about, resume=resume)

    def read(self, payload: dict[str, Any]) -> None:
        _VALUE(payload, "the line")
        self.known[json.dumps(payload["assignment"])] = payload["value"]


class Trials:
    """Values of a metric by assignment.

    Args:
        where: the metric.
        seed: of its random numbers.
        journal: keeps every value, a line each; or None.
        resume: take over the values of the journal.
        client: of dask.distributed, which runs several assignments at once; or None.
        about: what has to be the same if a journal is to be used again.

    Raises:
        JournalError: the journal is there and nobody resumes it, cannot be written, or belongs
            to something else.
    """

    def __init__(
        self,
        where: str | Metric,
        seed: int,
        journal: Path | None,
        resume: bool,
        client: Any,
        about: Mapping[str, Any],
    ) -> None:
        self._where, self._seed, self._client = where, seed, client
        self._journal = None if journal is None else _Values(journal, about, resume=resume)
        self.values = {} if self._journal is None else self._journal.known
        self.runs = 0

    def __call__(self, assignment: Assignment) -> float:
        """Return the metric's value, from the journal or from a run."""
        return self.several([assignment])[0]

    def several(self, assignments: Sequence[Assignment]) -> list[float]:
        """Return the metric's values under several assignments."""
        keys = [json.dumps(plain(a)) for a in assignments]
        todo = [key for key in dict.fromkeys(keys) if key not in self.values]
        for key, value in zip(todo, self._run([json.loads(k) for k in todo]), strict=True):
            self.values[key] = value
            if self._journal is not None:
                self._journal.add({"assignment": json.loads(key), "value": value})
        return [self.values[key] for key in keys]

    def again(self, assignment: Assignment) -> float:
        """Return the metric's value from a new run."""
        self.runs += 1
        tell(f"run {self.runs}, once more")
        return trial(self._where, self._seed, plain(assignment))

    def _run(self, todo: Sequence[Any]) -> Iterator[float]:
        first, self.runs = self.runs + 1, self.runs + len(todo)
        if self._client is None or len(todo) < 2:
            for number, rows in enumerate(todo, first):
                tell(f"run {number}")
                yield trial(self._where, self._seed, rows)
            return
        tell(f"runs {first} to {self.runs}")
        futures = self._client.map(
            trial, [self._where] * len(todo), [self._seed] * len(todo), todo, pure=False
        )
        yield from self._client.gather(futures)


def near(value: float, reference: float, within: float) -> bool:
    """Tell whether a metric is within a bound of the reference; NaN is not."""
    return not math.isnan(value) and abs(value - reference) <= within
