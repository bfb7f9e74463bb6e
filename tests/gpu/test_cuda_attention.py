# SPDX-License-Identifier: Apache-2.0
"""Fused attention and other operators that the session's kernels take over, on a GPU."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.cuda.launcher import launched
from pytest_udftorch.swap.session.session import patched

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # float64's gradient
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

FLASH, EFFICIENT, CUDNN = (
    SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION,
)  # fmt: skip


def heads(batch, count, length, size, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = batch, count, length, size
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def run(backend, tensors, mask=None, **options):
    """Return the result and the gradients."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(*leaves, attn_mask=mask, **options)
    grad = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape).to(out.dtype)
    out.backward(grad)
    return out.detach(), *(t.grad for t in leaves)


def check(backend, tensors, mask=None, **options):
    """Compare with float64: no farther than twice the stock kernel."""
    wide_mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    exact = run(SDPBackend.MATH, [t.double() for t in tensors], wide_mask, **options)
    stock = run(backend, tensors, mask, **options)
    with patched("corem"):
        launched()
        found = run(backend, tensors, mask, **options)
        names = launched()
        assert {"attention_forward", "attention_queries", "attention_keys"} <= names
        again = run(backend, tensors, mask, **options)
    for name, mine, theirs, want, second in zip("oqkv", found, stock, exact, again, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.stride() == theirs.stride(), name
        assert torch.equal(mine, second), name
        error, before = (float((t.double() - want).abs().max()) for t in (mine, theirs))
        assert error <= 2 * before + 1e-6, (name, error, before)


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT, CUDNN], ids=lambda b: b.name)
def test_a_length_needs_no_kernel_of_its_own_and_no_python(backend):
    """As decoding with a cache, where every token brings another number of keys."""
    cpp = direct.load()
    query = heads(2, 4, 1, 64)

    def attend(length):
        key, value = (heads(2, 4, length, 64, seed=i) for i in (1, 2))
        with torch.no_grad(), sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value)

    with patched("corem"):
        attend(5)
        before = cpp.launches()
        found = {length: attend(length) for length in range(6, 40)}
        assert cpp.launches() - before == len(found)
    for length, result in found.items():
        key, value = (heads(2, 4, length, 64, seed=i).double() for i in (1, 2))
        exact = F.scaled_dot_product_attention(query.double(), key, value)
        torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT, CUDNN], ids=lambda b: b.name)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
def test_each_form_is_as_near_as_the_stock_kernel(backend, causal, size):
    check(backend, [heads(2, 3, 257, size, seed=i) for i in range(3)], is_causal=causal)


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT, CUDNN], ids=lambda b: b.name)
def test_compiled_code_takes_the_results_of_each_form(backend):
    """It asks for tensors at multiples of 16 bytes, also where a result is one number."""
    tensors = [heads(1, 2, 64, 64, seed=i) for i in range(3)]

    def attended(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q * 2, k, v) + 1

    def gradients(call):
        leaves = [t.detach().requires_grad_() for t in tensors]
        out = call(*leaves)
        return out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)

    with patched("corem"):
        eager = gradients(attended)
        torch.compiler.reset()
        compiled = gradients(torch.compile(attended))
    for one, other in zip(compiled, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.half])
def test_dtypes(dtype):
    check(EFFICIENT, [heads(2, 2, 200, 64, dtype, i) for i in range(3)], is_causal=True)


@pytest.mark.parametrize("size", [8, 40, 256])
def test_sizes_of_heads(size):
    check(FLASH, [heads(1, 2, 100, size, seed=i) for i in range(3)])


@pytest.mark.parametrize("lengths", [(1, 1), (1, 77), (130, 3)])
def test_lengths(lengths):
    queries, keys = lengths
    tensors = [heads(2, 2, n, 64, seed=i) for i, n in enumerate((queries, keys, keys))]
    check(FLASH, tensors)
    check(EFFICIENT, tensors, is_causal=True)


def test_heads_that_share_keys():
    tensors = [heads(2, n, 130, 64, seed=i) for i, n in enumerate((6, 2, 2))]
    check(FLASH, tensors, is_causal=True, enable_gqa=True)


def test_strides():
    packed = heads(2, 100, 4, 3 * 64)
    check(FLASH, [t.transpose(1, 2) for t in packed.chunk(3, -1)])


@pytest.mark.parametrize("kind", ["bool", "additive", "broadcast"])
def test_masks(kind):
    tensors = [heads(2, 3, 96, 64, seed=i) for i in range(3)]
    mask = heads(2, 3, 96, 96, seed=9)
    if kind == "bool":
        mask = mask > -0.5
    check(EFFICIENT, tensors, mask[:1, :1] if kind == "broadcast" else mask)


@pytest.mark.parametrize("shape", [(2, 1, 96, 96), (1, 1, 96, 96), (1, 96, 96), (96, 96)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_masks_of_the_cudnn_form_are_shared_by_batch_and_heads(shape, kind):
    """PyTorch hands them on as they are. Compiled models make masks that others leave out."""
    tensors = [heads(2, 3, 96, 64, seed=i) for i in range(3)]
    mask = heads(2, 3, 96, 96, seed=9).flatten()[: torch.Size(shape).numel()].view(shape)
    mask = mask > -0.5 if kind == "bool" else mask
    try:
        run(CUDNN, tensors, mask)
    except RuntimeError as error:  # as torch 2.11 does with three dimensions
        if len(shape) != 3 or "No available kernel" not in str(error):
            raise
        pytest.skip("torch's own attention of cuDNN refuses this mask")
    check(CUDNN, tensors, mask)


def test_the_gradient_of_a_mask():
    tensors = [heads(1, 2, 64, 64, torch.float32, i) for i in range(3)]
    found = []
    for library in ("std", "corem"):
        mask = heads(1, 2, 64, 64, torch.float32, 9).requires_grad_()
        with patched(library):
            run(EFFICIENT, tensors, mask)
        found.append(mask.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_the_functions_are_those_of_the_session():
    # In float32: the canary changes single bits.
    tensors = [heads(1, 2, 96, 64, torch.float32, i) for i in range(3)]
    stock = run(EFFICIENT, tensors)
    with patched("corem"):
        right = run(EFFICIENT, tensors)
    with patched("canary", functions=("exp",)):
        wrong = run(EFFICIENT, tensors)
    assert [torch.equal(a, b) for a, b in zip(right, wrong, strict=True)] == [False] * 4
    assert all(torch.equal(a, b) for a, b in zip(stock, run(EFFICIENT, tensors), strict=True))


@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_the_logarithms_of_the_sums(name):
    q, k, v = (heads(2, 2, 70, 64, seed=i) for i in range(3))
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")
    more = (None, True) if name == "efficient" else ()
    stock = operator(q, k, v, *more)
    with patched("corem"):
        found = operator(q, k, v, *more)
    assert found[1].shape == stock[1].shape
    # The sum is that of the rounded weights.
    torch.testing.assert_close(found[1], stock[1], rtol=0, atol=2**-9)
    for mine, theirs in zip(found, stock, strict=True):
        assert type(mine) is type(theirs)


def test_dropout_drops_the_same_weights_in_both_directions():
    # Equal scores and values of one: the result is the share of weights kept, scaled.
    q = torch.zeros(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
    v = torch.ones_like(q).requires_grad_()
    with patched("corem"), sdpa_kernel(FLASH):
        torch.manual_seed(3)
        out = F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
        torch.manual_seed(3)
        assert torch.equal(out, F.scaled_dot_product_attention(q, q, v, dropout_p=0.5))
        assert not torch.equal(out, F.scaled_dot_product_attention(q, q, v, dropout_p=0.5))
        out.sum().backward()
    out = out.detach()
    assert 0.9 < float(out.float().mean()) < 1.1
    torch.testing.assert_close(
        v.grad.float().sum((2, 3)), out.float().sum((2, 3)), rtol=1e-2, atol=0
    )


def test_the_gradient_of_dropout_is_refused_after_the_session():
    """Stock's kernel would drop other weights than the forward pass did."""
    q = heads(1, 1, 64, 64, torch.bfloat16).requires_grad_()
    with patched("corem"), sdpa_kernel(FLASH):
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    with pytest.raises(RuntimeError, match=r"expected scalar type|dtype"):
        out.sum().backward()


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT], ids=lambda b: b.name)
def test_the_gradient_of_what_stock_dropped_is_stocks(backend):
    q = heads(1, 2, 64, 64).requires_grad_()
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    (stock,) = torch.autograd.grad(out.sum(), q, retain_graph=True)
    with patched("corem"):
        (found,) = torch.autograd.grad(out.sum(), q)
    torch.testing.assert_close(found, stock)  # atomics: not always the same bits


def test_what_stock_refuses_is_refused_with_its_message():
    q = heads(1, 1, 16, 64, torch.float32)
    operator = torch.ops.aten._scaled_dot_product_flash_attention

    def message():
        with pytest.raises(RuntimeError) as caught:
            operator(q, q, q)
        return str(caught.value).partition("\n")[0]

    stock = message()
    with patched("corem"):
        assert message() == stock


def test_autocast_graphs_and_compiled_code():
    tensors = [heads(1, 2, 128, 64, torch.float32, i) for i in range(3)]
    halves = [t.bfloat16() for t in tensors]
    with patched("corem"), sdpa_kernel(FLASH):
        want = F.scaled_dot_product_attention(*halves)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.equal(F.scaled_dot_product_attention(*tensors), want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = F.scaled_dot_product_attention(*halves)
        graph.replay()
        assert torch.equal(out, want)
        compiled = torch.compile(lambda *t: F.scaled_dot_product_attention(*t) + 0)
        assert torch.equal(compiled(*halves), want)


def test_a_profiled_session_counts_each_score():
    tensors = [heads(1, 2, 40, 64, seed=i) for i in range(3)]
    with patched("corem"), sdpa_kernel(FLASH):
        want = F.scaled_dot_product_attention(*tensors, is_causal=True)
    with patched("corem", profile=True) as session, sdpa_kernel(FLASH):
        got = F.scaled_dot_product_attention(*tensors, is_causal=True)
        torch.cuda.synchronize()
        rows = session.profile.rows("function", "operator", "device")
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    counted = {
        r.key["function"]: r.elements
        for r in rows
        if r.key["device"] == "cuda" and "flash" in r.key["operator"]
    }
    # Two heads of 40 queries; the first sees one key, the last all.
    assert counted == {"exp": 2 * 40 * 41 // 2, "log": 2 * 40}


# Operators that map elements ----------------------------------------------------------------

POSITIVE = torch.linspace(0.001, 0.999, 5000)
ANY = torch.linspace(-30, 30, 5000)
POINTWISE = {
    "logaddexp": (lambda x: torch.logaddexp(x, x.flip(0)), ANY),
    "logaddexp2": (lambda x: torch.logaddexp2(x, x.flip(0)), ANY),
    "xlogy": (lambda x: torch.xlogy(x, x.flip(0)), POSITIVE),
    "xlog1py": (lambda x: torch.special.xlog1py(x, x.flip(0)), POSITIVE),
    "logit": (torch.logit, POSITIVE),
    "logit clamped": (lambda x: torch.logit(x, 0.1), POSITIVE),
    "sinc": (torch.sinc, ANY),
    "glu": (lambda x: F.glu(x, 0), ANY),
    "bce": (
        lambda x: F.binary_cross_entropy(x, 0.3 + 0 * x.detach(), x.detach(), reduction="none"),
        POSITIVE,
    ),
    "bce mean": (lambda x: F.binary_cross_entropy(x, 0.3 + 0 * x.detach()), POSITIVE),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_an_operator_of_elements_and_its_gradient(name):
    function, x = POINTWISE[name]

    def both(x):
        leaf = x.requires_grad_()
        y = function(leaf)
        y.backward(torch.ones_like(y))
        return y.detach(), leaf.grad

    exact = both(x.double())
    stock = both(x.cuda())
    with patched("corem"):
        found = both(x.cuda())
    with patched("canary"):
        wrong = both(x.cuda())
    for mine, theirs, want in zip(found, stock, exact, strict=True):
        error, before = (float((t.cpu().double() - want).abs().max()) for t in (mine, theirs))
        assert error <= 2 * before + 1e-6
    if found[0].dim():  # in a mean, single bits are lost
        assert not torch.equal(found[0], wrong[0])


def test_special_values_of_operators_of_elements():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, inf, -inf, nan, 1.0, 0.0, inf, -inf, 0.0])
    y = torch.tensor([0.0, inf, -inf, 1.0, nan, nan, -inf, inf, -1.0])
    for function in (torch.logaddexp, torch.logaddexp2, torch.xlogy, torch.special.xlog1py):
        for a, b in ((x, y), (y, x)):
            want = function(a.cuda(), b.cuda())
            with patched("corem"):
                got = function(a.cuda(), b.cuda())
                torch.testing.assert_close(got, want, equal_nan=True)
                out = torch.empty(9, 9, device="cuda")
                function(a.cuda()[:, None], b.cuda(), out=out)
                torch.testing.assert_close(out.diag(), got, equal_nan=True)
    for function in (torch.logit, torch.sinc, lambda x: torch.logit(x, 0.2)):
        want = function(x.cuda())
        with patched("corem"):
            torch.testing.assert_close(function(x.cuda()), want, equal_nan=True)


def test_coverage_of_a_gpu_sees_dropout_and_inverses():
    from pytest_udftorch.swap import coverage

    x = heads(1, 2, 64, 64).requires_grad_()

    def step():
        with sdpa_kernel(EFFICIENT):
            F.scaled_dot_product_attention(x, x, x, dropout_p=0.5).sum().backward()
        torch.erfinv(x.detach().float().clamp(-0.9, 0.9))

    rows = {row.operator.partition("::")[2]: row for row in coverage(step).rows}
    assert rows["_scaled_dot_product_efficient_attention"].share == 1.0
    assert rows["_scaled_dot_product_efficient_attention_backward"].share == 1.0
    assert rows["erfinv"].share == 1.0
