# SPDX-License-Identifier: Apache-2.0
"""Special functions, scans, distances and norms on a GPU, on torch's own samples and beyond."""

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.swap.cuda.launcher import launched

pytest.importorskip("triton")
pytest.importorskip("expecttest")  # the database of samples asks for it
from torch.testing._internal.common_methods_invocations import op_db

# The database forbids other tests of this process to set flags of torch.backends. That module is
# hidden behind an object, but not from its functions.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

#: Operator -> the kernel that its samples have to launch.
KERNELS = {
    "erfinv": "erfinv",
    "special.ndtri": "special_ndtri",
    "special.log_ndtr": "special_log_ndtr",
    "special.entr": "special_entr",
    "special.erfcx": "special_erfcx",
    "special.modified_bessel_i0": "exp_times",
    "special.modified_bessel_i1": "exp_times",
    "special.i1": "exp_times",
    "i0": "exp_times",
    "digamma": "digamma",
    "lgamma": "lgamma",
    "polygamma": "trigamma",
    "logcumsumexp": "logaddexp",
    "cdist": "pow",
    "nn.functional.pdist": "pow",
    "linalg.vector_norm": "pow",
    "logaddexp": "logaddexp",
    "xlogy": "xlogy",
    "special.xlog1py": "xlog1py",
    "logit": "logit",
    "sinc": "sinc",
    "nn.functional.glu": "glu",
    "nn.functional.binary_cross_entropy": "binary_cross_entropy",
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Units of the last place that a result may be farther from the exact one than stock's farthest.
MARGIN = {"linalg.vector_norm": 4.0, "cdist": 4.0, "nn.functional.pdist": 4.0}


def info(name):
    return next(op for op in op_db if op.name == name)


def farthest(got, exact):
    """The largest error in units of the last place, roughly, over the finite elements."""
    finite = exact.isfinite() & got.isfinite()
    if not finite.any():
        return 0.0
    kind = torch.finfo(got.dtype)
    step = kind.eps * exact.abs().clamp_min(kind.tiny)
    return ((got.double() - exact).abs() / step)[finite].amax().item()


def run(op, sample, *, double=False):
    def wide(value):
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if double and floats else value

    tree = torch.utils._pytree.tree_map
    return op.op(*tree(wide, (sample.input, *sample.args)), **tree(wide, sample.kwargs))


def samples(op, dtypes=DTYPES, *, requires_grad=False):
    return [
        sample
        for dtype in dtypes
        if op.supports_dtype(dtype, "cuda")
        for sample in op.sample_inputs("cuda", dtype, requires_grad=requires_grad)
    ]


@pytest.mark.parametrize("name", KERNELS)
def test_samples_are_no_farther_from_the_exact_results_than_stocks(name):
    """In float32 beside the values; in 16 bits both are the rounded ones."""
    op = info(name)
    given = samples(op)
    theirs = [run(op, s) for s in given]
    exact = [run(op, s, double=True) for s in given]
    with patched("corem"):
        launched()
        ours = [run(op, s) for s in given]
        assert KERNELS[name] in launched()
    for mine, stock in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (stock.dtype, stock.shape, stock.stride())
        assert torch.equal(mine.isnan(), stock.isnan())
    for dtype in DTYPES:
        rows = [r for r in zip(ours, theirs, exact, strict=True) if r[1].dtype is dtype]
        mine = max((farthest(o, e) for o, _, e in rows), default=0.0)
        stock = max((farthest(t, e) for _, t, e in rows), default=0.0)
        assert mine <= stock + MARGIN.get(name, 1.0), (dtype, mine, stock)


@pytest.mark.parametrize("name", KERNELS)
def test_out_in_place_and_strides_give_the_same_bits(name):
    op = info(name)
    with patched("corem"):
        for sample in samples(op, (torch.float32,))[:12]:
            args, kwargs = (sample.input, *sample.args), sample.kwargs
            made = run(op, sample)
            if op.supports_out:
                gaps = made.new_zeros((*made.shape, 2))[..., 0]
                for out in (made.new_empty(0), torch.empty_like(made), gaps):
                    assert op.op(*args, **kwargs, out=out) is out
                    assert torch.equal(out.nan_to_num(), made.nan_to_num())
            alike = (made.dtype, made.shape) == (sample.input.dtype, sample.input.shape)
            if op.inplace_variant is not None and alike:
                written = sample.input.clone()
                op.inplace_variant(written, *args[1:], **kwargs)
                assert torch.equal(written.nan_to_num(), made.nan_to_num())
            if sample.input.dim() >= 2:
                turned = sample.input.mT.contiguous().mT
                other = op.op(turned, *args[1:], **kwargs)
                torch.testing.assert_close(other, made, rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    "name", [n for n in KERNELS if info(n).error_inputs_func is not None and n != "cdist"]
)
def test_errors_have_stocks_words(name):
    op = info(name)
    with patched("corem"):
        for error in op.error_inputs("cuda"):
            with pytest.raises(error.error_type, match=error.error_regex or None):
                run(op, error.sample_input)


@pytest.mark.parametrize("name", [n for n in KERNELS if info(n).supports_autograd])
def test_gradients_are_no_farther_from_the_exact_ones_than_stocks(name):
    op = info(name)

    def gradient(sample, *, double=False):
        x = (sample.input.double() if double else sample.input).detach().requires_grad_()
        y = run(op, type(sample)(x, args=sample.args, kwargs=sample.kwargs), double=double)
        (found,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
        return torch.zeros_like(x) if found is None else found

    for sample in samples(op, (torch.float32,), requires_grad=True):
        if not sample.input.numel():
            continue
        stock, exact = gradient(sample), gradient(sample, double=True)
        with patched("corem"):
            ours = gradient(sample)
        seen = exact.isfinite() & stock.isfinite() & ours.isfinite()
        assert torch.equal(ours.isnan(), stock.isnan())
        if seen.any():
            scale = exact[seen].abs().max().item()
            allowed = (stock.double() - exact)[seen].abs() + 2e-6 * scale + 1e-30
            assert ((ours.double() - exact)[seen].abs() <= allowed).all()


def spread():
    """Numbers of every size, near the places where the formulas change."""
    generator = torch.Generator().manual_seed(3)
    parts = [
        torch.rand(20000, generator=generator) * 2 - 1,
        torch.rand(20000, generator=generator) * 24 - 12,
        torch.logspace(-30, 30, 5000),
        -torch.logspace(-30, 4, 5000),
        1 - torch.logspace(-7, 0, 5000),
        torch.tensor([0.0, -0.0, 1, -1, 0.5, 2, -2, 10, float("inf"), -float("inf"), float("nan")]),
    ]
    return torch.cat(parts).cuda()


@pytest.mark.parametrize(
    "name",
    ["erfinv", "special.ndtri", "special.log_ndtr", "special.entr", "special.erfcx", "i0",
     "special.i1", "lgamma"],
)  # fmt: skip
def test_the_whole_range(name):
    """No farther from the exact result than stock's farthest, and at the same special values."""
    op = info(name).op
    x = spread()
    theirs, exact = op(x), op(x.double())
    with patched("corem"):
        ours = op(x)
    assert torch.equal(ours.isnan(), theirs.isnan())
    normal = (exact.abs() > 1e-37) & (exact.abs() < 1e38)
    # Near the roots of lgamma in negative numbers, neither has digits.
    if name == "lgamma":
        normal &= x > -2.2
    rows = [v[normal] for v in (ours, theirs, exact)]
    assert torch.equal(ours[~normal].isinf(), theirs[~normal].isinf())
    assert farthest(rows[0], rows[2]) <= max(farthest(rows[1], rows[2]), 3.0) + 1.0


@pytest.mark.parametrize("order", [0, 1])
def test_polygamma_in_the_whole_range(order):
    x = spread()
    x = x[(x.abs() > 1e-15) & (x.abs() < 1e6)]
    theirs, exact = torch.polygamma(order, x), torch.polygamma(order, x.double())
    with patched("corem"):
        ours = torch.polygamma(order, x)
    seen = exact.isfinite() & theirs.isfinite() & ours.isfinite()
    error = ((ours.double() - exact).abs() / exact.abs().clamp_min(1.0))[seen]
    stock = ((theirs.double() - exact).abs() / exact.abs().clamp_min(1.0))[seen]
    assert error.max() <= stock.max() * 1.01 + 1e-6


@pytest.mark.parametrize("n", [1, 2, 3, 127, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_logcumsumexp_is_nearer_than_stock(n, dtype):
    x = (torch.randn(5, n, 3, device="cuda") * 20).to(dtype)
    x[0, n // 2, 0] = -float("inf")
    x[1, n // 2, 1] = float("inf")
    x[2, n // 2, 2] = float("nan")
    for dim in (0, 1, -1):
        theirs, exact = torch.logcumsumexp(x, dim), torch.logcumsumexp(x.double(), dim)
        with patched("corem"):
            ours = torch.logcumsumexp(x, dim)
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.isinf(), theirs.isinf())
        # A value near 0 has no more digits than its summands.
        seen = exact.isfinite()
        far = [
            ((y.double() - exact).abs() / exact.abs().clamp(min=1.0))[seen] for y in (ours, theirs)
        ]
        assert far[0].max() <= far[1].max() + torch.finfo(dtype).eps


@pytest.mark.parametrize("order", [2.5, 3, -1.5, 0.7])
def test_norms_of_any_order(order):
    """No farther than stock in every form that ends in a norm."""
    x = torch.randn(40, 30, device="cuda")
    calls = {
        "norm": lambda x: torch.norm(x, order, 1),
        "whole": lambda x: torch.linalg.vector_norm(x, order),
        "renorm": lambda x: torch.renorm(x, abs(order), 0, 3.0),
        "normalize": lambda x: torch.nn.functional.normalize(x, order),
    }
    for name, call in calls.items():
        theirs, exact = call(x), call(x.double())
        with patched("corem"):
            launched()
            ours = call(x)
            assert "pow" in launched(), name
        assert farthest(ours, exact) <= farthest(theirs, exact) + 4.0
        short = call(x.bfloat16())
        with patched("corem"):
            torch.testing.assert_close(call(x.bfloat16()), short, rtol=0.02, atol=0.0)


def test_pow_of_lists():
    tensors = [torch.rand(n, device="cuda") + 0.5 for n in (3, 100, 7)]
    others = [torch.rand_like(t) * 3 for t in tensors]
    calls = {
        "List": lambda: torch._foreach_pow(tensors, others),
        "Scalar": lambda: torch._foreach_pow(tensors, 2.7),
        "ScalarList": lambda: torch._foreach_pow(tensors, [0.3, 2.0, -1.7]),
        "ScalarAndTensor": lambda: torch._foreach_pow(0.999, tensors),
    }
    exact = {
        "List": [t.double() ** o.double() for t, o in zip(tensors, others, strict=True)],
        "Scalar": [t.double() ** 2.7 for t in tensors],
        "ScalarList": [t.double() ** e for t, e in zip(tensors, (0.3, 2.0, -1.7), strict=True)],
        "ScalarAndTensor": [0.999 ** t.double() for t in tensors],
    }
    with patched("corem"):
        for form, call in calls.items():
            launched()
            made = call()
            assert "pow" in launched()
            for got, want in zip(made, exact[form], strict=True):
                assert farthest(got, want) <= 8.0
        written = [t.clone() for t in tensors]
        torch._foreach_pow_(written, others)
        for got, want in zip(written, exact["List"], strict=True):
            assert farthest(got, want) <= 1.0
        with pytest.raises(RuntimeError, match=r"same (number of|length)"):
            torch._foreach_pow(tensors, others[:2])


def test_a_capturable_optimizer_runs_the_sessions_pow():
    """Its bias corrections are powers of lists on the GPU."""
    found = []
    for library in (None, "corem"):
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.Adam(layer.parameters(), capturable=True, foreach=True)

        def steps(layer=layer, optimizer=optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                layer(torch.ones(4, 8, device="cuda")).square().sum().backward()
                optimizer.step()
            return layer.weight.detach().clone()

        if library is None:
            found.append(steps())
            continue
        with patched(library):
            launched()
            found.append(steps())
            assert "pow" in launched()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_a_session_without_the_functions_leaves_stocks_bits():
    x = torch.rand(1000, device="cuda") * 0.9 + 0.05
    calls = (torch.erfinv, torch.lgamma, torch.digamma, torch.special.log_ndtr, torch.i0,
             lambda x: torch.logcumsumexp(x, 0))  # fmt: skip
    before = [call(x) for call in calls]
    with patched("corem", functions=("atan2",)):
        inside = [call(x) for call in calls]
    assert all(torch.equal(a, b) for a, b in zip(before, inside, strict=True))
