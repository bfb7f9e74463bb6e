# SPDX-License-Identifier: Apache-2.0
"""CPU operators that a session overrides, since no symbol leads into their stock kernels."""

from __future__ import annotations

import contextlib
import itertools
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import pytest_udftorch
from pytest_udftorch import patched
from pytest_udftorch.swap import coverage
from pytest_udftorch.swap.cpu import c_source, loops, operators
from pytest_udftorch.swap.operators.calls import FORMULAS
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.overrides.dispatcher import Role, Spec
from pytest_udftorch.swap.overrides.python_override import PythonOverride
from pytest_udftorch.swap.overrides.switchboard import switchboard

ATEN = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

#: Every function, so that every operator is overridden.
EVERY = frozenset(("exp", "log", "erf", "tanh", "sin", "cos"))


@contextlib.contextmanager
def anew():
    """Make kernels for the sessions inside, and for those behind: they keep what they looked up."""
    operators.cpu_operators.forget()
    try:
        yield
    finally:
        operators.cpu_operators.forget()


def kernel(name):
    return switchboard.called(f"aten::{name}", "CPU")


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.fixture(scope="module")
def corem():
    with patched("corem") as session:
        yield session


def stock(call):
    with patched("std"):
        return call()


def farther(ours, theirs, exact):
    """How much farther from the exact result ours is than theirs, in units of theirs' dtype."""
    finite = exact.isfinite() & theirs.isfinite()
    step = torch.finfo(ours.dtype).eps * exact.abs().clamp_min(torch.finfo(ours.dtype).tiny)
    error = ((x.double() - exact).abs() / step for x in (ours, theirs))
    mine, other = (e[finite].amax().item() if finite.any() else 0.0 for e in error)
    return mine - other


def test_every_overload_is_overridden_and_given_back():
    names = operators.overloads(EVERY)
    assert {"gelu", "gelu_", "gelu.out", "gelu_backward", "gelu_backward.grad_input"} < set(names)
    before = {name: kernel(name) for name in (*names, "exp", "sigmoid", "softplus")}
    x = torch.linspace(-3, 3, 200)
    results = bits(F.gelu(x))
    with patched("corem"):
        assert all(kernel(name) != before[name] for name in names)
        assert kernel("sigmoid") == before["sigmoid"]
        assert kernel("exp") != before["exp"]  # for half; see narrow.py
        assert bits(F.gelu(x)) != results
        with patched("std"):
            assert {name: kernel(name) for name in before} == before
            assert bits(F.gelu(x)) == results
        with patched("corem", functions=("log",)):
            assert all(kernel(name) != before[name] for name in names)
    assert {name: kernel(name) for name in before} == before
    assert bits(F.gelu(x)) == results


def test_a_session_without_the_functions_overrides_nothing():
    before = {name: kernel(name) for name in operators.overloads(EVERY)}
    with patched("corem", functions=("tan",)):
        assert {name: kernel(name) for name in before} == before
    with patched("corem", functions=("erf",)):
        assert kernel("gelu") != before["gelu"]


def test_a_function_that_the_session_lacks_stays_stock():
    """gelu's derivative needs exp as well, which is MKL's here."""
    x, grad = torch.linspace(-3, 3, 333), torch.ones(333)
    with patched("corem", functions=("erf",)):
        mixed = ATEN.gelu_backward(grad, x)
    exact = ATEN.gelu_backward(grad.double(), x.double())
    assert farther(mixed, ATEN.gelu_backward(grad, x), exact) < 1.0


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "strided", "transposed", "channels_last", "0-dim",
                                    "empty", "expanded"])  # fmt: skip
def test_layouts(corem, approximate, dtype, layout):
    values = torch.linspace(-4, 4, 2 * 5 * 7 * 11).to(dtype)
    x = {
        "contiguous": values,
        "strided": values[::3],
        "transposed": values.reshape(70, 11).t(),
        "channels_last": values.reshape(2, 5, 7, 11).contiguous(memory_format=torch.channels_last),
        "0-dim": values[7],
        "empty": values[:0].reshape(0, 3),
        "expanded": values[:7, None].expand(7, 5),
    }[layout]

    def forms():
        made = F.gelu(x, approximate=approximate)
        out = torch.empty(0, dtype=dtype)
        ATEN.gelu.out(x, approximate=approximate, out=out)
        with pytest.raises(RuntimeError, match="Found dtype Double but expected"):
            ATEN.gelu.out(x, out=torch.empty(x.shape, dtype=torch.float64))
        written = x.clone()
        ATEN.gelu_(written, approximate=approximate)
        over = x.clone()
        ATEN.gelu.out(over, approximate=approximate, out=over)
        grad = ATEN.gelu_backward(x, x, approximate=approximate)
        mixed = ATEN.gelu_backward(x.contiguous(), x, approximate=approximate)
        return made, out, written, over, grad, mixed

    ours, theirs = forms(), stock(forms)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    made, out, written, over, grad, mixed = ours
    assert bits(made) == bits(out) == bits(written) == bits(over)
    assert bits(grad) == bits(mixed)
    exact = stock(lambda: F.gelu(x.double(), approximate=approximate))
    exact_grad = ATEN.gelu_backward(x.double(), x.double(), approximate=approximate)
    if x.numel():
        assert farther(made, theirs[0], exact) <= 0.51
        assert farther(grad, theirs[4], exact_grad) <= 1.01


@pytest.mark.parametrize("threads", [1, 2])
def test_the_results_do_not_depend_on_position_or_threads(corem, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.linspace(-4, 4, 100_003)
        y = F.gelu(x)
        for start in (0, 1, 5, 1023, 1025, 99_000):
            assert torch.equal(F.gelu(x[start : start + 700]), y[start : start + 700])
    finally:
        torch.set_num_threads(before)


def test_the_functions_are_the_librarys(corem):
    x = torch.linspace(-3, 3, 5000)
    y = x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))
    assert torch.equal(F.gelu(x), y)
    with patched("canary", functions=("erf",)):
        assert not torch.equal(F.gelu(x), y)


def test_other_dtypes_stay_stock(corem):
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert torch.equal(F.gelu(x), stock(lambda: F.gelu(x)))
    with pytest.raises(NotImplementedError, match="not implemented for"):
        F.gelu(torch.arange(5))
    with pytest.raises(RuntimeError, match="approximate argument"):
        F.gelu(torch.ones(5), approximate="no")


def test_autograd_autocast_and_functorch_work_above_it(corem):
    x = torch.linspace(-3, 3, 60).requires_grad_()
    (grad,) = torch.autograd.grad(F.gelu(x).sum(), x)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(F.gelu(wide).sum(), wide)
    torch.testing.assert_close(grad, exact.float())
    (second,) = torch.autograd.grad(
        torch.autograd.grad(F.gelu(x).sum(), x, create_graph=True)[0].sum(), x
    )
    (exact,) = torch.autograd.grad(
        torch.autograd.grad(F.gelu(wide).sum(), wide, create_graph=True)[0].sum(), wide
    )
    torch.testing.assert_close(second, exact.float(), atol=1e-5, rtol=1e-5)
    layer = torch.nn.Linear(60, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.gelu(layer(x)).dtype == torch.bfloat16
    batch = torch.randn(4, 30)
    assert torch.equal(torch.func.vmap(F.gelu)(batch), F.gelu(batch))


def test_a_udf_of_the_operator_itself_keeps_it(corem):
    spec = Spec("aten::gelu", "aten::gelu", "CPU", Role.AS_IS, "aten::gelu")
    mine = PythonOverride(spec, lambda x, approximate: x + 1)
    with patched("std"):
        dispatcher.overrides.push(mine, [mine])
        try:
            with patched("corem", functions=("erf",)):
                assert F.gelu(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
        finally:
            dispatcher.overrides.remove(mine)


def test_a_profile_counts_in_the_operator():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.linspace(-3, 3, 60_000)
        for depth in ("counters", "timed", "events"):
            with patched("corem", profile=depth) as session:
                F.gelu(x)
                ATEN.gelu_backward(x, x)
            rows = session.profile.rows("operator", "function")
            found = {(r.key["operator"], r.key["function"]): r.elements for r in rows}
            assert found == {
                ("aten::gelu", "erf"): 60_000,
                ("aten::gelu_backward", "erf"): 60_000,
                ("aten::gelu_backward", "exp"): 60_000,
            }
    finally:
        torch.set_num_threads(before)


def test_coverage_sees_an_override_that_is_hidden(monkeypatch):
    def step():
        x = torch.linspace(-3, 3, 500).requires_grad_()
        F.gelu(x).sum().backward()

    assert coverage(step).complete
    shown = tuple(op for op in operators._POINTWISE if op.name != "gelu")
    with patched("std"), anew(), monkeypatch.context() as hidden:
        hidden.setattr(operators, "_POINTWISE", shown)
        found = coverage(step)
    assert {r.operator: r.share for r in found.rows} == {
        "aten::gelu": 0.0,
        "aten::gelu_backward": 1.0,
    }
    assert found.share == pytest.approx(2 / 3)


def special_calls():
    """Operator -> a call, and whether a session reaches every function that it evaluates."""
    x = torch.linspace(0.1, 0.9, 100)
    square, special = x.reshape(10, 10), torch.special
    logs = torch.linspace(0, 3, 200).reshape(20, 2, 5).log_softmax(2).requires_grad_()
    ones, lengths = (
        torch.ones(2, 4, dtype=torch.long),
        (torch.tensor([20, 20]), torch.tensor([4, 4])),
    )

    def optimized():
        parameter = torch.nn.Parameter(x.clone())
        parameter.grad = x
        torch.optim.Adam([parameter]).step()

    return {
        "digamma": (lambda: torch.digamma(x), True),
        "i0": (lambda: torch.i0(x), True),
        "i1": (lambda: special.i1(x), True),
        "i0e": (lambda: special.i0e(x), True),
        "cdist": (lambda: torch.cdist(square, square + 1, p=1.5), True),
        "pdist": (lambda: torch.pdist(square, p=3.0), True),
        "renorm": (lambda: torch.renorm(square, 3.0, 0, 0.1), True),
        "ctc_loss": (lambda: F.ctc_loss(logs, ones, *lengths).backward(), True),
        "Adam": (optimized, True),
        "lgamma": (lambda: torch.lgamma(x), True),
        "ndtri": (lambda: special.ndtri(x), False),
        "logcumsumexp": (lambda: torch.logcumsumexp(x, 0), False),
        "erfcx": (lambda: special.erfcx(-x), False),
        "exponential_": (lambda: x.clone().exponential_(), False),
        "log_normal_": (lambda: x.clone().log_normal_(), False),
    }


def test_log_ndtr_is_nearer_to_the_exact_result_than_stock():
    log_ndtr = torch.special.log_ndtr
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(4000, generator=generator) * size for size in (3, 30)])
    with patched("corem"):
        ours, again = log_ndtr(x), log_ndtr(x)  # through Python, and from C++
        written = log_ndtr(x[::3], out=torch.empty(0))
        for dtype in (torch.bfloat16, torch.float16):
            with pytest.raises(RuntimeError, match="not implemented for"):
                log_ndtr(x.to(dtype))
        ends = log_ndtr(torch.tensor([torch.inf, -torch.inf, torch.nan]))
    assert bits(ours) == bits(again)
    assert bits(written) == bits(ours[::3])
    assert ends[:2].tolist() == [0.0, -torch.inf]
    assert ends[2].isnan()
    exact, theirs = log_ndtr(x.double()), stock(lambda: log_ndtr(x))
    assert farther(ours, theirs, exact) <= 0
    error = [((y - exact) / exact.clamp_max(-1e-30)).abs().mean().item() for y in (ours, theirs)]
    assert error[0] < error[1] / 2
    (row,) = coverage(lambda: log_ndtr(x[:100])).rows
    assert row.swapped == {"erfc": 100, "log": 100, "log1p": 100}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_erfinv_is_the_sessions_within_a_unit_of_stocks_distance(dtype):
    generator = torch.Generator().manual_seed(0)
    near_one = 1 - torch.exp2(-24 * torch.rand(4000, generator=generator))
    x = torch.cat([torch.rand(4000, generator=generator) - 0.5, near_one, -near_one]).to(dtype)

    def forms(x):
        written = torch.empty(0, dtype=dtype)
        return x.erfinv(), x[::3].erfinv(), torch.erfinv(x, out=written), x.clone().erfinv_()

    theirs, exact = stock(lambda: torch.erfinv(x)), torch.erfinv(x.double())
    ends = torch.tensor([1.0, -1.0, 0.0, -0.0, 1.5, -2.0, torch.nan], dtype=dtype)
    of_ends = stock(lambda: torch.erfinv(ends))
    with patched("corem"):
        (ours, gaps, written, over), again = forms(x), x.erfinv()
        assert bits(ours) == bits(again) == bits(written) == bits(over)
        assert bits(gaps) == bits(ours[::3])
        assert [str(v) for v in torch.erfinv(ends).tolist()] == [str(v) for v in of_ends.tolist()]
        assert bits(torch.erfinv(x[:1])) == bits(ours[:1])
        leaf = x[:100].clone().requires_grad_()
        (grad,) = torch.autograd.grad(leaf.erfinv().sum(), leaf)
    finite = exact.isfinite()
    assert farther(ours[finite], theirs[finite], exact[finite]) <= 1
    assert bits(ours) != bits(theirs) or dtype != torch.float32
    torch.testing.assert_close(
        grad.double(), math.sqrt(math.pi) / 2 * torch.exp(exact[:100] ** 2), rtol=1e-2, atol=0
    )
    (row,) = coverage(lambda: torch.erfinv(x[:100])).rows
    assert row.share == 1.0


def test_compilers_leave_erfinv_and_lgamma_to_sessions_of_their_functions():
    assert operators.left_by_compilers({"exp2", "erf"}) == ["aten::erfinv"]
    assert operators.left_by_compilers({"exp2", "log"}) == ["aten::lgamma"]
    assert operators.left_by_compilers({"exp2", "tan"}) == []


@pytest.mark.slow
@pytest.mark.parametrize("operator", [torch.erfinv, torch.lgamma], ids=lambda o: o.__name__)
def test_compiled_code_has_the_bits_of_the_eager_operator(operator):
    x = torch.linspace(-0.999, 0.999, 500)
    compiled = torch.compile(lambda x: operator(x) * 2)
    theirs = stock(lambda: operator(x) * 2)
    with patched("corem"):
        assert bits(compiled(x)) == bits(operator(x) * 2) != bits(theirs)
        found = coverage(lambda: compiled(x), compiled=True)
    assert found.share == 1.0
    torch.testing.assert_close(compiled(x), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_lgamma_in_16_bits_is_right_and_the_sessions(dtype):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    exact = torch.lgamma(x.double()).to(dtype)
    theirs = stock(lambda: torch.lgamma(x))

    def wrong(y):
        return int(((y != exact) & ~exact.isnan()).sum())

    with patched("corem"):
        for ours in (torch.lgamma(x), torch.lgamma(x), x.clone().lgamma_()):
            assert wrong(ours) == 0
            assert torch.equal(ours.isnan(), exact.isnan())
        gaps = torch.empty(len(x) // 2, 2, dtype=dtype)[:, 0]
        assert bits(torch.lgamma(x[::2], out=gaps)) == bits(torch.lgamma(x)[::2])
    assert wrong(theirs) > 0
    near = torch.linspace(0.1, 0.9, 100).to(dtype)
    assert coverage(lambda: torch.lgamma(near)).share == 1.0
    left = torch.linspace(-0.9, 0.9, 64, dtype=dtype).requires_grad_()
    with patched("corem"):
        (grad,) = torch.autograd.grad(torch.lgamma(left).sum(), left)
    assert bits(grad) == bits(torch.digamma(left))


def test_lgamma_is_the_sessions_within_a_unit_of_stocks_distance():
    """Below -1/2 the unit is that of the largest sum: there are roots, where neither has digits."""
    generator = torch.Generator().manual_seed(0)

    def uniform(low, high):
        return low + (high - low) * torch.rand(20000, generator=generator)

    ends = (-0.5, 0.0, 0.5, 0.75, 1.25, 1.5, 2.5, 3.5, 8.5, 20.0, 1e4)
    right = [uniform(*pair) for pair in itertools.pairwise(ends)]
    right += [torch.exp2(uniform(*pair)) for pair in ((-149, -2), (4, 121))]
    left = [uniform(*pair) for pair in itertools.pairwise((-40.0, -3.0, -2.0, -1.0, -0.5))]
    for x in right + left:
        exact, theirs = torch.lgamma(x.double()), stock(lambda x=x: torch.lgamma(x))
        with patched("corem"):
            ours = torch.lgamma(x)
        size = exact.abs().clamp_min(1.0) if x[0] < -0.5 else exact.abs()
        unit = torch.exp2(size.log2().floor() - 23)
        mine, stocks = (((y.double() - exact).abs() / unit).max() for y in (ours, theirs))
        assert mine <= stocks + 1
    with patched("corem"):
        poles = torch.lgamma(torch.tensor([0.0, -0.0, -1.0, -3e38, torch.inf, -torch.inf]))
        of_nan = torch.lgamma(torch.tensor([torch.nan]))
        roots = torch.lgamma(torch.tensor([1.0, 2.0]))
        ours_of_large = torch.lgamma(right[-1])
        # Stock is infinite from 4.037e36 on.
        large = torch.lgamma(torch.tensor([4.05e36, 4.2e36]))
    assert poles.isposinf().all()
    assert of_nan.isnan().all()
    assert roots.tolist() == [0.0, 0.0]
    assert large.isposinf().tolist() == [False, True]
    with patched("canary"):  # its logarithm is wrong in the last bit
        assert bits(torch.lgamma(right[-1])) != bits(ours_of_large)
    (row,) = coverage(lambda: torch.lgamma(left[0][:100])).rows
    assert row.swapped == {"log": 100}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_powers_by_a_number_are_the_sessions_in_every_layout(dtype):
    """Stock computes what is left of whole vectors, and tensors with gaps, in double."""
    x = torch.linspace(0.1, 3, 403).to(dtype)

    def forms():
        out, written = torch.empty(0, dtype=dtype), x.clone()
        return (
            torch.pow(x, 2.5), x[::3].pow(2.5), torch.pow(x, 2.5, out=out), written.pow_(2.5),
            x.reshape(13, 31).t() ** 2.5, x[5] ** 2.5, x[:0] ** 2.5, x**-3, x**2.3,
        )  # fmt: skip

    theirs = stock(forms)
    with patched("corem"):
        forms()  # through Python, and then from C++
        ours = forms()
        by_tensor = torch.pow(x, torch.full_like(x, 2.5))
    for one, other in zip(ours, theirs, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    whole, gaps, out, written, *_ = ours
    assert bits(whole) == bits(out) == bits(written) == bits(by_tensor)
    assert bits(gaps) == bits(whole[::3])
    for exponent, one, other in ((2.5, ours[0], theirs[0]), (-3, ours[7], theirs[7])):
        assert farther(one, other, x.double() ** exponent) <= 0
    found = coverage(lambda: (x.pow(2.5), x[::3].pow(2.5), x[3:6].pow(2.5)))
    assert found.complete, found.text()
    with patched("canary"):
        changed = bits(x[::3] ** 2.5) != bits(gaps)
    assert changed or dtype != torch.float32  # rounding hides a unit of float32


def test_powers_that_need_no_function_and_other_dtypes_stay_stock():
    x = torch.linspace(0.1, 3, 100)
    calls = [
        *(lambda e=e: x**e for e in (-2, -1, -0.5, 0, 0.5, 1, 2, 3)),
        lambda: x.double() ** 2.5,
        lambda: torch.arange(9) ** 3,
        lambda: x ** (2 + 1j),
        lambda: torch.arange(9) ** 2.5,
    ]
    theirs = stock(lambda: [call() for call in calls])
    with patched("canary", functions=("pow",)):
        for call, other in zip(calls[:-1], theirs, strict=False):
            assert torch.equal(call(), other)
        assert calls[-1]().dtype == torch.float32
        with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
            torch.arange(3) ** -4
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            torch.arange(3).pow_(2.5)
    wide = x.double().requires_grad_()
    narrow = x.clone().requires_grad_()
    with patched("corem"):
        grads = [torch.autograd.grad((v**2.5).sum(), v)[0] for v in (narrow, wide)]
        assert torch.func.vmap(lambda v: v**2.5)(x.reshape(10, 10)).shape == (10, 10)
    torch.testing.assert_close(grads[0], grads[1].float())


def test_coverage_sees_powers_that_are_not_overridden(monkeypatch):
    gaps = torch.linspace(0.1, 3, 100)[::2]
    monkeypatch.setattr(operators, "kernels", lambda loops: {})
    with anew():
        (row,) = coverage(lambda: gaps**2.5).rows
    assert row.share == 0.0
    assert "double" in row.reasons[0]


def inlined_elsewhere():
    """Operator -> a call that evaluates functions, all of which are the session's."""
    x = torch.linspace(0.1, 0.9, 96)
    square, query = x.reshape(12, 8), x.reshape(1, 2, 6, 8)

    def layer(kind):
        made, steps = kind(8, 4), torch.ones(3, 2, 8)
        return lambda: made(steps)[0].sum().backward()

    return {
        "gelu": lambda: (F.gelu(x), F.gelu(x, approximate="tanh")),
        "gelu_backward": lambda: [
            ATEN.gelu_backward(x, x, approximate=how) for how in ("none", "tanh")
        ],
        "attention": lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True),
        "LSTM": layer(torch.nn.LSTM),
        "GRU": layer(torch.nn.GRU),
        "RNN": layer(torch.nn.RNN),
        "randn": lambda: torch.randn(100),
        "logaddexp": lambda: (torch.logaddexp(x, -x), torch.logaddexp2(x, -x)),
        "xlogy": lambda: (torch.xlogy(x, x), torch.special.xlog1py(x, x)),
        "logit": lambda: (torch.logit(x), torch.logit(x, 1e-3)),
        "sinc": lambda: torch.sinc(x),
        "glu": lambda: (F.glu(square), ATEN.glu_backward(square[:, :4], square, 1)),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(x, x),
        "with logits": lambda: F.binary_cross_entropy_with_logits(x, x),
        "digamma": lambda: torch.digamma(x),
    }


#: Those of them that a session overrides; it reaches the others through symbols.
OVERRIDDEN = {"gelu", "gelu_backward", "attention", "LSTM", "randn"}


def test_operators_whose_functions_other_devices_inline_are_the_sessions(monkeypatch):
    for name, call in inlined_elsewhere().items():
        found = coverage(call)
        assert found.rows, name
        assert found.complete, f"{name}: {found.text()}"
    monkeypatch.setattr(operators, "kernels", lambda loops: {})  # the negative control
    with anew():
        lost = {name for name, call in inlined_elsewhere().items() if coverage(call).share < 1.0}
    assert lost == OVERRIDDEN


def test_what_stays_stock_is_what_the_page_says():
    page = (Path(__file__).parents[2] / "docs" / "swap" / "cpu.md").read_text()
    stays = page[page.index("## What stays stock") : page.index("## What float32")]
    table, rest = stays.rsplit("|", 1)
    for name, (call, reached) in special_calls().items():
        assert coverage(call).complete is reached, name
        assert f"{name}`" in (rest if reached else table) or name == "Adam"


def test_coverage_sees_an_override_with_stock_functions(monkeypatch):
    """The kernels' own rounding is no swap."""
    addresses = loops.Loops.addresses

    def stock_addresses(self, functions):
        with monkeypatch.context() as without:
            without.setattr(self, "_parts", {})
            return addresses(self, functions)

    q = torch.linspace(-3, 3, 512).reshape(1, 2, 16, 16)
    with patched("std"), anew(), monkeypatch.context() as changed:
        changed.setattr(loops.Loops, "addresses", stock_addresses)
        found = coverage(lambda: (F.gelu(q), F.scaled_dot_product_attention(q, q, q)))
    assert found.share == 0.0


def test_every_formula_has_a_form_in_c():
    text = c_source.source(sorted(FORMULAS))
    for name in FORMULAS:
        assert f"void pointwise_{name}(" in text


@pytest.mark.parametrize(
    "level", [pytest.param("baseline", marks=pytest.mark.slow), "avx2", "avx512"]
)
def test_every_cpu_level_gives_the_same_bits(level, monkeypatch):
    try:
        build = pytest_udftorch.build_library("corem", level)
        build.load()
    except pytest_udftorch.UdfError as error:
        pytest.skip(str(error))
    x = torch.linspace(-5, 5, 4001)
    with patched("corem"):
        expected = {d: F.gelu(x.to(d)) for d in DTYPES}
    monkeypatch.setattr(loops.Loops, "level", lambda self: level)
    with patched("std"), anew(), patched("corem"):
        for dtype, y in expected.items():
            assert torch.equal(F.gelu(x.to(dtype)), y)


def test_loops_that_do_not_compile_say_so(monkeypatch):
    monkeypatch.setattr(loops, "source", lambda formulas: "#error broken\n")
    loops._compiled.cache_clear()
    try:
        with (
            patched("std"),
            anew(),
            patched("corem"),
            pytest.raises(pytest_udftorch.UdfError, match="loops of CPU operators do not compile"),
        ):
            F.gelu(torch.ones(3))
    finally:
        loops._compiled.cache_clear()
