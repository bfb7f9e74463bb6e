# SPDX-License-Identifier: Apache-2.0
"""Find the cheapest library for each function and layer that keeps a metric."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pytest_udftorch.diagnose.runs.switch import (
    EVERY,
    Assignment,
    Site,
    assigned,
    counting,
    sessions,
)
from pytest_udftorch.diagnose.tolerance.cost import costs
from pytest_udftorch.diagnose.tolerance.result import Need, Tolerance
from pytest_udftorch.diagnose.tolerance.search import Search
from pytest_udftorch.diagnose.tolerance.trials import Metric, Trials, measured, metric_of, near
from pytest_udftorch.errors import DiagnosisError
from pytest_udftorch.swap.library.description import find_library

#: 24 bits, which are correctly rounded, down to 8.
LADDER: Final = ("corem", "ladder-20", "ladder-16", "ladder-12", "ladder-10", "ladder-8")


# Each option of a search is a parameter.
def cheapest_libraries(  # noqa: PLR0913
    metric: str | Metric,
    *,
    within: float,
    held_out: str | Metric | None = None,
    ladder: Sequence[str] = LADDER,
    functions: Sequence[str] | None = None,
    by_layer: bool = True,
    cost: Literal["time", "rank"] = "time",
    seed: int = 0,
    workers: int = 0,
    scheduler: str | None = None,
    journal: str | Path | None = None,
    resume: bool = False,
) -> Tolerance:
    """Find the cheapest library for each function and layer that keeps a metric within a bound.

    Delta debugging from rung to rung (Rubio-González et al., Precimonious, SC 2013), and a greedy
    that lowers what saves most first; the cheaper answer is run again, on held-out data too.

    Args:
        metric: a function without parameters that runs a model and returns a number, such as the
            loss over a set of data; or ``model.py:metric``. It runs on the CPU, eagerly.
        within: how far it may lie from its value under the first library.
        held_out: the same on data that the search does not see; it only judges the answer.
        ladder: names of libraries, the most exact first.
        functions: which; by default all that every library of the ladder has.
        by_layer: whether layers may differ; otherwise one library serves a function everywhere.
        cost: what is to be low: the functions' time, or the rank in the ladder, for libraries that
            stand for number formats and are no quicker here.
        seed: of torch's random numbers, the same for each run.
        workers: processes that run at once; 0: this one alone. They need a metric by name.
        scheduler: the address of a dask scheduler instead.
        journal: a file that keeps the value of every run.
        resume: go on with the journal.

    Raises:
        DiagnosisError: an option means nothing, the metric gives no number or is not repeatable,
            no function of the ladder is evaluated, or the journal cannot be used.
        UdfError: as from building the libraries and opening sessions.
    """
    names = _functions(ladder, functions)
    if not within >= 0 or math.isinf(within):
        raise DiagnosisError(f"within={within} is not a bound. Give 0 or more.")
    if cost not in ("time", "rank"):
        raise DiagnosisError(f"cost={cost!r} is neither 'time' nor 'rank'.")
    if workers < 0:
        raise DiagnosisError(f"workers={workers} is not a number of processes. Give 0 or more.")
    if (workers or scheduler) and not isinstance(metric, str):
        raise DiagnosisError(
            "Other processes need the metric by name, such as 'model.py:metric'. Give it so, or "
            "leave out workers and scheduler."
        )
    counts = _counts(metric, names, ladder[0], seed, by_layer)
    prices = {name: costs(name, tuple(ladder)) for name in {s.function for s in counts}}

    def price(site: Site, library: str) -> float:
        if cost == "rank":
            return float(counts[site] * -list(ladder).index(library))
        return counts[site] * prices[site.function][library]

    about = {
        "metric": metric if isinstance(metric, str) else getattr(metric, "__qualname__", "?"),
        "ladder": list(ladder),
        "seed": seed,
        "sites": [list(site) for site in counts],
    }
    with _client(workers, scheduler) as client:
        path = None if journal is None else Path(journal)
        trials = Trials(metric, seed, path, resume, client, about)
        at_once = 1 if client is None else max(1, len(client.ncores()))
        exact = dict.fromkeys(counts, ladder[0])
        reference = trials(exact)
        _check_repeatable(reference, trials.again(exact))

        def holds(assignments: Sequence[Assignment]) -> list[bool]:
            return [near(v, reference, within) for v in trials.several(assignments)]

        best = Search(list(counts), ladder, price, holds, at_once).cheapest()
        value = trials.again(best)
    judged = None
    if held_out is not None:
        judged = (_value(held_out, seed, exact), _value(held_out, seed, best))
    needs = tuple(
        Need(*site, best[site], count, *(prices[site.function][n] for n in (ladder[0], best[site])))
        for site, count in counts.items()
    )
    return Tolerance(needs, tuple(ladder), reference, value, within, judged, trials.runs)


def _functions(ladder: Sequence[str], functions: Sequence[str] | None) -> tuple[str, ...]:
    """Return the functions that every library of the ladder has."""
    if isinstance(ladder, str) or len(ladder) < 2 or len(set(ladder)) < len(ladder):
        raise DiagnosisError(
            f"ladder={ladder!r} is not a ladder. Name two libraries or more, each once, the most "
            "exact first."
        )
    found = [find_library(name) for name in ladder]
    for one in found:
        if one.stock:
            raise DiagnosisError(
                f"{one.name!r} has no functions of its own whose time could be measured. Begin "
                "the ladder with corem."
            )
    common = [f for f in found[0].function_names if all(f in one.function_names for one in found)]
    wanted = common if functions is None else list(functions)
    for name in wanted:
        for one in found:
            one.select((name,))
    if not wanted:
        raise DiagnosisError(f"The libraries {', '.join(ladder)} have no function in common.")
    return tuple(wanted)


def _counts(
    metric: str | Metric, names: Sequence[str], library: str, seed: int, by_layer: bool
) -> dict[Site, int]:
    """Return site -> evaluations of a run."""
    with sessions(dict.fromkeys(names, library)):
        # The first run may also make what later ones find made.
        measured(metric_of(metric), seed)
        with counting(names) as found:
            measured(metric_of(metric), seed)
    if not found:
        raise DiagnosisError(
            f"The metric evaluates none of {', '.join(names)}, so there is nothing to choose. "
            "Only operators on the CPU in this thread are seen, and none in compiled code."
        )
    if by_layer:
        return found
    summed: dict[Site, int] = {}
    for site, count in found.items():
        whole = Site(site.function, EVERY)
        summed[whole] = summed.get(whole, 0) + count
    return summed


def _check_repeatable(first: float, second: float) -> None:
    if math.isnan(first):
        raise DiagnosisError(
            "The metric is NaN under the most exact library, so no bound holds. Look for the first "
            "NaN with `udftorch diff --origin nan`."
        )
    if first != second:
        raise DiagnosisError(
            f"The metric is not repeatable: {first!r}, then {second!r} from the same seed. What it "
            "draws has to come from torch's generator, and what it trains from a fresh copy."
        )


def _value(metric: str | Metric, seed: int, assignment: Assignment) -> float:
    with assigned(assignment):
        return measured(metric_of(metric), seed)


def _client(workers: int, scheduler: str | None) -> contextlib.AbstractContextManager[Any]:
    if not workers and scheduler is None:
        return contextlib.nullcontext()
    from pytest_udftorch.prove.verify.workers import cluster

    return cluster(workers, scheduler)
