# SPDX-License-Identifier: Apache-2.0
"""Runs of a metric under assignments: cached, kept in a journal, and several at once."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.diagnose.runs.switch import Assignment, Site, assigned
from pytest_udftorch.errors import DiagnosisError, UdfError

_FORMAT: Final = "udftorch-tolerance-journal-1"

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
        DiagnosisError: the journal is there and nobody resumes it, cannot be written, or belongs
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
        self._journal = journal
        self.values: dict[str, float] = {}
        self.runs = 0
        if journal is not None:
            self._begin(journal, resume, {"format": _FORMAT, **about})

    def _begin(self, journal: Path, resume: bool, head: dict[str, Any]) -> None:
        try:
            if resume and journal.exists():
                first, *lines = journal.read_text(encoding="utf-8").splitlines() or [""]
                known = _row(first)
                if known != json.loads(json.dumps(head)):
                    raise DiagnosisError(
                        f"{journal} belongs to another search. Name another journal, or leave out "
                        "--resume and remove it."
                    )
                # A line that a crash cut short is run again.
                rows = filter(None, map(_row, lines))
                self.values = {json.dumps(r["assignment"]): r["value"] for r in rows}
                return
            with journal.open("x", encoding="utf-8") as file:
                file.write(json.dumps(head) + "\n")
        except FileExistsError:
            raise DiagnosisError(
                f"There is a journal {journal} already. Go on with --resume, or remove it."
            ) from None
        except OSError as error:
            raise DiagnosisError(
                f"The journal {journal} cannot be written: {error.strerror}. Name a file in a "
                "folder that exists and can be written."
            ) from error

    def __call__(self, assignment: Assignment) -> float:
        """Return the metric's value, from the journal or from a run."""
        return self.several([assignment])[0]

    def several(self, assignments: Sequence[Assignment]) -> list[float]:
        """Return the metric's values under several assignments."""
        keys = [json.dumps(plain(a)) for a in assignments]
        todo = [key for key in dict.fromkeys(keys) if key not in self.values]
        for key, value in zip(todo, self._run([json.loads(k) for k in todo]), strict=True):
            self.values[key] = value
            self._note(key, value)
        return [self.values[key] for key in keys]

    def again(self, assignment: Assignment) -> float:
        """Return the metric's value from a new run."""
        self.runs += 1
        return trial(self._where, self._seed, plain(assignment))

    def _run(self, todo: Sequence[Any]) -> Iterator[float]:
        self.runs += len(todo)
        if self._client is None or len(todo) < 2:
            yield from (trial(self._where, self._seed, rows) for rows in todo)
            return
        futures = self._client.map(
            trial, [self._where] * len(todo), [self._seed] * len(todo), todo, pure=False
        )
        yield from self._client.gather(futures)

    def _note(self, key: str, value: float) -> None:
        if self._journal is None:
            return
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"assignment": json.loads(key), "value": value}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _row(line: str) -> Any:
    with contextlib.suppress(ValueError):
        return json.loads(line)
    return None


def near(value: float, reference: float, within: float) -> bool:
    """Tell whether a metric is within a bound of the reference; NaN is not."""
    return not math.isnan(value) and abs(value - reference) <= within
