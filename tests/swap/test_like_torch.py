# SPDX-License-Identifier: Apache-2.0
"""An overridden operator is like torch's own: shapes, strides, dtypes, errors and their words.

The calls are those of torch's own test database: each form of an operator, forwards, backwards,
forward over reverse, mapped, in place, with ``out=``, laid out otherwise, and with arguments that
torch refuses. They are made without a session and in one of each library.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pytest_udftorch import operator_udf, patched, stock
from pytest_udftorch.swap.contract import cuda_layers
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
from tests.operator_samples import tree

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
        odd: whether it is called with mistakes in them, too.
    """

    op: Any
    draws: bool
    dtype: torch.dtype
    sample: Any
    odd: bool = False


Results = dict[tuple[int, str], Outcome]


@functools.cache
def operators() -> list[tuple[Any, bool]]:
    return calling(overridden())


def made(dtypes: tuple[torch.dtype, ...], limit: int | None, names: Any = None) -> list[Case]:
    found = []
    for op, draws in operators():
        if names and op.name not in names:
            continue
        for dtype in dtypes:
            each = enumerate(samples(op, dtype, limit))
            found += [Case(op, draws, dtype, s, at < FEW) for at, s in each]
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
            odd = mistakes(case.op, case.sample) if case.odd else ()
            found.update({(at, f"with {form}"): o for form, o in odd})
    return found


def unlike(cases: list[Case], ours: Results, theirs: Results) -> list[str]:
    """Return what is not like stock's: operator, form, and how."""
    found = []
    for (at, form), stocks in theirs.items():
        case, one = cases[at], ours.get((at, form), Outcome(("nothing",)))
        if (case.op.name, form) in UNWRITTEN:
            continue
        # What a mistake gives says nothing, if torch takes it at all.
        numbers = case.sample is not None and not case.draws and not form.startswith("with ")
        how = differences(one, stocks, case.dtype if numbers else None, curved="over" in form)
        if how and one.seen == stocks.seen:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if is_no_farther(one, stocks, case.op, case.sample, form):
                    continue
        if how:
            found.append(f"{name_of(case.op)} {case.dtype}, {form}: {how}")
    return found


def compare(cases: list[Case], theirs: Results, library: str) -> list[str]:
    name, options = LIBRARIES[library]
    with patched(name, **options):
        ours = outcomes(cases)
    return unlike(cases, ours, theirs)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small calls take longer with more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stocks() -> tuple[list[Case], Results]:
    """A few samples of each operator that a library overrides, and what stock makes of them."""
    cases = [*made((torch.float32,), 2), *made((torch.bfloat16,), 1)]
    return cases, outcomes(cases)


@pytest.mark.parametrize("library", [pytest.param("composites", marks=pytest.mark.slow), "repro"])
def test_operators_under_a_session_are_like_torchs(stocks, library):
    cases, theirs = stocks
    assert not compare(cases, theirs, library)
    seen = Counter(form.partition(" ")[0].rstrip(",") for _, form in theirs)
    assert len({case.op.name for case in cases}) > 150
    assert min(seen[form] for form in ("plain", "reverse", "in", "out", "vmap", "error")) > 20


DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int64,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_all_samples_in_all_dtypes_are_like_torchs(library):
    for dtype in DTYPES:
        for at in range(0, len(operators()), 24):
            cases = made((dtype,), None, {op.name for op, _ in operators()[at : at + 24]})
            assert not compare(cases, outcomes(cases), library)


# Negative controls ------------------------------------------------------------------------


@operator_udf("aten::bmm", dtypes=("float32",))
def turned(self, mat2):
    """Lays its result out in another way."""
    return stock(mat2.mT, self.mT).mT


@operator_udf("aten::bmm", dtypes=("float32",))
def off(self, mat2):
    """Is wrong in the third digit."""
    return stock(self, mat2) * 1.001


@operator_udf("aten::bmm", dtypes=("float32",))
def silent(self, mat2):
    """Takes what stock refuses."""
    n = min(self.shape[-1], mat2.shape[-2])
    return stock(self[..., :n], mat2[..., :n, :])


@operator_udf("aten::bmm", dtypes=("float32",))
def wordy(self, mat2):
    """Refuses with other words."""
    if self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError("These do not fit.")
    return stock(self, mat2)


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (turned, "bmm torch.float32, plain: "), (off, " apart"),
        (silent, "and not ('RuntimeError', 'Expected size"), (wordy, "These do not fit."),
    ],
)  # fmt: skip
def test_an_operator_that_is_not_like_torchs_is_found(library, said):
    cases = made((torch.float32,), 2, {"bmm"})
    theirs = outcomes(cases)
    with patched(library):
        found = unlike(cases, outcomes(cases), theirs)
    assert any(said in line for line in found)
    assert not unlike(cases, outcomes(cases), theirs)


# Operators of GPUs alone ------------------------------------------------------------------


def on_gpus():
    """Return name -> the contract's function of an operator, the operator, and arguments."""
    aten = torch.ops.aten
    query, key, value = (torch.randn(2, 3, n, 8) for n in (40, 33, 33))
    turned = query.transpose(1, 2).contiguous().transpose(1, 2)
    sums, seed = torch.randn(2, 3, 64), torch.zeros((), dtype=torch.int64)
    image, w = torch.randn(3, 4, 5, 5), torch.rand(4)
    last = image.contiguous(memory_format=torch.channels_last)
    attention = cuda_layers.efficient_attention, aten._scaled_dot_product_efficient_attention
    norm = cuda_layers.cudnn_batch_norm, aten.cudnn_batch_norm
    rms = cuda_layers.rms_norm, aten._fused_rms_norm
    rms_backward = cuda_layers.rms_norm_backward, aten._fused_rms_norm_backward
    rows = torch.randn(4, 6)
    return {
        "attention": (*attention, (query, key, value, None, True)),
        "attention of turned heads": (*attention, (turned, key, value, None, True)),
        "attention without sums": (*attention, (query, key, value, None, False)),
        "gradients of attention": (
            cuda_layers.efficient_attention_backward,
            aten._scaled_dot_product_efficient_attention_backward,
            (query, query, key, value, None, query, sums, seed, seed, 0.0, [True] * 3 + [False]),
        ),
        "batch norm": (*norm, (image, w, w, w.clone(), w.clone(), True, 0.1, 1e-5)),
        "batch norm, channels last": (*norm, (last, w, w, w.clone(), w.clone(), True, 0.1, 1e-5)),
        "dropout": (cuda_layers.native_dropout, aten.native_dropout, (last, 0.5, True)),
        "rms norm": (*rms, (rows, [6], torch.ones(6), None)),
        "rms norm of columns": (*rms, (torch.randn(6, 4).mT, [6], torch.ones(6), None)),
        "gradients of rms norm": (
            *rms_backward, (rows, rows, [6], torch.ones(4, 1), torch.ones(6), [True] * 2)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", on_gpus())
def test_operators_of_gpus_alone_have_the_layouts_that_compilers_expect(name):
    """Their functions run on the CPU, too. Compilers ask torch's rule for the device ``meta``."""

    def to_meta(value):
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    function, operator, given = on_gpus()[name]
    expected = operator(*tree.tree_map(to_meta, given))
    with patched("repro"):
        found = function(*given)
    pairs = list(zip(tree.tree_leaves(found), tree.tree_leaves(expected), strict=True))
    assert len(pairs) >= 2
    for one, other in pairs:
        if other is not None:
            assert (one.dtype, one.shape, one.stride()) == (
                other.dtype, other.shape, other.stride()
            )  # fmt: skip
