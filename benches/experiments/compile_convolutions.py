# SPDX-License-Identifier: Apache-2.0
"""Single convolutions, interpreted and compiled: kernel 1, 3, 5; stride 1, 2; padding 1, 2, 3.

    python -m benches.experiments.compile_convolutions OUT.json [--scale full] [--device cuda]

The figure shows the speed-up against the size of the kernel. On CUDA both forms are also
replayed from a CUDA graph, which times the kernels without their launches.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from benches.experiments import experiment
from benches.experiments.experiment import EXECUTORS, Case, Experiment, Prepared
from pytest_udftorch.measure import model_pair

#: Batch, channels in and out, height and width.
SHAPES = {
    ("cpu", "small"): (1, 16, 32),
    ("cpu", "full"): (8, 64, 56),
    ("cuda", "small"): (4, 32, 56),
    ("cuda", "full"): (32, 64, 56),
}


def cases(device: str, scale: str) -> list[Case]:
    """Return all combinations at the full scale, and one padding at the small one."""
    batch, channels, size = SHAPES[device, scale]
    paddings = (1, 2, 3) if scale == "full" else (1,)
    return [
        {
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "batch": batch,
            "channels": channels,
            "size": size,
        }
        for padding in paddings
        for stride in (1, 2)
        for kernel in (1, 3, 5)
    ]


def prepare(case: Case, device: str) -> Prepared:
    """Return the executors of one convolution with a bias; its weights come from seed 0."""
    torch.manual_seed(0)
    channels, size = case["channels"], case["size"]
    layer = nn.Conv2d(
        channels, channels, case["kernel"], stride=case["stride"], padding=case["padding"]
    )
    x = torch.randn(case["batch"], channels, size, size)
    return experiment.pair_calls(
        model_pair(layer.eval().to(device), x.to(device), EXECUTORS[device])
    )


EXPERIMENT = Experiment("compile_convolutions", cases, prepare)

if __name__ == "__main__":
    sys.exit(experiment.main(EXPERIMENT, __doc__))
