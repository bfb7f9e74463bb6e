# SPDX-License-Identifier: Apache-2.0
"""An experiment whose cases are measured in processes of their own.

Each of them imports this module, and so next to nothing beside torch.
"""

import os

import torch

from benches.experiments.experiment import Experiment, Prepared


def square(case, device):
    if case["n"] == 13:
        raise ValueError("thirteen\nand more")
    x = torch.ones(case["n"])
    return Prepared({"slow": lambda: [x * x for _ in range(50)], "fast": lambda: x * x})


def numbers(*given):
    return [{"n": n, "process": True} for n in given]


def one_to_four(_device, _scale):
    return numbers(1, 2, 3, 4, 13)


def killing(_device, _scale):
    # The last one begins when one of the others has been stored.
    return numbers(1, 2, 99)


def with_process(case, device):
    if case["n"] == 99:
        os._exit(7)
    prepared = square(case, device)
    prepared.info["process"] = os.getpid()
    prepared.info["cudnn.benchmark"] = torch.backends.cudnn.benchmark
    return prepared


MANY = Experiment("many", one_to_four, with_process)
CRASHING = Experiment("many", killing, with_process)
