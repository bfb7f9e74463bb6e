# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA under a session, on a GPU: same bits as the CPU, torch's own semantics."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch.errors import SessionBusyError, SwapError
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.compiled.triton import stock_libdevice
from pytest_udftorch.swap.operators.table import BARE, POINTWISE, overloads
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.session.session import patched

triton = pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

SCALE = (0.01, 0.3, 1.0, 4.0, 30.0)
BINARY = ("pow", "atan2", "hypot")
COMPOSED = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "elu": lambda x: F.elu(x, 0.7),
    "elu of ones": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "softplus": lambda x: F.softplus(x, 1.3, 5.0),
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def numbers(count: int = 5000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    parts = [torch.randn(count // len(SCALE), generator=generator) * s for s in SCALE]
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-42])
    return torch.cat([*parts, special])


def bits(x: torch.Tensor) -> torch.Tensor:
    """Encodings on the CPU with one NaN."""
    x = x.detach().cpu().contiguous()
    integer = torch.int32 if x.dtype == torch.float32 else torch.int16
    return x.view(integer).masked_fill(x.isnan(), -1)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(bits(a), bits(b))


@pytest.fixture
def corem():
    torch.cuda.init()
    with patched("corem") as session:
        yield session


@pytest.mark.parametrize("name", BARE)
def test_a_function_gives_the_bits_of_the_cpu(corem, name):
    x = numbers()
    function = getattr(torch, name)
    assert same(function(x.cuda()), function(x))


@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_gives_the_bits_of_the_cpu(corem, name):
    x, y = numbers(), numbers().flip(0)
    function = getattr(torch, name)
    assert same(function(x.cuda(), y.cuda()), function(x, y))
    wide = function(x.cuda()[:, None], y.cuda()[:7])
    assert same(wide, function(x[:, None].expand(-1, 7).contiguous(), y[:7].expand(len(x), 7)))


@pytest.mark.parametrize("exponent", [2.5, -0.3, 7, 2, 0.5, -1.0])
def test_pow_with_a_number(corem, exponent):
    x = numbers().abs()
    stock = {2, 0.5, -1.0}
    got = torch.pow(x.cuda(), exponent)
    if exponent not in stock:
        assert same(got, torch.pow(x, torch.full_like(x, exponent)))
    assert same(x.cuda().pow_(exponent), got)
    base = torch.pow(2.5, x.cuda())
    assert same(base, torch.pow(torch.full_like(x, 2.5), x))


@pytest.mark.parametrize("name", COMPOSED)
def test_an_operator_made_of_functions_gives_the_bits_of_the_cpu(corem, name):
    x = numbers()
    assert same(COMPOSED[name](x.cuda()), COMPOSED[name](x))


@pytest.mark.parametrize("name", [n for n in COMPOSED if n != "celu"])
def test_its_gradient_gives_the_bits_of_the_cpu(corem, name):
    x = numbers()[:5000]
    grad = numbers()[:5000].flip(0)
    found = []
    for device in ("cuda", "cpu"):
        leaf = x.to(device).requires_grad_()
        with torch.backends.mkldnn.flags(enabled=False):  # it has code of its own for gelu
            COMPOSED[name](leaf).backward(grad.to(device))
        found.append(leaf.grad.cpu())
    if name == "gelu tanh":  # torch 2.11 and 2.15 differ in which products they fuse
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6, equal_nan=True)
    else:
        assert same(*found)


def test_gelu_is_made_of_the_functions_of_the_session(corem):
    x = numbers()[:5000]
    half = torch.tensor(0.5)
    want = x * half * (1.0 + torch.erf(x * 0.7071067811865476))
    assert same(F.gelu(x.cuda()), want)
    leaf = x.cuda().requires_grad_()
    F.gelu(leaf).sum().backward()
    wide = x.double()
    exact = torch.special.ndtr(wide) + wide * torch.exp(-0.5 * wide * wide) / (2 * torch.pi) ** 0.5
    torch.testing.assert_close(leaf.grad.cpu().double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 1), (33, 7), (17, 1000), (5, 4096), (3, 50257), (2, 3, 40)])
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_and_its_kin_are_as_near_as_the_stock_operators(shape, dim, dtype):
    x = torch.randn(shape, device="cuda").mul_(4).to(dtype)
    grad = torch.randn(shape, device="cuda").to(dtype)

    def everything(x, grad):
        leaf = x.detach().requires_grad_()
        log = F.log_softmax(leaf, dim)
        log.backward(grad)
        return (
            F.softmax(x, dim), log.detach(), leaf.grad, torch.logsumexp(x, dim),
            F.softmax(x, dim, dtype=torch.float32),
        )  # fmt: skip

    stock = everything(x, grad)
    exact = everything(x.double(), grad.double())
    with patched("corem"):
        found = everything(x, grad)
    for got, before, want in zip(found, stock, exact, strict=True):
        assert got.dtype == before.dtype
        assert got.shape == before.shape
        assert got.stride() == before.stride()
        mine, theirs = (float((t.double() - want).abs().max()) for t in (got, before))
        # Sums in another order.
        assert mine <= 4 * theirs + 1e-5


def test_softmax_of_infinities_and_nan(corem):
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor(
        [[-inf, -inf, -inf], [inf, 0.0, 0.0], [nan, 0.0, 1.0], [-inf, 0.0, -inf]], device="cuda"
    )
    for x in (rows, rows.repeat(1, 7000)):
        for function in (F.softmax, F.log_softmax):
            want = function(x.cpu(), -1)
            got = function(x, -1).cpu()
            assert torch.equal(got.isnan(), want.isnan())
            torch.testing.assert_close(got, want, equal_nan=True)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "every other": lambda x: x[..., ::2],
    "offset": lambda x: x.flatten()[1:],
    "broadcast": lambda x: x[:1].expand(6, *x.shape[1:]),
    "zero dimensions": lambda x: x.flatten()[3],
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_strides_and_values_in_every_layout(layout, dtype):
    base = numbers(5 * 448)[: 4 * 5 * 7 * 16].reshape(4, 5, 7, 16).to(dtype)
    x = LAYOUTS[layout](base.cuda())
    operators = (torch.exp, F.silu, lambda t: F.elu(t, 0.7), torch.tanh)
    stock = [f(x) for f in operators]
    with patched("corem"):
        for f, before in zip(operators, stock, strict=True):
            got = f(x)
            assert got.stride() == before.stride()
            assert got.dtype == before.dtype
            # Computed in float32 and rounded once.
            want = f(x.cpu().float().contiguous()).to(dtype)
            assert same(got, want)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "every other", "channels last"])
def test_out_and_in_place(corem, layout):
    x = LAYOUTS[layout](numbers(5 * 448)[: 4 * 5 * 7 * 16].reshape(4, 5, 7, 16).cuda())
    want = torch.exp(x.cpu().contiguous())
    out = torch.zeros_like(x)
    assert torch.exp(x, out=out) is out
    assert same(out, want)
    backwards = torch.zeros(*x.shape[::-1], device="cuda").permute(3, 2, 1, 0)
    assert same(torch.exp(x, out=backwards), want)
    wide = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    assert torch.exp(x, out=wide).dtype == torch.float64
    assert torch.equal(wide.cpu().nan_to_num(1.0), want.double().nan_to_num(1.0))
    buffer = x.clone()
    version = buffer._version
    assert buffer.exp_() is buffer
    assert buffer._version == version + 1
    assert same(buffer, want)
    view = torch.zeros(*x.shape, 2, device="cuda")[..., 0]
    view.copy_(x)
    torch.exp(view, out=view)
    assert same(view, want)


def test_errors_and_warnings_are_those_of_the_stock_operators(corem):
    x = torch.randn(8, device="cuda")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.exp(x, out=torch.zeros(8, dtype=torch.int32, device="cuda"))
    with pytest.raises(RuntimeError, match="single memory location"):
        x[:1].expand(8).exp_()
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
        torch.exp(x[:-1], out=x[1:])
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(3, dtype=torch.int64, device="cuda").exp_()
    out = torch.zeros(3, device="cuda")
    with pytest.warns(UserWarning, match="was resized"):
        torch.exp(x, out=out)
    assert same(out, torch.exp(x.cpu()))


def test_other_dtypes(corem):
    x = torch.linspace(-3, 3, 100, dtype=torch.float64)
    assert torch.equal(torch.exp(x.cuda()), patched_out(lambda: torch.exp(x.cuda())))
    whole = torch.arange(-9, 9)
    assert same(torch.exp(whole.cuda()), torch.exp(whole))
    assert same(torch.sigmoid(whole.cuda() > 0), torch.sigmoid(whole > 0))
    z = torch.complex(numbers()[:50], numbers()[50:100]).cuda()
    assert torch.equal(torch.exp(z), patched_out(lambda: torch.exp(z)))
    mixed = torch.atan2(x.float().cuda(), x.bfloat16().cuda())
    assert same(mixed, torch.atan2(x.float(), x.bfloat16().float()))


def patched_out(call):
    """Call under the stock functions, inside of whatever is open."""
    with patched("std"):
        return call()


def test_lists_of_tensors(corem):
    xs = [numbers()[:n] for n in (1, 17, 300)]
    got = torch._foreach_exp([x.cuda() for x in xs])
    assert all(same(g, torch.exp(x)) for g, x in zip(got, xs, strict=True))
    inplace = [x.cuda() for x in xs]
    torch._foreach_sigmoid_(inplace)
    assert all(same(g, torch.sigmoid(x)) for g, x in zip(inplace, xs, strict=True))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 1023, 1024, 1025, 4099])
def test_lengths_and_offsets(corem, length):
    x = numbers()
    for offset in (0, 1, 2, 3, 4):
        part = x[offset : offset + length]
        assert same(torch.log(x.cuda()[offset : offset + length]), torch.log(part))


def test_more_than_two_to_the_31_elements(corem):
    n = 2**31 + 2**20 + 3
    x = torch.zeros(n, dtype=torch.bfloat16, device="cuda")
    tail = numbers().bfloat16()
    x[-len(tail) :] = tail.cuda()
    y = torch.exp(x)
    assert same(y[-len(tail) :], torch.exp(tail.float()).bfloat16())
    assert bool((y[: -len(tail)] == 1).all())
    rows = x.view(1, -1)[:, : 2**31 + 8].view(2, -1)
    z = F.softmax(rows[:, :], 0)
    assert bool((z[:, :1000] == 0.5).all())


def test_streams_and_graphs(corem):
    x = numbers().cuda()
    want = torch.sin(x.cpu())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = torch.sin(x)
        F.silu(x)
    stream.synchronize()
    assert same(y, want)
    graph = torch.cuda.CUDAGraph()
    static = x.clone()
    with torch.cuda.graph(graph):
        out = F.silu(torch.sin(static))
    static.copy_(x.flip(0))
    graph.replay()
    assert same(out, F.silu(torch.sin(x.cpu().flip(0))))


def test_a_session_inside_a_capture_is_refused_and_changes_nothing():
    x = torch.ones(3, device="cuda")
    stock = torch.exp(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        session = patched("corem")
        with pytest.raises(SessionBusyError, match="before the capture"):
            session.__enter__()
    graph.replay()
    assert same(y, torch.full((3,), 2.0))
    assert not follower.active.parts
    assert same(torch.exp(x), stock)


def test_nested_sessions_and_the_bits_of_before():
    x = numbers().cuda()
    stock = torch.exp(x), torch.log(x)
    with patched("corem"):
        right = torch.exp(x), torch.log(x)
        with patched("canary", functions=("exp",)):
            wrong = torch.exp(x), torch.log(x)
        again = torch.exp(x)
    assert not same(wrong[0], right[0])
    assert same(wrong[1], right[1])
    assert same(again, right[0])
    assert not same(right[0], stock[0])
    assert all(same(f(x), s) for f, s in zip((torch.exp, torch.log), stock, strict=True))


def test_autograd_autocast_and_inference_mode(corem):
    x = numbers()[:5000].clamp(-20, 20)
    found = []
    for device in ("cuda", "cpu"):
        leaf = x.to(device).requires_grad_()
        (torch.exp(leaf) + torch.sin(leaf) + torch.tanh(leaf)).sum().backward()
        found.append(leaf.grad)
    assert same(*found)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert F.softmax(x.cuda().bfloat16(), 0).dtype == torch.float32
    with torch.inference_mode():
        assert same(torch.exp(x.cuda()), torch.exp(x))


def test_compiled_code_agrees_with_eager():
    x = numbers().cuda()
    functions = (torch.exp, torch.log, torch.sin, torch.tanh, torch.erf)

    @torch.compile
    def several(x):
        return [f(x) for f in functions]

    stock = several(x)
    found = {}
    for library in ("corem", "canary", "corem"):
        with patched(library):
            found[library] = several(x)
            for got, f in zip(found[library], functions, strict=True):
                assert same(got, f(x))
    assert not same(found["corem"][0], found["canary"][0])
    assert all(same(a, b) for a, b in zip(several(x), stock, strict=True))


@pytest.mark.parametrize("name", COMPOSED)
def test_compiled_composed_operators_have_the_bits_of_eager_ones(corem, name):
    # Those that divide and, in gelu, fuse otherwise without the session's changes of Inductor.
    torch._dynamo.reset()
    compiled = torch.compile(COMPOSED[name], fullgraph=True)
    x = numbers()
    for dtype in (torch.float32, torch.bfloat16, torch.half):
        eager = COMPOSED[name](x.to(dtype).cuda())
        assert same(compiled(x.to(dtype).cuda()), eager)


def test_compiled_quotients_are_correctly_rounded_inside_only():
    x, y = torch.randn(2, 1 << 16, device="cuda").unbind()

    def quotients(x, y):
        return x / y, torch.sigmoid(x), torch.reciprocal(y)

    compiled = torch.compile(quotients, fullgraph=True)
    before = compiled(x, y)
    with patched("corem"):
        inside = compiled(x, y)
        for got, want in zip(inside, quotients(x, y), strict=True):
            assert same(got, want)
    after = compiled(x, y)
    assert all(same(a, b) for a, b in zip(before, after, strict=True))
    assert not same(before[0], inside[0])


def test_nothing_warns_at_registration():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with patched("corem"):
            torch.exp(torch.ones(3, device="cuda"))


def test_a_libdevice_that_triton_does_not_use_is_noticed():
    """The check on the first use compares with the bits of the build."""
    from pytest_udftorch.swap.toolchain.libdevice import libdevice_for

    torch.cuda.init()
    x = torch.ones(3, device="cuda")
    with patched("corem"):
        other = libdevice_for(follower.active.parts, stock_libdevice(triton.__file__))
    cases = (
        # Selections of their own: nothing is compiled for them yet.
        (("exp", "tanh"), other, SwapError),
        (("exp", "tan"), None, SwapError),
    )
    for functions, path, error in cases:
        with patched("canary", functions=functions):
            triton.knobs.nvidia.libdevice_path = path and str(path)
            with pytest.raises(error):
                torch.exp(x)


def test_every_overload_is_overridden_only_inside():
    names = overloads(frozenset(op.name for op in POINTWISE) | {"exp"})
    with patched("corem"):
        for n in names:
            assert switchboard.called(f"aten::{n}", "CUDA") != "stock", n
    for n in names:
        assert switchboard.called(f"aten::{n}", "CUDA") == "stock", n


def test_launches_are_noted_for_the_summary_of_a_test_run():
    from pytest_udftorch.swap.cuda.launcher import launched

    x = torch.ones(100, device="cuda")
    with patched("corem"):
        torch.exp(x)
        launched()
        for _ in range(2):  # the first is launched from Python
            torch.exp(x)
            torch.softmax(x, 0)
            assert launched() == {"exp", "softmax_rows"}
    launched()
    torch.exp(x)
    assert not launched()


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_a_kernel_serves_each_pattern_of_alignment(shift):
    # A kernel compiled for an aligned result accessed it 16 bytes at a time. The same kernel then
    # served a result that is not aligned: compute-sanitizer found it.
    x = torch.linspace(-3, 3, 4097 + shift, device="cuda")
    aligned, moved = x[:4097].clone(), x[shift:]
    whole = torch.empty_like(x)
    with patched("corem"):
        want, rows = torch.exp(moved.clone()), torch.softmax(moved.clone(), 0)
        assert torch.equal(torch.exp(moved), want)
        assert torch.equal(torch.exp(moved, out=whole[shift:]), want)
        assert torch.equal(torch.softmax(moved, 0), rows)
        assert torch.equal(torch.softmax(moved, 0, out=whole[shift:]), rows)
        torch.exp(aligned, out=whole[shift:])
        assert torch.equal(whole[shift:], torch.exp(aligned))
        assert torch.equal(torch.exp_(moved), want)
        torch.hypot(aligned, moved)
        torch.hypot(moved, aligned)
        torch.hypot(moved, aligned, out=whole[shift:])
    torch.cuda.synchronize()


def test_a_kernel_that_is_first_launched_between_graphs_is_no_part_of_one():
    """Dynamo sees frames of Triton there, which hold the kernel and its arguments."""
    x = torch.randn(37, 41, device="cuda")  # a shape that no other test has compiled

    @torch._dynamo.disable(recursive=False)  # frames that it enters are compiled
    def between(x):
        return torch.softmax(x, 0)

    with patched("corem"):
        torch.compiler.reset()
        found = torch.compile(lambda x: between(x) + 1)(x)
        assert torch.equal(found, torch.softmax(x, 0) + 1)
