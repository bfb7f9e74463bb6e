# SPDX-License-Identifier: Apache-2.0
"""An overridden operator is like torch's own: shapes, strides, dtypes, errors and their words.

The calls are those of torch's own test database: each form of an operator, forwards, backwards,
forward over reverse, mapped, in place, with ``out=``, laid out otherwise, and with arguments that
torch refuses. They are made without a session and in one of each library.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pytest_udftorch import operator_udf, patched, stock
from tests.operator_forms import (
    FEW,
    Outcome,
    calling,
    differences,
    errors,
    forms,
    is_no_farther,
    mistakes,
    name_of,
    overridden,
    samples,
)

LIBRARIES = {
    "std": ("std", {}), "corem": ("corem", {}), "composites": ("corem", {"composites": True}),
    "repro": ("repro", {}),
}  # fmt: skip

#: Forms in which stock itself reads or leaves memory that nobody wrote.
UNWRITTEN = {
    # oneDNN's GELU does not know of gaps between the elements of its result.
    ("nn.functional.gelu", "out, with gaps"),
}


@dataclass(frozen=True)
class Case:
    """A sample of an operator.

    Attributes:
        op: the operator; ``draws`` says whether it draws random numbers.
        dtype: that of the sample.
        sample: its arguments; None for the operator's errors.
    """

    op: Any
    draws: bool
    dtype: torch.dtype
    sample: Any


Results = dict[tuple[int, str], Outcome]


def made(dtypes: tuple[torch.dtype, ...], limit: int | None, names: Any = None) -> list[Case]:
    found = []
    for op, draws in calling(overridden()):
        if names and op.name not in names:
            continue
        for dtype in dtypes:
            found += [Case(op, draws, dtype, s) for s in samples(op, dtype, limit)]
        found.append(Case(op, draws, dtypes[0], None))
    return found


def outcomes(cases: list[Case]) -> Results:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for at, case in enumerate(cases):
            if case.sample is None:
                found.update({(at, form): o for form, o in errors(case.op)})
                continue
            found.update({(at, form): o for form, o in forms(case.op, case.sample)})
            odd = mistakes(case.op, case.sample)
            found.update({(at, f"with {form}"): o for form, o in odd})
    return found


def unlike(cases: list[Case], ours: Results, theirs: Results) -> list[str]:
    """Return what is not like stock's: operator, form, and how."""
    assert ours.keys() == theirs.keys()
    found = []
    for (at, form), stocks in theirs.items():
        case, one = cases[at], ours[at, form]
        if (case.op.name, form) in UNWRITTEN:
            continue
        # What a mistake gives says nothing, if torch takes it at all.
        numbers = case.sample is not None and not case.draws and not form.startswith("with ")
        how = differences(one, stocks, case.dtype if numbers else None)
        if how and one.seen == stocks.seen:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if is_no_farther(one, stocks, case.op, case.sample, form):
                    continue
        if how:
            found.append(f"{name_of(case.op)} {case.dtype}, {form}: {how}")
    return found


@pytest.fixture(scope="module")
def stocks():
    cases = made((torch.float32, torch.bfloat16), FEW)
    return cases, outcomes(cases)


@pytest.mark.parametrize("library", LIBRARIES)
def test_operators_under_a_session_are_like_torchs(stocks, library):
    cases, theirs = stocks
    name, options = LIBRARIES[library]
    with patched(name, **options):
        ours = outcomes(cases)
    assert not unlike(cases, ours, theirs)
    seen = Counter(form.partition(" ")[0] for _, form in theirs)
    assert len({case.op.name for case in cases}) > 150
    assert min(seen[form] for form in ("plain", "reverse", "in", "out", "vmap", "error")) > 20
