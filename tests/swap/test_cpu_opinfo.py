# SPDX-License-Identifier: Apache-2.0
"""Overridden CPU operators on the samples of torch's own test database.

Importing the database imports Inductor, which makes every session slower to open; so these tests
have a file, and the database a session, of their own.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.swap.cpu import direct
from pytest_udftorch.swap.cpu.loops import Loops

pytest.importorskip("expecttest")  # the database asks for it
from torch.testing._internal.common_methods_invocations import op_db

# The database forbids other tests of this process to set flags of torch.backends. That module is
# hidden behind an object, but not from its functions.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OVERRIDDEN = (
    "erf", "erfinv", "lgamma", "nn.functional.gelu", "nn.functional.scaled_dot_product_attention",
)  # fmt: skip
OPINFOS = [op for op in op_db if op.name in OVERRIDDEN]
#: Overridden beside composites only.
COMPOSED = (
    "sigmoid", "nn.functional.silu", "nn.functional.softplus", "nn.functional.logsigmoid",
    "nn.functional.mish", "nn.functional.elu", "nn.functional.selu", "rsqrt", "acos", "acosh",
    "asinh", "atan", "cos", "cosh", "erfc", "exp", "exp2", "expm1", "log", "log10", "log1p", "sin",
    "sinh", "tan",
)  # fmt: skip
EVERY = [op for op in op_db if op.name in (*OVERRIDDEN, *COMPOSED) and not op.variant_test_name]
QUICK = ("nn.functional.gelu", "nn.functional.elu", "tan")


def farthest(got, exact, size=None):
    """The largest error in units of the last place, roughly, over the finite elements.

    ``size`` has the numbers whose last places are meant, if they are not the exact results.
    """
    finite = exact.isfinite()
    if not finite.any():
        return 0.0
    kind = torch.finfo(got.dtype)
    step = kind.eps * (exact if size is None else size).abs().clamp_min(kind.tiny)
    # Stock's attention in half is NaN now and then where the exact result is not.
    return ((got.double() - exact).abs() / step)[finite].nan_to_num(nan=math.inf).amax().item()


def cases(ops=OPINFOS, dtypes=DTYPES, *, requires_grad=False):
    for op in ops:
        for dtype in dtypes:
            if op.supports_dtype(dtype, "cpu"):
                for sample in op.sample_inputs("cpu", dtype, requires_grad=requires_grad):
                    yield op, sample


def run(op, sample, *, double=False):
    def wide(value):
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if double and floats else value

    tree = torch.utils._pytree.tree_map
    return op.op(*tree(wide, (sample.input, *sample.args)), **tree(wide, sample.kwargs))


def summed(op, sample):
    """How large the terms are that an element of a result is the sum of; None if it is not one.

    Attention adds weighted values, which cancel. What cancels is as wrong as its terms, in stock's
    order of additions and in any other.
    """
    if op.name != "nn.functional.scaled_dot_product_attention":
        return None
    key, value, *more = sample.args
    sizes = type(sample)(sample.input, args=(key, value.abs(), *more), kwargs=sample.kwargs)
    return run(op, sizes, double=True)


def assert_no_farther(ours, theirs, exact, size):
    """Assert that stock is not nearer the exact results, but for the order of its additions."""
    order = 1.0 if size is None else 1.25
    assert farthest(ours, exact, size) <= order * farthest(theirs, exact, size) + 0.51


@pytest.fixture(scope="module")
def results():
    torch.manual_seed(0)
    every = list(cases())
    theirs = [run(*case) for case in every]
    exact = [run(*case, double=True) for case in every]
    sizes = [summed(*case) for case in every]
    with patched("corem"):
        ours = [run(*case) for case in every]
    return list(zip(every, ours, theirs, exact, sizes, strict=True))


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_results_are_like_stocks_and_no_farther_from_the_exact_ones(results, name):
    seen = 0
    for (op, _), ours, theirs, exact, size in results:
        if op.name != name:
            continue
        seen += 1
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.stride() == theirs.stride()
        assert_no_farther(ours, theirs, exact, size)
    assert seen >= len(DTYPES)


@pytest.mark.parametrize(
    "op", [op for op in EVERY if op.error_inputs_func is not None], ids=lambda op: op.name
)
def test_errors_have_stocks_words(op):
    with patched("corem", composites=True):
        for error in op.error_inputs("cpu"):
            with pytest.raises(error.error_type, match=error.error_regex):
                run(op, error.sample_input)


def each():
    """Every operator; those that are not quick are marked slow."""
    return [
        pytest.param(op, id=op.name, marks=() if op.name in QUICK else pytest.mark.slow)
        for op in EVERY
    ]


def same_bits(one, other):
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(
        one.nan_to_num(nan=7.0), other.nan_to_num(nan=7.0)
    )


def judge(op, sample, stock, exact):
    """Assert that all forms of a call give the same bits, in stock's form, near the exact ones."""
    made = run(op, sample)
    assert (made.dtype, made.shape, made.stride()) == (stock.dtype, stock.shape, stock.stride())
    assert torch.equal(made.isnan(), stock.isnan())
    assert_no_farther(made, stock, exact, summed(op, sample))
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    if op.supports_out:
        gaps = stock.new_zeros((*stock.shape, 2))[..., 0]
        for out in (stock.new_empty(0), torch.empty_like(stock), gaps):
            assert op.op(*args, **kwargs, out=out) is out
            assert same_bits(out, made)
    if op.inplace_variant is not None and made.dtype is sample.input.dtype:
        written = sample.input.clone()
        op.inplace_variant(written, *args[1:], **kwargs)
        assert same_bits(written, made)
    if sample.input.dim() >= 2 and "attention" not in op.name:
        turned = sample.input.mT.contiguous().mT
        assert same_bits(op.op(turned, *args[1:], **kwargs), made)


@pytest.mark.parametrize("op", each())
def test_every_overload_gives_the_same_bits_near_the_exact_ones(op):
    """New tensor, ``out=`` empty, of the size and with gaps, in place; any strides."""
    samples = [sample for _, sample in cases([op])]
    theirs = [run(op, sample) for sample in samples]
    exact = [run(op, sample, double=True) for sample in samples]
    assert samples
    with patched("corem", composites=True):
        for case in zip(samples, theirs, exact, strict=True):
            judge(op, *case)


def test_a_kernel_that_is_four_units_off_is_found(monkeypatch):
    (op,) = (op for op in EVERY if op.name == "nn.functional.elu")
    sample = next(sample for _, sample in cases([op], (torch.float32,)))
    case = op, sample, run(op, sample), run(op, sample, double=True)
    run_whole = Loops.run_whole

    def wrong(self, operator, function, x, y, dtype):
        run_whole(self, operator, function, x, y, dtype)
        y.mul_(1 + 2**-20)

    with patched("corem", composites=True):
        judge(*case)
        monkeypatch.setattr(Loops, "run_whole", wrong)
        launcher = direct.loaded()
        detour = launcher.through_python() if launcher else nullcontext()
        with detour, pytest.raises(AssertionError):
            judge(*case)


@pytest.mark.parametrize("op", each())
def test_gradients_are_no_farther_from_the_exact_ones_than_stocks(op):
    def gradient(sample, *, double=False):
        x = (sample.input.double() if double else sample.input).detach().requires_grad_()
        wide = type(sample)(x, args=sample.args, kwargs=sample.kwargs)
        y = run(op, wide, double=double)
        (found,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
        return torch.zeros_like(x) if found is None else found

    samples = [s for _, s in cases([op], (torch.float32,)) if s.input.numel()]
    for sample in samples:
        stock, exact = gradient(sample), gradient(sample, double=True)
        with patched("corem", composites=True):
            ours = gradient(sample)
        assert ours.dtype is stock.dtype
        seen = exact.isfinite() & stock.isfinite()
        assert torch.equal(ours.isfinite(), stock.isfinite())
        scale = exact[seen].abs().max().item() if seen.any() else 0.0
        if summed(op, sample) is not None:  # keys times differences of sums of values, which cancel
            key, value = (t.detach().abs() for t in sample.args[:2])
            scale = max(scale, (key.max() * value.sum(-1).max() / key.shape[-1] ** 0.5).item())
        allowed = (stock.double() - exact)[seen].abs() + 4 * torch.finfo(torch.float32).eps * scale
        assert ((ours.double() - exact)[seen].abs() <= allowed).all()
