# SPDX-License-Identifier: Apache-2.0
"""An overridden operator is like torch's own on a GPU: layouts, dtypes, and what compilers see."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch import patched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def form(found):
    return [
        (t.dtype, tuple(t.shape), t.stride(), t.data_ptr() % 16)  # Inductor asks for the last
        for t in torch.utils._pytree.tree_leaves(found)
    ]


def gradients(function, *given):
    given = [t.detach().cuda().clone().requires_grad_() for t in given]
    found = function(*given)
    slopes = torch.linspace(-1, 1, found.numel(), device="cuda").view(found.shape).to(found.dtype)
    return found, *torch.autograd.grad(found, given, slopes)


HEADS = tuple(numbers(2, 3, n, 16, seed=n) for n in (40, 33, 33))
TURNED = tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in HEADS)
IMAGES = numbers(2, 4, 6, 6)
LAST = IMAGES.contiguous(memory_format=torch.channels_last)
WEIGHTS = numbers(6, 4, 3, 3, seed=1)

CALLS = {
    "attention": (F.scaled_dot_product_attention, HEADS),
    "attention of turned heads": (F.scaled_dot_product_attention, TURNED),
    "convolution": (F.conv2d, (IMAGES, WEIGHTS)),
    "convolution, channels last": (F.conv2d, (LAST, WEIGHTS)),
    "group norm": (lambda x: F.group_norm(x, 2), (IMAGES,)),
    "group norm, channels last": (lambda x: F.group_norm(x, 2), (LAST,)),
    "batch norm": (
        lambda x: F.batch_norm(x, None, None, torch.ones(4).cuda(), training=True), (IMAGES,)
    ),
    "layer norm of rows of odd number": (
        lambda x: torch.native_layer_norm(x, (7,), None, None, 1e-5)[0], (numbers(5, 7),)
    ),
    "rms norm of columns": (lambda x: F.rms_norm(x.mT, (4,)), (numbers(4, 6),)),
    "softmax": (lambda x: x.softmax(1), (numbers(5, 7).mT,)),
    "softmax of half in float32": (
        lambda x: x.softmax(1, dtype=torch.float32), (numbers(5, 7).half(),)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_have_stocks_layouts_and_dtypes(name):
    function, given = CALLS[name]
    stock = form(gradients(function, *given))
    with patched("repro"):
        assert form(gradients(function, *given)) == stock


def test_statistics_of_an_odd_number_of_rows_and_channels_are_aligned():
    x, w = numbers(5, 7).cuda(), torch.ones(7, device="cuda", requires_grad=True)
    with patched("repro"):
        for found in (
            torch.native_layer_norm(x, (7,), None, None, 1e-5),
            torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
            torch.autograd.grad(F.batch_norm(x, None, None, w, w, training=True).sum(), w),
        ):
            assert not any(t.data_ptr() % 16 for t in found)


def test_a_dimension_that_there_is_not_is_refused_with_stocks_words():
    def said():
        with pytest.raises(IndexError) as error:
            numbers(3, 4).cuda().softmax(7)
        return str(error.value)

    stock = said()
    with patched("repro"):
        assert said() == stock


class Net(nn.Module):
    """Attention in float32 behind a convolution and an evaluated batch norm."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4).eval()

    def forward(self, x):
        x = self.norm(self.convolution(x))
        return F.scaled_dot_product_attention(x, x, x)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().cuda()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_attention_in_float32_gives_the_bits_of_eager(net, mode):
    with patched("repro"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(net, mode=mode)
        for _ in range(3):  # a graph is recorded at the second call
            found = [t.clone() for t in gradients(compiled, IMAGES)]
        for one, other in zip(found, gradients(net, IMAGES), strict=True):
            assert torch.equal(one, other)


def test_a_traced_convolution_gives_the_bits_of_the_convolution():
    with torch.no_grad():
        for kind, given in (
            (nn.Conv2d, IMAGES), (nn.ConvTranspose2d, IMAGES), (nn.Conv1d, IMAGES[0])
        ):  # fmt: skip
            x = given.cuda()
            module = kind(x.shape[1], 6, 3).cuda()
            with patched("repro"):
                traced = torch.jit.trace(module, x, check_trace=False)
                assert [n.kind() for n in traced.inlined_graph.nodes()][-1] == "aten::_convolution"
                assert torch.equal(traced(x), module(x))
            assert torch.equal(traced(x), module(x))


def test_a_cuda_graph_gives_the_bits_of_eager(net):
    with patched("repro"), torch.no_grad():
        x = IMAGES.cuda()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = net(x)
        x.copy_(IMAGES.flip(0))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, net(x))
