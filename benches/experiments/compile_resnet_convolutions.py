# SPDX-License-Identifier: Apache-2.0
"""All convolutions of ResNet-50: timed alone, and by the profiler in the model.

    python -m benches.experiments.compile_resnet_convolutions OUT.json [--scale full]
        [--device cuda]

Alone, a convolution is a model of its own, timed end to end, interpreted and compiled. In the
model, the profiler watches the whole network, interpreted and compiled as one, and the times of
its convolution operators are sorted by the shapes of input and weight; Inductor calls the same
operator from the code that it generates. The profiler's time is the time of the kernels on CUDA,
and of the operator on the CPU. Convolutions of one shape are measured once; ``calls`` says how
often they occur in the model.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benches.experiments import experiment, single_layers
from benches.experiments.compile_models import build, images
from benches.experiments.experiment import EXECUTORS, Case, Experiment, Prepared
from pytest_udftorch.measure import model_pair
from pytest_udftorch.measure.planning import executors
from pytest_udftorch.measure.timing.statistics import median

#: Batch, and pixels of a side.
INPUTS = {
    ("cpu", "small"): (1, 64),
    ("cpu", "full"): (1, 224),
    ("cuda", "small"): (1, 224),
    ("cuda", "full"): (32, 224),
}

#: The operator that every convolution calls once.
OPERATOR = "aten::convolution"
PASSES = 10


def _convolutions(batch: int, size: int) -> dict[str, list[single_layers.Single]]:
    return {
        sort: calls
        for sort, calls in single_layers.distinct("resnet50", batch, size).items()
        if isinstance(calls[0].module, nn.Conv2d)
    }


def _shapes(single: single_layers.Single) -> tuple[Any, ...]:
    """Return the shapes by which the profiler identifies a convolution."""
    module = single.module
    assert isinstance(module, nn.Conv2d)
    return single.shape, tuple(module.weight.shape)


@functools.cache
def in_model(executor: str, batch: int, size: int, device: str) -> dict[tuple[Any, ...], float]:
    """Return nanoseconds per call of the convolutions within the whole network, by shapes.

    Medians over all calls of one shape in all passes.
    """
    model, x = build("resnet50").to(device), images(batch, device, size)
    run = executors.make(executors.resolve(executor), model, (x,))
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    samples: dict[tuple[Any, ...], list[float]] = {}
    with torch.no_grad():
        for _ in range(3):
            run(x)
        with profile(activities=activities, record_shapes=True, acc_events=True) as profiled:
            for _ in range(PASSES):
                run(x)
            if device == "cuda":
                torch.cuda.synchronize()
    for event in profiled.events():
        if event.name != OPERATOR or event.device_type.name != "CPU":
            continue
        shapes = (tuple(event.input_shapes[0]), tuple(event.input_shapes[1]))
        # The profiler counts microseconds.
        spent = event.device_time_total if device == "cuda" else event.cpu_time_total
        samples.setdefault(shapes, []).append(1e3 * float(spent))
    return {shapes: median(found) for shapes, found in samples.items()}


def cases(device: str, scale: str) -> list[Case]:
    """Return the distinct convolutions; at the small scale every fifth."""
    batch, size = INPUTS[device, scale]
    found = [
        {
            "layer": sort,
            "batch": batch,
            "size": size,
            "calls": len(calls),
            "name": calls[0].name,
            "kernel": calls[0].module.kernel_size[0],
        }
        for sort, calls in _convolutions(batch, size).items()
    ]
    return found if scale == "full" else found[::5]


def prepare(case: Case, device: str) -> Prepared:
    """Return the executors of one convolution, and the profiler's times from the model."""
    single = _convolutions(case["batch"], case["size"])[case["layer"]][0]
    shapes = _shapes(single)
    profiled = {
        executor: in_model(executor, case["batch"], case["size"], device).get(shapes)
        for executor in ("eager", "compile")
    }
    layer, x = single.module.to(device), single_layers.example(single, device)
    prepared = experiment.pair_calls(model_pair(layer, x, EXECUTORS[device]))
    prepared.info["in_model_ns"] = profiled
    return prepared


EXPERIMENT = Experiment("compile_resnet_convolutions", cases, prepare)

if __name__ == "__main__":
    sys.exit(experiment.main(EXPERIMENT, __doc__))
