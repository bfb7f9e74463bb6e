# SPDX-License-Identifier: Apache-2.0
"""Overridden CPU operators on the samples of torch's own test database.

Importing the database imports Inductor, which makes every session slower to open; so these tests
have a file, and the database a session, of their own.
"""

from __future__ import annotations

import pytest
import torch

from pytest_udftorch import patched

pytest.importorskip("expecttest")  # the database asks for it
from torch.testing._internal.common_methods_invocations import op_db

# The database forbids other tests of this process to set flags of torch.backends. That module is
# hidden behind an object, but not from its functions.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OVERRIDDEN = ("erf", "nn.functional.gelu", "nn.functional.scaled_dot_product_attention")
OPINFOS = [op for op in op_db if op.name in OVERRIDDEN]


def farthest(got, exact):
    """The largest error in units of the last place, roughly, over the finite elements."""
    finite = exact.isfinite()
    if not finite.any():
        return 0.0
    kind = torch.finfo(got.dtype)
    step = kind.eps * exact.abs().clamp_min(kind.tiny)
    return ((got.double() - exact).abs() / step)[finite].amax().item()


def cases():
    for op in OPINFOS:
        for dtype in DTYPES:
            if op.supports_dtype(dtype, "cpu"):
                for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
                    yield op, sample


def run(op, sample, *, double=False):
    def wide(value):
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if double and floats else value

    tree = torch.utils._pytree.tree_map
    return op.op(*tree(wide, (sample.input, *sample.args)), **tree(wide, sample.kwargs))


@pytest.fixture(scope="module")
def results():
    every = list(cases())
    theirs = [run(*case) for case in every]
    exact = [run(*case, double=True) for case in every]
    with patched("corem"):
        ours = [run(*case) for case in every]
    return list(zip(every, ours, theirs, exact, strict=True))


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_results_are_like_stocks_and_no_farther_from_the_exact_ones(results, name):
    seen = 0
    for (op, _), ours, theirs, exact in results:
        if op.name != name:
            continue
        seen += 1
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.stride() == theirs.stride()
        assert farthest(ours, exact) <= farthest(theirs, exact) + 0.51
    assert seen >= len(DTYPES)


@pytest.mark.parametrize("op", OPINFOS, ids=lambda op: op.name)
def test_errors_have_stocks_words(op):
    if op.error_inputs_func is None:
        pytest.skip("torch's database has no errors for it")
    with patched("corem"):
        for error in op.error_inputs("cpu"):
            with pytest.raises(error.error_type, match=error.error_regex):
                run(op, error.sample_input)
