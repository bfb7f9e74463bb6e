# SPDX-License-Identifier: Apache-2.0
"""Attention in 16 bits has the CPU's bits on a GPU, in every form that torch chooses there."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_udftorch import patched
from pytest_udftorch.reproduce import within_contract
from pytest_udftorch.swap.contract import cuda_attention, cuda_exact
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.overrides.tape import tapes
from tests.reproduce.test_contract_exact import same

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
pytest.importorskip("triton")

FORMS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
HEADS, SIZE = 4, 64


def given(queries=70, keys=70, shared=1, size=SIZE, dtype=torch.bfloat16):
    torch.manual_seed(0)
    q = torch.randn(2, HEADS, queries, size).to(dtype)
    k, v = (torch.randn(2, HEADS // shared, keys, size).to(dtype) for _ in range(2))
    return q, k, v


def attended(device, tensors, **options):
    """The result and the gradients of a call, on the CPU."""
    q, k, v = (t.to(device).requires_grad_() for t in tensors)
    options = {n: t.to(device) if isinstance(t, torch.Tensor) else t for n, t in options.items()}
    y = F.scaled_dot_product_attention(q, k, v, **options)
    torch.manual_seed(1)
    grad = torch.randn(y.shape).to(y.dtype).to(device)
    made = torch.autograd.grad(y, (q, k, v), grad)
    return [t.detach().cpu() for t in (y, *made)]


def compare(form, tensors, **options):
    want = attended("cpu", tensors, **options)
    with sdpa_kernel([FORMS[form]]):
        # Two calls are recorded, a third one is played.
        for _ in range(3):
            found = attended("cuda", tensors, **options)
            assert [same(a, b) for a, b in zip(found, want, strict=True)] == [True] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_bits_of_the_cpu(form, causal, dtype):
    with patched("repro"), within_contract(strict=True):
        compare(form, given(dtype=dtype), is_causal=causal)
    with patched("repro"):
        compare(form, given(dtype=dtype), is_causal=causal)


def test_stock_has_other_bits():
    want = attended("cpu", given())
    assert not all(same(a, b) for a, b in zip(attended("cuda", given()), want, strict=True))


def test_shorter_chunks_show(monkeypatch):
    w, v = torch.rand(3, 40, 1300), torch.randn(3, 1300, 64).bfloat16()
    assert same(cuda_exact.weighted(w.cuda(), v.cuda()).cpu(), contract().weighted(w, v))
    monkeypatch.setattr(cuda_exact, "_chunk", 256)
    assert not same(cuda_exact.weighted(w.cuda(), v.cuda()).cpu(), contract().weighted(w, v))


@pytest.mark.parametrize("unit", cuda_exact.UNITS)
def test_whatever_multiplies_digits(unit, monkeypatch):
    monkeypatch.setenv(cuda_exact.UNIT, unit)
    with patched("repro"):
        compare("efficient", given(600, 600), is_causal=True)


@pytest.mark.parametrize(
    ("shape", "causal"),
    [((1300, 1300, 2, 64), False), ((1300, 1300, 2, 64), True), ((33, 2100, 1, 128), False),
     ((600, 530, 4, 256), False), ((600, 600, 4, 256), True)],
)  # fmt: skip
def test_several_chunks_and_sizes_of_heads(shape, causal):
    queries, keys, shared, size = shape
    with patched("repro"):
        compare("flash", given(queries, keys, shared, size), is_causal=causal, enable_gqa=True)


def test_numbers_that_are_far_from_one():
    q, k, v = given(640, 640)
    q *= 40.0  # some exponentials are subnormal
    v[0, 0] *= 2.0**-115
    v[1, 1] *= 2.0**70
    v[:, :, 1::4] = 0.0
    v[0, 2, 70, 3] = torch.inf
    with patched("repro"):
        compare("efficient", (q, k, v), is_causal=True)


@pytest.mark.parametrize("form", ["flash", "cudnn"])
def test_heads_that_share_keys_and_values(form):
    with patched("repro"), within_contract(strict=True):
        compare(form, given(shared=2), is_causal=True, enable_gqa=True)


def padded(kind):
    """A mask behind which the first keys of one sample are hidden, causal else."""
    allowed = torch.ones(2, 1, 64, 64, dtype=torch.bool).tril()
    allowed[1, :, :, :5] = False
    # A query that sees no key has other values in each of torch's forms.
    allowed |= torch.eye(64, dtype=torch.bool)
    if kind == "truth":
        return allowed
    least = torch.finfo(torch.bfloat16).min
    return torch.zeros(allowed.shape, dtype=torch.bfloat16).masked_fill(~allowed, least)


@pytest.mark.parametrize("kind", ["truth", "numbers"])
@pytest.mark.parametrize("form", ["efficient", "cudnn"])
def test_masks(form, kind):
    with patched("repro"), within_contract(strict=True):
        compare(form, given(64, 64), attn_mask=padded(kind))


@pytest.mark.parametrize("length", [1, 5, 64, 700, 2100])
def test_decoding_is_prefill(length):
    """The last query has the bits that it has among others, and in a batch of its own."""
    q, k, v = (t.cuda() for t in given(length, length))
    with patched("repro"), torch.no_grad():
        whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        one = F.scaled_dot_product_attention(q[1:, :, -1:], k[1:], v[1:])
    assert same(one, whole[1:, :, -1:])


def test_blocks_of_heads_and_queries(monkeypatch):
    with patched("repro"):
        want = attended("cuda", given(shared=2), is_causal=True, enable_gqa=True)
        monkeypatch.setattr(cuda_attention, "_scores", 70 * 2 * 20)
        # Another size, of which no tape is known.
        tapes().forget()
        found = attended("cuda", given(shared=2), is_causal=True, enable_gqa=True)
    assert all(same(a, b) for a, b in zip(found, want, strict=True))


def test_dropout_is_outside():
    with patched("repro"), within_contract() as found:
        q, k, v = (t.cuda() for t in given())
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    assert [*found.operators] == ["aten::_scaled_dot_product_flash_attention"]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm(dtype, weighted):
    torch.manual_seed(0)
    x, weight, grad = torch.randn(40, 96), torch.randn(96), torch.randn(40, 96)

    def found(device):
        a, w = (t.to(device, dtype, copy=True).requires_grad_() for t in (x, weight))
        y = F.rms_norm(a, (96,), w if weighted else None, 1e-5)
        y.backward(grad.to(device, dtype))
        return [t.detach().cpu() for t in (y, a.grad, *([w.grad] if weighted else []))]

    with patched("repro"), within_contract(strict=True):
        pairs = list(zip(found("cpu"), found("cuda"), strict=True))
    assert [same(one, other) for one, other in pairs] == [True] * len(pairs)
