# SPDX-License-Identifier: Apache-2.0
"""nn.LSTM under a session: oneDNN's layer is composed of the session's functions."""

from __future__ import annotations

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.swap import coverage
from pytest_udftorch.swap.overrides.switchboard import switchboard

FORMS = {
    "plain": {},
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
    "no bias, batch first": {"bias": False, "batch_first": True},
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def model(form, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.LSTM(24, 8, **FORMS[form]).to(dtype), torch.randn(5, 3, 24).to(dtype)


def loss(results):
    y, (h, c) = results
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype)
    return (y * weights).sum() + h.sum() + c.square().sum()


def trained(lstm, x, forward="std", backward="std"):
    """Return the layer's results, then all gradients."""
    x = x.clone().requires_grad_()
    with patched(forward):
        results = lstm(x)
        total = loss(results)
    with patched(backward):
        found = torch.autograd.grad(total, (x, *lstm.parameters()))
    return [results[0].detach(), *(t.detach() for t in results[1]), *found]


def error(found, exact):
    return max(
        ((a.double() - b).abs().max() / b.abs().max()).item()
        for a, b in zip(found, exact, strict=True)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_results_and_gradients_are_as_near_as_stocks(form, dtype):
    lstm, x = model(form, dtype)
    stock = trained(lstm, x)
    ours = trained(lstm, x, "corem", "corem")
    for a, b in zip(stock, ours, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    # Graphs cross the borders of sessions.
    late, early = trained(lstm, x, "std", "corem"), trained(lstm, x, "corem", "std")
    exact = trained(lstm.double(), x.double())
    allowed = error(stock, exact) + 4 * torch.finfo(dtype).eps
    assert all(error(found, exact) <= allowed for found in (ours, late, early))


def test_the_functions_are_the_sessions():
    lstm, x = model("plain")
    ours = trained(lstm, x, "corem", "corem")
    assert torch.equal(ours[0], trained(lstm, x, "corem")[0])
    assert not torch.equal(ours[0], trained(lstm, x, "canary")[0])
    assert coverage(lambda: trained(lstm, x)).complete
    for layer in (torch.nn.GRU(24, 8), torch.nn.RNN(24, 8)):
        assert coverage(lambda layer=layer: layer(x)[0].sum().backward()).complete


def test_inference_autocast_and_functional_calls_work():
    lstm, x = model("plain")
    with patched("corem"):
        y = lstm(x)[0].detach()
        with torch.no_grad():
            assert torch.equal(lstm(x)[0], y)
        with torch.inference_mode():
            assert torch.equal(lstm(x)[0], y)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert lstm(x)[0].dtype is torch.bfloat16
        parameters = dict(lstm.named_parameters())

        def total(values):
            return loss(torch.func.functional_call(lstm, values, (x,)))

        gradients = torch.func.grad(total)(parameters)
        plain = torch.autograd.grad(loss(lstm(x)), tuple(lstm.parameters()))
        for name, other in zip(parameters, plain, strict=True):
            torch.testing.assert_close(gradients[name], other)


def test_the_layer_is_given_back():
    names = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")
    keys = ("CPU", "AutogradCPU")

    def kernels():
        return [switchboard.called(f"aten::{n}", k) for n in names for k in keys]

    before = kernels()
    with patched("corem", functions=("tanh",)):
        assert kernels() != before
    assert kernels() == before


def test_gradients_are_right():
    """gradcheck needs float64, which stays stock: this one compares with differences of float32."""
    lstm, x = model("plain")
    with patched("corem"):
        (gradient,) = torch.autograd.grad(loss(lstm(x.requires_grad_())), x)
        step = torch.zeros_like(x)
        step[2, 1, 7] = 0.01
        with torch.no_grad():
            slope = (loss(lstm(x + step)) - loss(lstm(x - step))) / 0.02
    assert slope.item() == pytest.approx(gradient[2, 1, 7].item(), rel=1e-3, abs=1e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own, at the first dual tensor
def test_gradients_of_gradients_and_forward_mode_compose_the_layer():
    lstm, x = model("plain")

    def second(lstm, x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(lstm(x)), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, lstm.weight_hh_l0))

    def along(lstm, x):
        with torch.autograd.forward_ad.dual_level(), torch.no_grad():
            y = lstm(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))[0]
            return torch.autograd.forward_ad.unpack_dual(y).tangent

    with patched("corem"):
        ours = (*second(lstm, x), along(lstm, x))
        again = torch.autograd.functional.jvp(lambda x: lstm(x)[0], x, torch.ones_like(x))[1]
    torch.testing.assert_close(ours[2], again, atol=1e-5, rtol=1e-5)
    exact = second(lstm.double(), x.double())
    for one, other in zip(ours, exact, strict=False):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-4)


def test_threads_change_no_bit():
    """A step has 70 x 129 cells, so that threads share them, and their border is in a line."""
    before = torch.get_num_threads()
    torch.manual_seed(0)
    lstm, x = torch.nn.LSTM(7, 129, bidirectional=True), torch.randn(2, 70, 7)
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append([*trained(lstm, x, "corem", "corem")])
            with patched("corem"):
                found[-1].append(torch.randn(100_003, generator=torch.Generator().manual_seed(0)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def wrong_calls():
    layer, x = torch.nn.LSTM(4, 3), torch.ones(5, 2, 4)
    state = torch.zeros(1, 2, 3)
    return {
        "width": lambda: layer(torch.ones(5, 2, 6)),
        "dimensions": lambda: layer(torch.ones(4)),
        "dtype": lambda: layer(x.int()),
        "mixed dtypes": lambda: layer(x.half()),
        "size of the state": lambda: layer(x, (state[..., :2], state)),
        "lines of the state": lambda: layer(x, (state[:, :1], state)),
        "dtype of the state": lambda: torch.lstm(
            x, (state.int(), state), layer._flat_weights, True, 1, 0.0, False, False, False
        ),
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_what_stock_refuses_is_refused_with_its_message(name):
    call, said = wrong_calls()[name], []
    for library in ("std", "corem"):
        with patched(library), pytest.raises((RuntimeError, ValueError)) as error:
            call()
        said.append((error.type, str(error.value)))
    assert said[0] == said[1]


def test_the_default_dtype_changes_no_bit():
    lstm, x = model("plain")
    query = torch.randn(2, 9, 3, 8, generator=torch.Generator().manual_seed(1)).transpose(1, 2)

    def found():
        with patched("corem"):
            attended = torch.nn.functional.scaled_dot_product_attention(query, query, query)
            y, state = lstm(x)
            gradients = torch.autograd.grad(y.square().sum(), list(lstm.parameters()))
        return [attended, y.detach(), *(t.detach() for t in state), *gradients]

    want, before = found(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        got = found()
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(got, want, strict=True):
        assert a.dtype is torch.float32
        assert torch.equal(a, b)
