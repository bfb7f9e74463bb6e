# SPDX-License-Identifier: Apache-2.0
"""Run a model many times under small random errors, and see how many bits hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, get_args

from pytest_udftorch.diagnose.runs.other_process import Subject
from pytest_udftorch.diagnose.runs.sides import Side, side
from pytest_udftorch.diagnose.runs.work import Work, run, work_of
from pytest_udftorch.diagnose.sensitivity.digits import PROBABILITY
from pytest_udftorch.diagnose.sensitivity.observation import Book, Watched, watching
from pytest_udftorch.diagnose.sensitivity.perturbation import Perturbation
from pytest_udftorch.diagnose.sensitivity.result import Digits, Sensitivity
from pytest_udftorch.diagnose.sensitivity.seeds import stochastic
from pytest_udftorch.errors import DiagnosisError, nearest
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.toolchain.progress import tell

What = Literal["functions", "operators", "both"]

#: Runs by default: the interval of an estimate is then about one bit wide.
SAMPLES: Final = 16

#: Fewer samples have intervals of several bits.
FEWEST: Final = 3


# Each option of a run is a parameter.
def significant_bits(  # noqa: PLR0913
    model: Any = None,
    inputs: Any = (),
    *,
    perturb: What = "both",
    functions: Sequence[str] | None = None,
    operators: Sequence[str] | None = None,
    samples: int = SAMPLES,
    on: Side | str = "eager",
    make: Callable[[], Any] | str | None = None,
    train: bool | None = None,
    steps: int = 1,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
    probability: float = PROBABILITY,
) -> Sensitivity:
    """Count the significant bits of every layer's output, and find where they are lost.

    The model runs ``samples`` times from the same state and inputs, each time with other rounding
    errors: Monte Carlo arithmetic (Parker, UCLA CSD-970002, 1997). The number of significant bits
    and its interval are those of Sohier et al. (ACM Trans. Math. Softw. 47(2), 2021) under a
    centered normal distribution of the error.

    Args:
        model: a module or a callable; it is copied for every run and left as it is.
        inputs: its positional arguments, a dictionary of keyword arguments, or one tensor.
        perturb: ``"functions"``: each inexact result of a swapped function goes up or down (the
            library ``stochastic``, on the CPU in float32); ``"operators"``: each inexact result of
            an operator goes up or down by one unit in the last place, on any device and in any
            type; ``"both"``.
        functions: which functions; by default all.
        operators: which operators, by name (``"mm"``, ``"aten::mm"``); by default all.
        samples: runs, 3 or more.
        on: a :class:`pytest_udftorch.diagnose.Side`, or its text, that says how the runs are done,
            such as ``"cuda"`` or ``"dtype=bfloat16"``; not compiled.
        make: instead of model and inputs; see :func:`pytest_udftorch.diagnose.first_difference`.
        train: whether loss, backward pass and optimizer follow; by default in training mode.
        steps: of training, or forward passes.
        loss: makes a number of what the model gives.
        optimizer: makes an optimizer of a list of parameters.
        seed: of the random numbers of all runs; they differ in their errors alone.
        probability: with which the bits of one run are significant.

    Raises:
        DiagnosisError: an option means nothing, or nothing would be perturbed.
        DiagnosisError, RunError: as from ``first_difference``.
        UdfError: as from opening a session.
    """
    _check(perturb, functions, operators, samples, probability)
    one = _steady(side(on), perturb)
    if make is None and model is not None:
        make = work_of(model, inputs)
    if make is None:
        raise DiagnosisError("There is nothing to run. Give a model and its inputs, or make=.")
    work = Work(
        Subject(make) if isinstance(make, str) else make, seed, train, steps, loss, optimizer
    )
    names = None if operators is None else frozenset(_base(o) for o in operators)
    still = Book()
    for number in (1, 2):
        tell(f"run {number} of {samples + 2}, unperturbed")
        _sample(work, one, still, None)
    if not still.operators:
        raise DiagnosisError("The run calls no operator, so there is nothing to watch.")
    book, changed = Book(), 0
    for number in range(1, samples + 1):
        tell(f"run {number + 2} of {samples + 2}")
        own, perturbation = one, None
        if perturb != "operators":
            own = replace(one, around=_library(number, functions))
        if perturb != "functions":
            perturbation = Perturbation(number, names)
        _sample(work, own, book, perturbation)
        if perturbation is not None:
            changed += perturbation.changed
            book.unseen |= perturbation.unseen
    if names is not None and perturb == "operators" and not changed:
        raise DiagnosisError(
            f"The run calls none of {', '.join(sorted(names))}, or none whose results can change, "
            "so nothing was perturbed. Name operators that it calls, such as "
            f"{_base(still.operators[-1].name)}."
        )
    return _report(book, still, _words(perturb, functions, names), probability)


def _check(
    perturb: str,
    functions: Sequence[str] | None,
    operators: Sequence[str] | None,
    samples: int,
    probability: float,
) -> None:
    if perturb not in get_args(What):
        raise DiagnosisError(f"perturb={perturb!r}: {nearest(perturb, get_args(What))}")
    if samples < FEWEST:
        raise DiagnosisError(
            f"samples={samples} say nothing about a spread. Give {FEWEST} or more; {SAMPLES} is "
            "the default."
        )
    if not 0.5 <= probability < 1:
        raise DiagnosisError(f"probability={probability} does not lie in [0.5, 1).")
    for given, word in ((functions, "functions"), (operators, "operators")):
        if given is not None and perturb not in (word, "both"):
            raise DiagnosisError(
                f"{word} are named, but perturb={perturb!r} leaves them alone. Leave out one."
            )
        if isinstance(given, str) or (given is not None and not given):
            raise DiagnosisError(f"{word}={given!r} is not a sequence of names. Give ('exp',).")


def _steady(one: Side, perturb: str) -> Side:
    """Refuse sides whose operators nobody sees, or which have functions of their own."""
    if one.compiled or one.elsewhere or one.record is not None or one.row is not None:
        raise DiagnosisError(
            f"{one.name!r} cannot be watched: perturbed runs are eager, of whole batches, and in "
            "this process. Compiled code keeps the results that it was compiled with."
        )
    if perturb != "operators" and (one.library is not None or one.around is not None):
        raise DiagnosisError(
            f"{one.name!r} has a library or a context of its own, and the library 'stochastic' "
            "would take its place. Use perturb='operators', or leave it out."
        )
    return one


def _library(
    seed: int, functions: Sequence[str] | None
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    return lambda: stochastic(seed, functions)


def _base(operator: str) -> str:
    """Return ``add`` of ``aten::add_.Tensor``."""
    return operator.rpartition("::")[2].partition(".")[0].removesuffix("_")


def _sample(work: Work, one: Side, book: Book, perturbation: Perturbation | None) -> None:
    def mode(where: Whereabouts) -> Any:
        return watching(where, book, perturbation)

    recording = run(work, one, values=True, mode_of=mode)
    book.end_run(recording.values)


def _words(perturb: str, functions: Sequence[str] | None, operators: frozenset[str] | None) -> str:
    parts = []
    if perturb != "operators":
        which = "every function" if functions is None else ", ".join(functions)
        parts.append(f"each inexact result of {which} up or down")
    if perturb != "functions":
        which = "every operator" if operators is None else ", ".join(sorted(operators))
        parts.append(f"each inexact result of {which}, and inside it, changed by 1 ULP")
    return " and ".join(parts)


def _report(book: Book, still: Book, words: str, probability: float) -> Sensitivity:
    return Sensitivity(
        words,
        book.runs,
        probability,
        {name: samples.bits(probability) for name, samples in book.results.items()},
        tuple(_rows(book.layers, probability)),
        tuple(_rows(book.operators, probability)),
        _unsteady(still),
        _parted(book),
        tuple(sorted(book.unseen)),
    )


def _rows(watched: list[Watched], probability: float) -> Iterator[Digits]:
    for at, one in enumerate(watched):
        before = [s.bits(probability) for s in one.inputs]
        after = [s.bits(probability) for s in one.outputs]
        if after:
            worst = min(before, key=lambda b: b.bits, default=None)
            fewest = min(after, key=lambda b: b.bits)
            yield Digits(one.name, one.place, at, worst, fewest)


def _unsteady(still: Book) -> Digits | None:
    """Return the first operator whose outputs change from equal inputs in unperturbed runs."""
    for at, one in enumerate(still.operators):
        if any(s.moved() for s in one.outputs) and not any(s.moved() for s in one.inputs):
            return next(_rows([one], PROBABILITY), None) and replace(
                next(_rows([one], PROBABILITY)), call=at
            )
    return None


def _parted(book: Book) -> str:
    if book.parted is None:
        return ""
    at, there, here, place = book.parted
    what = f"{here} where it was {there}" if there != here else f"{here} with other shapes"
    return (
        f"The perturbed runs do not call the same operators: call {at} in {place} is {what}. The "
        "control flow depends on the last bits; what follows was not counted."
    )
