# SPDX-License-Identifier: Apache-2.0
"""The counts of arithmetic operations: against torch's own counter, and against scalars."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benches.experiments import profile_operations, training
from benches.experiments.profile_operations import Operations, UnknownOperatorError, count, ratios

TASKS = {
    "lenet": training.lenet,
    "resnet": lambda: training.resnet(width=2, batch=4),
    "transformer": lambda: training.transformer(size=16, layers=1, batch=2),
}

CONTRACTIONS = [
    torch.ops.aten.convolution,
    torch.ops.aten.convolution_backward,
    torch.ops.aten.mm,
    torch.ops.aten.bmm,
    torch.ops.aten.addmm,
]


@pytest.fixture(params=TASKS)
def task(request):
    return TASKS[request.param]()


def test_products_agree_with_torchs_flop_counter(task, monkeypatch):
    """Torch counts two operations for a multiply-accumulate of a convolution or a product."""
    batch = next(task.batches(0))
    theirs, ours = FlopCounterMode(display=False), Operations()
    others = set(profile_operations.RULES) - set(CONTRACTIONS)
    monkeypatch.setattr(
        profile_operations,
        "RULES",
        profile_operations.RULES | dict.fromkeys(others, profile_operations._nothing),
    )
    for mode in (theirs, ours):
        model = training.Training(task, seed=0)
        with mode:
            model.loss(batch).backward()
    fma = sum(counts["fma"] for counts in ours.counts.values())
    assert theirs.get_total_flops() == 2 * fma > 0


def test_an_operator_without_a_rule_is_an_error():
    x = torch.ones(3)
    with pytest.raises(UnknownOperatorError, match=r"aten\.sinh.*forward.*RULES"), Operations():
        torch.sinh(x)
    with pytest.raises(UnknownOperatorError, match="erf"), Operations():
        torch.nn.functional.gelu(x)


def test_stages_are_told_apart(task):
    found = count(task)
    stages = found["stages"]
    assert all(stages[s]["fma"] > 0 for s in stages)
    assert "log" in stages["forward"]
    assert "log" not in stages["backward"]
    assert not set(stages["optimizer"]) & set(profile_operations.FUNCTIONS)
    assert found["symbol_calls"]["forward"] > 0
    assert found["symbol_calls"]["backward"] > 0
    assert found["symbol_calls"]["optimizer"] == 0
    # The transformer's optimizer is Adam, the others' SGD.
    assert ("sqrt" in stages["optimizer"]) == (task.name == "transformer")


def test_lenets_counts_by_hand():
    """One image: both convolutions, both linear layers, three ELUs and a LogSoftmax."""
    task = replace(training.lenet(), batch=1)
    forward = count(task)["stages"]["forward"]
    assert forward["fma"] == 24 * 24 * 10 * 25 + 8 * 8 * 20 * 250 + 320 * 50 + 50 * 10
    assert forward["expm1"] == 12 * 12 * 10 + 320 + 50
    assert (forward["exp"], forward["log"]) == (10, 1)


def test_ratios():
    found = ratios({"fma": 60, "add": 6, "exp": 2, "log": 1}, calls=5)
    expected = {"fma": 20, "div": 0, "mult": 0, "add": 2, "sqrt": 0, "together": 22}
    assert found["for one evaluated"] == expected
    assert found["for one symbol called"]["fma"] == 12


# Formulas ----------------------------------------------------------------------------


class Scalar:
    """A number that counts what is done with it; ``a * b + c`` by ``fma``."""

    tally: ClassVar[Counter[str]] = Counter()

    def __init__(self, value: float) -> None:
        self.value = value

    def _do(self, what: str, value: float) -> Scalar:
        Scalar.tally[what] += 1
        return Scalar(value)

    def __add__(self, other):
        return self._do("add", self.value + other.value)

    def __sub__(self, other):
        return self._do("add", self.value - other.value)

    def __mul__(self, other):
        return self._do("mult", self.value * other.value)

    def __truediv__(self, other):
        return self._do("div", self.value / other.value)

    def fma(self, factor, term):
        return self._do("fma", self.value * factor.value + term.value)

    def call(self, name):
        function = {"exp": math.exp, "log": math.log, "tanh": math.tanh, "sqrt": math.sqrt}[name]
        return self._do(name, function(self.value))


def total(values, start=None):
    result = start or Scalar(0.0)
    for value in values:
        result = result + value
    return result


def one(value):
    return Scalar(float(value))


def softmax(row):
    largest = max(row, key=lambda x: x.value)
    powers = [(x - largest).call("exp") for x in row]
    whole = total(powers)
    return [p / whole for p in powers]


def softmax_backward(grad, result):
    dot = one(0)
    for g, y in zip(grad, result, strict=True):
        dot = g.fma(y, dot)
    return [y * (g - dot) for g, y in zip(grad, result, strict=True)]


def log_softmax(row):
    largest = max(row, key=lambda x: x.value)
    shifted = [x - largest for x in row]
    log = total([s.call("exp") for s in shifted]).call("log")
    return [s - log for s in shifted]


def log_softmax_backward(grad, result):
    whole = total(grad)
    minus = one(-whole.value)
    return [y.call("exp").fma(minus, g) for g, y in zip(grad, result, strict=True)]


def gelu(row):
    k, b = one(0.044715), one(math.sqrt(2 / math.pi))
    found = []
    for x in row:
        inner = b * (x * x * x).fma(k, x)
        found.append(one(0.5) * x * (one(1) + inner.call("tanh")))
    return found


def layer_norm(row, weight, bias, eps=1e-5):
    count = one(len(row))
    mean = total(row) / count
    squares = one(0)
    for x in row:
        d = x - mean
        squares = d.fma(d, squares)
    rstd = one(1) / ((squares / count) + one(eps)).call("sqrt")
    return [((x - mean) * rstd).fma(w, c) for x, w, c in zip(row, weight, bias, strict=True)]


def layer_norm_backward(grad, row, mean, rstd, weight):
    count = one(len(row))
    normal = [(x - mean) * rstd for x in row]
    scaled = [g * w for g, w in zip(grad, weight, strict=True)]
    for g in grad:
        one(0) + g
    for g, n in zip(grad, normal, strict=True):
        g.fma(n, one(0))
    first = total(scaled) / count
    second = one(0)
    for s, n in zip(scaled, normal, strict=True):
        second = s.fma(n, second)
    second = one(-(second / count).value)
    return [rstd * n.fma(second, s - first) for s, n in zip(scaled, normal, strict=True)]


def batch_norm(row, weight, bias, mean, variance, momentum=0.1, eps=1e-5):
    found = layer_norm(row, [weight] * len(row), [bias] * len(row), eps)
    # What is kept for evaluation; its inputs were counted above.
    for running in (mean, variance):
        one(momentum).fma(one(0.5), one(1 - momentum) * running)
    return found


def batch_norm_backward(grad, row, mean, rstd, weight):
    count = one(len(row))
    normal = [(x - mean) * rstd for x in row]
    first = total(grad) / count
    second = one(0)
    for g, n in zip(grad, normal, strict=True):
        second = g.fma(n, second)
    second = one(-(second / count).value)
    factor = weight * rstd
    return [factor * n.fma(second, g - first) for g, n in zip(grad, normal, strict=True)]


N = 5
X = torch.linspace(-2.0, 1.5, N).view(1, N)
# Not affine in X: batch norm's gradient of that is zero.
G = torch.tensor([[0.3, -0.7, 0.2, 0.9, -0.4]])
W = torch.linspace(0.5, 1.5, N)


def scalars(tensor):
    return [one(v) for v in tensor.flatten().tolist()]


def _norm_arguments():
    mean = X.mean()
    rstd = ((X - mean).square().mean() + 1e-5).rsqrt()
    return one(mean), one(rstd)


XT, GT = X.T, G.T
ZERO, ONE, HALF, TWO = torch.zeros(1), torch.ones(1), torch.full((1,), 0.5), torch.full((1,), 2.0)
SOFT, LOG_SOFT = X.softmax(1), X.log_softmax(1)
LAYER = torch.native_layer_norm(X, [N], W, W, 1e-5)[1:]
BATCH = torch.native_batch_norm(XT, HALF, HALF, None, None, True, 0.1, 1e-5)[1:]

CASES = {
    "softmax": (lambda: softmax(scalars(X)), lambda: torch._softmax(X, 1, False)),
    "softmax backward": (
        lambda: softmax_backward(scalars(G), scalars(SOFT)),
        lambda: torch._softmax_backward_data(G, SOFT, 1, torch.float32),
    ),
    "log_softmax": (
        lambda: log_softmax(scalars(X)),
        lambda: torch._log_softmax(X, 1, False),
    ),
    "log_softmax backward": (
        lambda: log_softmax_backward(scalars(G), scalars(LOG_SOFT)),
        lambda: torch._log_softmax_backward_data(G, LOG_SOFT, 1, torch.float32),
    ),
    "gelu": (
        lambda: gelu(scalars(X)),
        lambda: torch.nn.functional.gelu(X, approximate="tanh"),
    ),
    "layer_norm": (
        lambda: layer_norm(scalars(X), scalars(W), scalars(W)),
        lambda: torch.native_layer_norm(X, [N], W, W, 1e-5)[0],
    ),
    "layer_norm backward": (
        lambda: layer_norm_backward(scalars(G), scalars(X), *_norm_arguments(), scalars(W)),
        lambda: torch.ops.aten.native_layer_norm_backward(G, X, [N], *LAYER, W, W, [True] * 3)[0],
    ),
    "batch_norm": (
        lambda: batch_norm(scalars(X), one(0.5), one(2), one(0), one(1)),
        lambda: torch.native_batch_norm(XT, HALF, TWO, ZERO, ONE, True, 0.1, 1e-5)[0],
    ),
    "batch_norm backward": (
        lambda: batch_norm_backward(scalars(G), scalars(X), *_norm_arguments(), one(0.5)),
        lambda: torch.ops.aten.native_batch_norm_backward(
            GT,
            XT,
            HALF,
            ZERO,
            ONE,
            *BATCH,
            True,
            1e-5,
            [True] * 3,
        )[0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_formula_evaluated_on_scalars_has_the_same_counts_and_values(name):
    by_hand, by_torch = CASES[name]
    Scalar.tally = Counter()
    values = by_hand()
    with Operations() as mode:
        result = by_torch()
    assert [v.value for v in values] == pytest.approx(result.flatten().tolist(), rel=1e-4)
    assert mode.counts["forward"] == Scalar.tally
