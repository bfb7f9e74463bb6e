# SPDX-License-Identifier: Apache-2.0
"""What can be compared: rows of figures, whatever file they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from pytest_udftorch.base.units import time_text, value_text
from pytest_udftorch.prove.exact.formats import FORMATS
from pytest_udftorch.prove.exact.rounding import ulp_distance
from pytest_udftorch.prove.verify.certificate import ulp_text

Kind: TypeAlias = Literal["profile", "bench", "certificate"]
#: Names of a row: a test and a function, or one of them.
Key: TypeAlias = tuple[str, ...]

#: Stands for a test in the rows over all of them.
ALL_TESTS: Final = "(all tests)"


@dataclass(frozen=True)
class Figures:
    """What one file, or one run, says.

    Attributes:
        label: what it is called in tables.
        kind: what sort of figures these are.
        rows: name of a row -> name of a quantity -> its value.
        about: facts about machine and versions; those that differ are shown.
    """

    label: str
    kind: Kind
    rows: Mapping[Key, Mapping[str, Any]]
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """How far a value moved.

    Attributes:
        amount: in the unit of the quantity; positive is more. None if the two have nothing in
            common that could be compared.
        share: the amount as a share of the first value; None where that has no meaning.
        text: for a table; empty if nothing changed.
    """

    amount: float | None
    share: float | None
    text: str


@dataclass(frozen=True)
class Quantity:
    """A kind of figure.

    Attributes:
        title: of its column.
        limit: the word in ``--udf-compare-fail`` that bounds it.
        step: how far the second value is from the first.
        shown: a value as text.
        either: a change to less counts as well as one to more.
        absent: the value in a row that is missing; None if a missing row has none.
    """

    title: str
    limit: str
    step: Callable[[Any, Any], Step]
    shown: Callable[[Any], str]
    either: bool = False
    absent: Any = None


def _percent(share: float) -> str:
    text = f"{100 * share:+.1f} %"
    return text if abs(share) < 10 else f"x{1 + share:.3g}"


def _number_step(old: float, new: float) -> Step:
    if old == new:
        return Step(0.0, 0.0, "")
    share = (new - old) / old if old else math.inf
    text = _percent(share) if old else "new"
    return Step(new - old, share, "gone" if not new else text)


def _time_step(old: Mapping[str, float], new: Mapping[str, float]) -> Step:
    step = _number_step(old["ns"], new["ns"])
    inside = "low" in old and "low" in new and (
        new["low"] <= old["high"] and old["low"] <= new["high"]
    )  # fmt: skip
    # Samples whose middle halves overlap do not say which is faster.
    return (
        Step(0.0, 0.0, f"{step.text}, within the spread" if step.text else "") if inside else step
    )


def _sides(limits: tuple[float, float] | None) -> tuple[float, float]:
    """Return the largest magnitudes below and above zero."""
    low, high = limits or (0.0, 0.0)
    return max(0.0, -low), max(0.0, high)


def _range_step(old: tuple[float, float] | None, new: tuple[float, float] | None) -> Step:
    """Measure growth in binades: how many factors of two the larger side gained."""
    growth = []
    for before, now in zip(_sides(old), _sides(new), strict=True):
        if before == now:
            growth.append(0.0)
        elif not before or now == math.inf:
            growth.append(math.inf)
        elif not now or before == math.inf:
            growth.append(-math.inf)
        else:
            growth.append(math.log2(now / before))
    amount = max(growth) if max(growth) > 0 else min(growth)
    if old == new:
        return Step(0.0, None, "")
    if math.isinf(amount):
        return Step(amount, None, "new side" if amount > 0 else "smaller")
    text = "other small values" if not amount else f"{amount:+.2g} binades"
    return Step(amount, None, text)


def _limits_text(limits: tuple[float, float] | None) -> str:
    return "-" if limits is None else " … ".join(map(value_text, limits))


def _outputs_step(old: Mapping[str, str], new: Mapping[str, str]) -> Step:
    """Return by how many ULP results moved at the inputs that both have."""
    common = [x for x in old if x in new]
    if not common:
        return Step(None, None, "")
    fmt = FORMATS["float32" if len(old[common[0]]) == 8 else "float64"]
    before, now = (
        np.array([int(values[x], 16) for x in common], fmt.dtype).view(f"f{fmt.bits // 8}")
        for values in (old, new)
    )
    steps = ulp_distance(before, now)
    amount = float(steps.max())
    if amount >= 2.0**63:
        return Step(math.inf, None, "NaN in one")
    return Step(amount, None, f"{amount:,.0f} ULP" if amount else "")


def _outputs_text(outputs: Mapping[str, str]) -> str:
    return f"{len(outputs)} results"


def _count_text(count: float) -> str:
    return f"{count:,}"


#: Name -> quantity, in the order of the tables.
QUANTITIES: Final = {
    "operator_calls": Quantity(
        "operator calls", "count", _number_step, _count_text, either=True, absent=0
    ),
    "elements": Quantity("elements", "count", _number_step, _count_text, either=True, absent=0),
    "in": Quantity("range in", "range", _range_step, _limits_text),
    "out": Quantity("range out", "range", _range_step, _limits_text),
    "nan": Quantity("NaN made", "nan", _number_step, _count_text),
    "inf": Quantity("infinities made", "inf", _number_step, _count_text),
    "outputs": Quantity("results", "ulp", _outputs_step, _outputs_text),
    "time": Quantity("time", "time", _time_step, lambda time: time_text(time["ns"])),
    "against": Quantity("against the claim", "wrong", _number_step, _count_text),
    "wrong": Quantity("not correctly rounded", "wrong", _number_step, _count_text),
    "ulp": Quantity("largest error, ULP", "ulp", _number_step, ulp_text),
}
