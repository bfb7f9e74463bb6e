# SPDX-License-Identifier: Apache-2.0
"""Cells and layers of LSTM, GRU and RNN on a GPU."""

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.swap.cuda.launcher import launched

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


@pytest.fixture(autouse=True)
def _whole_products():
    """cuDNN rounds the factors of its products to TF32 unless it is told not to."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


LAYERS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
KERNELS = {"lstm": "lstm_cell", "gru": "gru_cell", "rnn": "tanh"}
FORMS = {
    "plain": {},
    "deep": {"num_layers": 2, "bidirectional": True},
    "without biases": {"bias": False, "batch_first": True},
}


def farthest(ours, exact):
    return max((o.double() - e).abs().max().item() for o, e in zip(ours, exact, strict=True))


def results(layer, x, state=None):
    """Everything that a call gives: results, states, and the gradients of all it depends on."""
    x = x.detach().requires_grad_()
    y, last = layer(x, state)
    states = last if isinstance(last, tuple) else (last,)
    total = y.float().square().sum() + sum(s.float().sum() for s in states)
    grads = torch.autograd.grad(total, (x, *layer.parameters()))
    return [y.detach(), *(s.detach() for s in states), *grads]


def judge(make, inputs, kernel, state=None):
    """Compare with stock in float64: no farther than stock, or than a few roundings."""
    torch.manual_seed(0)
    layer = make().cuda()
    stock = results(layer, inputs, state)
    wide = None if state is None else tuple(s.double() for s in state)
    exact = results(layer.double(), inputs.double(), wide)
    layer.float()
    with patched("corem"):
        launched()
        ours = results(layer, inputs, state)
        assert kernel in launched()
    for mine, theirs, best in zip(ours, stock, exact, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        allowed = farthest([theirs], [best]) + 1e-5 * best.abs().max().clamp(min=1).item()
        assert farthest([mine], [best]) <= allowed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_are_as_near_as_cudnn(kind, form):
    judge(lambda: LAYERS[kind](7, 16, **FORMS[form]), torch.randn(11, 5, 7, device="cuda"),
          KERNELS[kind])  # fmt: skip


def test_projections_and_given_states():
    state = torch.randn(1, 5, 6, device="cuda"), torch.randn(1, 5, 16, device="cuda")
    judge(lambda: torch.nn.LSTM(7, 16, proj_size=6), torch.randn(9, 5, 7, device="cuda"),
          "lstm_cell", state)  # fmt: skip


def test_a_line_without_a_batch():
    layer = torch.nn.LSTM(7, 16).cuda()
    x = torch.randn(9, 7, device="cuda")
    stock = layer(x)[0]
    with patched("corem"):
        torch.testing.assert_close(layer(x)[0], stock, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences(kind):
    torch.manual_seed(1)
    layer = LAYERS[kind](7, 16, num_layers=2, bidirectional=True).cuda()
    x = torch.randn(9, 4, 7, device="cuda")
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [9, 7, 7, 2])

    def call():
        y, last = layer(packed)
        states = last if isinstance(last, tuple) else (last,)
        grads = torch.autograd.grad(y.data.square().sum(), list(layer.parameters()))
        return [y.data, *states, *grads]

    stock = call()
    with patched("corem"):
        ours = call()
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_short_dtypes(dtype):
    layer = torch.nn.LSTM(8, 16).cuda()
    x = torch.randn(5, 3, 8, device="cuda")
    with torch.autocast("cuda", dtype):
        stock = layer(x)[0]
        with patched("corem"):
            launched()
            ours = layer(x)[0]
            assert "lstm_cell" in launched()
    assert ours.dtype is stock.dtype
    torch.testing.assert_close(ours, stock, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("biased", [True, False])
def test_single_cells_keep_what_stock_keeps(biased):
    """A graph made under stock is differentiated in a session, and the other way round."""
    lstm, gru = (kind(8, 16, bias=biased).cuda() for kind in (torch.nn.LSTMCell, torch.nn.GRUCell))
    x, h, c = (torch.randn(5, n, device="cuda", requires_grad=True) for n in (8, 16, 16))

    def forward():
        hy, cy = lstm(x, (h, c))
        return hy.square().sum() + cy.sum() + gru(x, h).square().sum()

    leaves = [x, h, c, *lstm.parameters(), *gru.parameters()]
    stock = torch.autograd.grad(forward(), leaves)
    with patched("corem"):
        launched()
        inside = forward()
        assert {"lstm_cell", "gru_cell"} <= launched()
        whole = torch.autograd.grad(inside, leaves, retain_graph=True)
        assert "lstm_cell_backward" in launched()
    found = [whole, torch.autograd.grad(inside, leaves)]
    made = forward()
    with patched("corem"):
        found.append(torch.autograd.grad(made, leaves))
    for grads in found:
        for mine, theirs in zip(grads, stock, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_inference_mode_and_float64():
    layer = torch.nn.GRU(8, 16).cuda()
    x = torch.randn(5, 3, 8, device="cuda")
    stock = layer(x)[0].detach()
    with torch.inference_mode(), patched("corem"):
        launched()
        torch.testing.assert_close(layer(x)[0], stock, rtol=1e-5, atol=1e-6)
        assert "gru_cell" in launched()
    layer.double()
    before = layer(x.double())[0]
    with patched("corem"):
        assert torch.equal(layer(x.double())[0], before)


def test_errors_are_torchs():
    layer = torch.nn.LSTM(8, 16).cuda()
    with patched("corem"):
        with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
            layer(torch.randn(5, 3, 9, device="cuda"))
        with pytest.raises(RuntimeError):
            torch.nn.LSTMCell(8, 16).cuda()(torch.randn(3, 9, device="cuda"))


def test_evaluations_are_counted():
    cell = torch.nn.LSTMCell(8, 16).cuda()
    with patched("corem", profile=True, profile_stride=1) as session:
        cell(torch.randn(5, 8, device="cuda"))
    rows = session.profile.rows("function", "operator", "device")
    counted = {
        r.key["function"]: r.elements
        for r in rows
        if r.key["operator"] == "aten::_thnn_fused_lstm_cell"
    }
    assert counted == {"exp": 3 * 5 * 16, "tanh": 2 * 5 * 16}
