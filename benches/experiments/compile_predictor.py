# SPDX-License-Identifier: Apache-2.0
"""Can the speed-up of compiling a convolution be predicted without compiling it?

    python -m benches.experiments.compile_predictor OUT.json [--scale full] [--device cuda]
        [--budget 300]

Convolutions are drawn at random and measured, interpreted and compiled. A small perceptron then
learns the speed-up of four fifths of them and predicts it for the last fifth, in turn, so that
every convolution is held out once. It is given the shape alone, or the shape and the interpreted
time, which costs nothing to measure. The share of predictions within 5 % stands beside that of

- the median speed-up of the four fifths, which knows nothing of the shape;
- extremely randomised trees (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006;
  scikit-learn's), another learner with the same inputs;
- the same perceptron trained on shuffled speed-ups: a control that must fail;
- the measurement itself: one half of the runs predicts the other half. No predictor can be
  seen to do better.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from typing import Any, Final

import torch
from torch import Tensor, nn

from benches.experiments import experiment
from benches.experiments.blocks import one_thread
from benches.experiments.experiment import Case, Experiment, Prepared
from pytest_udftorch.measure import model_pair
from pytest_udftorch.measure.timing.statistics import median

EXECUTORS = ["eager", "compile"]

#: How many convolutions are drawn; the budget may end first.
COUNTS = {"small": 15, "full": 300}
#: Multiply-adds of a convolution: enough to outlast a launch, and few enough for a short round.
WORK: Final = {"cpu": (1e4, 3e8), "cuda": (1e5, 5e9)}
#: Elements of input and output together.
ELEMENTS: Final = {"cpu": 4e6, "cuda": 2e8}

WITHIN: Final = 0.05
FOLDS: Final = 5
#: Perceptrons whose mean is the prediction; each starts from other weights.
ENSEMBLE: Final = 5
STEPS: Final = 800
#: Standard deviation of the noise added to the normalised features at each step. With a few
#: hundred rows, weight decay alone does not keep the perceptrons from memorising rows.
NOISE: Final = 0.3
TREES: Final = 300


def _draw(rng: random.Random) -> Case:
    depthwise = rng.random() < 0.15
    c_in = rng.choice([3, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512])
    return {
        "batch": rng.choice([1, 1, 2, 8, 32]),
        "c_in": c_in,
        "c_out": c_in if depthwise else rng.choice([8, 16, 32, 64, 96, 128, 256, 512]),
        "height": rng.choice([7, 13, 14, 27, 28, 56, 112, 224]),
        "kernel": rng.choice([1, 1, 3, 3, 5, 7]),
        "stride": rng.choice([1, 1, 2]),
        "padding": rng.choice([0, 1, 2, 3]),
        "groups": c_in if depthwise else 1,
        "bias": rng.random() < 0.5,
    }


def _out(case: Case) -> int:
    return (case["height"] + 2 * case["padding"] - case["kernel"]) // case["stride"] + 1


def _work(case: Case) -> float:
    outputs = case["batch"] * case["c_out"] * _out(case) ** 2
    return float(outputs * case["kernel"] ** 2 * case["c_in"] / case["groups"])


def _elements(case: Case) -> float:
    outer = case["batch"] * case["c_out"] * _out(case) ** 2
    return float(outer + case["batch"] * case["c_in"] * case["height"] ** 2)


def cases(device: str, scale: str) -> list[Case]:
    """Return different convolutions, drawn with a fixed seed."""
    rng = random.Random(0)
    found: list[Case] = []
    low, high = WORK[device]
    while len(found) < COUNTS[scale]:
        case = _draw(rng)
        fits = _out(case) >= 1 and low <= _work(case) <= high
        if fits and _elements(case) <= ELEMENTS[device] and case not in found:
            found.append(case)
    return found


def prepare(case: Case, device: str) -> Prepared:
    """Return both forms of one convolution."""
    torch.manual_seed(0)
    layer = nn.Conv2d(
        case["c_in"],
        case["c_out"],
        case["kernel"],
        stride=case["stride"],
        padding=case["padding"],
        groups=case["groups"],
        bias=case["bias"],
    )
    x = torch.randn(case["batch"], case["c_in"], case["height"], case["height"])
    return experiment.pair_calls(model_pair(layer.eval().to(device), x.to(device), EXECUTORS))


# The predictor -----------------------------------------------------------------------


def features(row: dict[str, Any], *, timed: bool) -> list[float]:
    """Return what a predictor is given of one measured convolution; sizes as logarithms."""
    case = row["case"]
    c_in, c_out, kernel, out = case["c_in"], case["c_out"], case["kernel"], _out(case)
    inner = c_in // case["groups"] * kernel**2
    work, elements, weights = _work(case), _elements(case), float(c_out * inner)
    sizes = [
        case["batch"], c_in, c_out, case["height"], kernel, out, work, elements, weights,
        inner, case["batch"] * out**2, work / (elements + weights),
    ]  # fmt: skip
    if timed:
        # Of the interpreted form: its time, and the rates that it reaches.
        ns = row["timings"]["eager"]["median_ns"]
        sizes += [ns, work / ns, elements / ns, weights / ns]
    # Libraries process channels in blocks of 16, and have special kernels for images, depthwise
    # convolutions and matrix products.
    kinds = (
        case["groups"] > 1, case["bias"], kernel == 1, kernel == 1 and case["padding"] > 0,
        c_in == 3, c_in % 16 == 0, c_out % 16 == 0,
    )  # fmt: skip
    found = [math.log2(size) for size in sizes]
    return [*found, case["stride"], case["padding"], *map(float, kinds)]


def _folds(rows: int, seed: int) -> Tensor:
    """Return folds x rows: 1 where a fold's predictor may see the row, 0 where it is held out."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    seen = torch.ones(FOLDS, rows)
    for fold in range(FOLDS):
        seen[fold, order[fold::FOLDS]] = 0
    return seen


def by_trees(x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
    """Return what :func:`cross_validate` does, by randomised trees instead of perceptrons."""
    from sklearn.ensemble import ExtraTreesRegressor

    found = torch.empty_like(y)
    for seen in _folds(len(y), seed).bool():
        trees = ExtraTreesRegressor(TREES, criterion="absolute_error", random_state=seed)
        trees.fit(x[seen].numpy(), y[seen].numpy())
        found[~seen] = torch.from_numpy(trees.predict(x[~seen].numpy())).to(y)
    return found


def cross_validate(x: Tensor, y: Tensor, seed: int = 0) -> Tensor:
    """Return a prediction of each row of ``y`` by perceptrons that did not see its fold.

    The perceptrons of all folds are trained at once, with stacked weights.

    Args:
        x: features, rows x features.
        y: targets, one a row.
        seed: of the folds and the weights.
    """
    generator = torch.Generator().manual_seed(seed)
    seen = _folds(len(y), seed)
    share = seen / seen.sum(1, keepdim=True)
    # Means and widths, too, come only from the rows that a fold sees.
    mean = share @ x
    width = (torch.einsum("fn,fnk->fk", share, (x - mean[:, None]) ** 2)).sqrt().clamp_min(1e-6)
    inputs = ((x - mean[:, None]) / width[:, None]).repeat_interleave(ENSEMBLE, 0)
    middle = share @ y
    spread = (share * (y - middle[:, None]) ** 2).sum(1).sqrt().clamp_min(1e-6)
    targets = ((y - middle[:, None]) / spread[:, None]).repeat_interleave(ENSEMBLE, 0)
    weights = share.repeat_interleave(ENSEMBLE, 0)
    sizes = (x.shape[1], 64, 32, 1)
    layers = [
        (
            torch.randn(len(inputs), i, o, generator=generator).div_(math.sqrt(i)),
            torch.zeros(len(inputs), 1, o),
        )
        for i, o in itertools.pairwise(sizes)
    ]
    for parameter in itertools.chain(*layers):
        parameter.requires_grad_()
    optimizer = torch.optim.AdamW(itertools.chain(*layers), lr=0.01, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=STEPS)

    def predict(hidden: Tensor) -> Tensor:
        for number, (weight, bias) in enumerate(layers):
            hidden = torch.baddbmm(bias, nn.functional.silu(hidden) if number else hidden, weight)
        return hidden[..., 0]

    # These matrices are small: a second thread would cost more than it saves.
    with one_thread(), torch.enable_grad():
        for _ in range(STEPS):
            optimizer.zero_grad()
            # Absolute errors: a few disturbed measurements must not distort the rest.
            noise = NOISE * torch.randn(inputs.shape, generator=generator)
            losses = nn.functional.smooth_l1_loss(
                predict(inputs + noise), targets, reduction="none", beta=0.05
            )
            (losses * weights).sum().backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        found = predict(inputs).unflatten(0, (FOLDS, ENSEMBLE)).mean(1) * spread[:, None]
        return ((found + middle[:, None]) * (1 - seen)).sum(0)


def _judge(predicted: Tensor, y: Tensor) -> dict[str, float]:
    error = torch.expm1((predicted - y).abs())
    return {
        "within": round(float((error <= WITHIN).double().mean()), 4),
        "median_error": round(float(error.median()), 4),
    }


def evaluate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the shares of held-out convolutions that are predicted within 5 %.

    Fewer convolutions than two a fold give no judgement.
    """
    measured = [r for r in rows if "compile" in r.get("speedup", {})]
    if len(measured) < 2 * FOLDS:
        return {"predictor": {"convolutions": len(measured), "judged": {}}}
    y = torch.tensor([math.log(r["speedup"]["compile"]["value"]) for r in measured])
    judged, kept = {}, []
    for name, timed in (("shape", False), ("shape and interpreted time", True)):
        x = torch.tensor([features(r, timed=timed) for r in measured])
        predicted = cross_validate(x, y)
        judged[name] = _judge(predicted, y)
        kept.append(predicted)
    judged["the same, by trees"] = _judge(by_trees(x, y), y)
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    judged["control: taught in another order"] = _judge(cross_validate(x, shuffled), y)
    judged["median speed-up"] = _judge(y.median().expand_as(y), y)
    halves = [[_half(r, part) for r in measured] for part in (0, 1)]
    judged["one half of the runs for the other"] = _judge(*map(torch.tensor, halves))
    return {
        "predictor": {
            "convolutions": len(measured),
            "folds": FOLDS,
            "within": WITHIN,
            "judged": judged,
            "measured": [round(v, 4) for v in y.exp().tolist()],
            "predicted": [round(v, 4) for v in kept[-1].exp().tolist()],
        }
    }


def _half(row: dict[str, Any], part: int) -> float:
    runs = row["runs_ns"]
    pairs = list(zip(runs["eager"], runs["compile"], strict=True))[part::2]
    return math.log(median([a / b for a, b in pairs]))


EXPERIMENT = Experiment(
    "compile_predictor",
    cases,
    prepare,
    evaluate,
    keep_runs=True,
    budget_s={"small": 120.0, "full": 90.0},
)

if __name__ == "__main__":
    sys.exit(experiment.main(EXPERIMENT, __doc__))
