# SPDX-License-Identifier: Apache-2.0
"""Every layer of the six models on its own, over devices and modes.

    python -m benches.experiments.compile_layers OUT.json [--scale full] [--device cuda]

The figures show the density of the layers' speed-ups, and each layer's time by its place in the
model. Layers that do the same work on the same shape are measured once. The layers of the first
model come first, in their order. The others come in a random order with a fixed seed, so that a
budget leaves out layers of every model equally.
"""

from __future__ import annotations

import random
import sys

from benches.experiments import experiment, single_layers
from benches.experiments.compile_models import MODELS
from benches.experiments.experiment import Case, Experiment, Prepared
from pytest_udftorch.measure import model_pair

EXECUTORS = {
    "cpu": ["eager", "eager+channels_last", "compile"],
    "cuda": [
        "eager",
        "eager+cudagraph",
        "compile",
        "compile-reduce-overhead",
        "compile+cudagraph",
    ],
}

#: Models, batch, and pixels of a side.
INPUTS = {
    ("cpu", "small"): (["squeezenet1_1"], 1, 64),
    ("cpu", "full"): (MODELS, 1, 224),
    ("cuda", "small"): (["squeezenet1_1"], 1, 224),
    ("cuda", "full"): (MODELS, 1, 224),
}


def cases(device: str, scale: str) -> list[Case]:
    """Return the distinct layers; the small scale takes every fourth."""
    models, batch, size = INPUTS[device, scale]
    places: dict[str, list[list[object]]] = {}
    for model in models:
        order = {s.name: n for n, s in enumerate(single_layers.singles(model, batch, size))}
        for sort, calls in single_layers.distinct(model, batch, size).items():
            places.setdefault(sort, []).extend([model, order[s.name], s.name] for s in calls)
    found = [
        {"layer": sort, "batch": batch, "size": size, "places": where}
        for sort, where in places.items()
    ]
    first = [case for case in found if case["places"][0][0] == models[0]]
    others = found[len(first) :]
    random.Random(0).shuffle(others)
    return [*first, *others] if scale == "full" else first[::4]


def prepare(case: Case, device: str) -> Prepared:
    """Return the executors of one layer."""
    model = case["places"][0][0]
    single = single_layers.distinct(model, case["batch"], case["size"])[case["layer"]][0]
    layer = single.module.to(device)
    x = single_layers.example(single, device)
    return experiment.pair_calls(model_pair(layer, x, EXECUTORS[device]))


EXPERIMENT = Experiment("compile_layers", cases, prepare, budget_s={"small": 120.0, "full": 90.0})

if __name__ == "__main__":
    sys.exit(experiment.main(EXPERIMENT, __doc__))
