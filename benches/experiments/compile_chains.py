# SPDX-License-Identifier: Apache-2.0
"""What fusing across layers gives: 1 to N blocks of convolution, batch norm and ReLU in series.

    python -m benches.experiments.compile_chains OUT.json [--scale full] [--device cuda]

A row also holds the time of each layer in the interpreted chain, measured by hooks, and the time of
the compiled form's first call.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from benches.experiments import experiment
from benches.experiments.compile_convolutions import SHAPES
from benches.experiments.experiment import Case, Experiment, Prepared
from pytest_udftorch.measure import layer_times, model_pair

EXECUTORS = {
    "cpu": ["eager", "eager+channels_last", "compile"],
    "cuda": ["eager", "compile", "eager+cudagraph", "compile+cudagraph"],
}

LENGTHS = {"small": (1, 4), "full": (1, 16, 4, 8, 2, 12, 3, 6)}


def chain(blocks: int, channels: int) -> nn.Sequential:
    """Return that many blocks in series: weights from seed 0, norms with random statistics."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for number in range(blocks):
        model.append(nn.Conv2d(channels, channels, 3, padding=1, bias=False))
        norm = nn.BatchNorm2d(channels)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
        nn.init.normal_(norm.running_mean)
        model.append(norm)
        model.append(nn.ReLU(inplace=number > 0))
    return model.eval()


def cases(device: str, scale: str) -> list[Case]:
    """Return the lengths of the chains, with the shape of their input."""
    batch, channels, size = SHAPES[device, scale]
    return [
        {"blocks": n, "batch": batch, "channels": channels, "size": size} for n in LENGTHS[scale]
    ]


def prepare(case: Case, device: str) -> Prepared:
    """Return the executors of one chain."""
    model = chain(case["blocks"], case["channels"]).to(device)
    x = torch.randn(case["batch"], case["channels"], case["size"], case["size"]).to(device)
    with experiment.cold():
        prepared = experiment.pair_calls(model_pair(model, x, EXECUTORS[device]))
    prepared.info["layers"] = [
        row.document() for row in layer_times(model, (x,), runs=7, rounds=3).rows
    ]
    return prepared


EXPERIMENT = Experiment("compile_chains", cases, prepare)

if __name__ == "__main__":
    sys.exit(experiment.main(EXPERIMENT, __doc__))
