"""The six torchvision models end to end over the executors, and what the instruments cost.

``python -m benches.compile_models OUT.json --models resnet50`` measures on the GPU if there is
one. ``--lock FILE`` lets several processes share it: making executors may overlap, measuring
may not.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import sys
import warnings
from pathlib import Path

import torch
import torchvision

from pytest_udftorch import layers
from pytest_udftorch.pairs import model_pair
from pytest_udftorch.samples import median
from pytest_udftorch.timers import describe_device

MODELS = ["alexnet", "resnet50", "mobilenet_v2", "googlenet", "squeezenet1_1", "densenet121"]

EXECUTORS = {
    "cpu": ["eager", "eager+channels_last", "compile", "torchscript-trace"],
    "cuda": [
        "eager",
        "eager+cudagraph",
        "eager+channels_last+cudagraph",
        "compile",
        "compile-reduce-overhead",
        "compile+cudagraph",
        "compile+channels_last+cudagraph",
        "eager+fused+streams+cudagraph",
        "compile+fused+channels_last+cudagraph",
        "torchscript-trace",
        "aotinductor",
    ],
}


def build(name, seed=0):
    """Return the torchvision model of this name in evaluation mode, with seeded weights."""
    options = {"init_weights": False} if name == "googlenet" else {}
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # GoogLeNet announces a change of its default initialisation.
        warnings.simplefilter("ignore")
        return getattr(torchvision.models, name)(**options).eval()


def images(batch, device, size=224):
    """Return a batch of normally distributed pixels, N x 3 x size x size."""
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 3, size, size, generator=generator).to(device)


@contextlib.contextmanager
def turn(lock, kind):
    """Hold the lock file, shared or exclusive; nothing without one.

    Who waits for the exclusive lock holds a second one, the gate, which all pass: new shared
    holders then queue behind it and cannot keep it waiting for ever.
    """
    if lock is None:
        yield
        return
    with (
        open(lock, "w", encoding="utf-8") as file,
        open(f"{lock}.gate", "w", encoding="utf-8") as gate,
    ):
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(file, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def end_to_end(name, batch, device, executors=None, lock=None, **timer):
    """Return the pair's report for one model and batch."""
    model, x = build(name).to(device), images(batch, device)
    with turn(lock, fcntl.LOCK_SH):
        pair = model_pair(model, x, executors or EXECUTORS[device])
    with turn(lock, fcntl.LOCK_EX):
        pair.measure(**timer)
    return {"model": name, "batch": batch, **pair.to_json()}


def validation(name, batch, device, lock=None, runs=20, rounds=10, prefix_rounds=3):
    """Return Figure 5.7's eight instruments, and how well the layers' sums meet the whole."""
    model, x = build(name).to(device), images(batch, device)
    with turn(lock, fcntl.LOCK_EX):
        instruments = layers.instrument_overhead(model, (x,), runs=runs, rounds=rounds)
        hooked = layers.layer_times(model, (x,), runs=runs, rounds=rounds)
        subtracted = layers.layer_subtraction(
            model, (x,), runs=max(7, runs // 2), rounds=prefix_rounds
        )
        profiled = layers.layer_profile(model, (x,), passes=rounds)
    pure = median(instruments["pure"].wall_ns)
    return {
        "model": name,
        "batch": batch,
        "instruments": {
            key: {
                "wall_ns": round(median(timing.wall_ns)),
                "over_pure": round(median(timing.wall_ns) / pure, 4),
            }
            for key, timing in instruments.items()
        },
        "layers": len(hooked.rows),
        "layer_timing_share": round(hooked.share, 5),
        "layer_subtraction_share": round(subtracted.share, 5),
        "notes": sorted({*hooked.notes, *subtracted.notes}),
        "profiler": {
            "cuda_total_ns": round(sum(row.cuda_total_ns for row in profiled)),
            "cuda_self_ns": round(sum(row.cuda_self_ns for row in profiled)),
            "cpu_self_ns": round(sum(row.cpu_self_ns for row in profiled)),
        },
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--only", choices=["validation", "end_to_end"])
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    result = {**describe_device(device), "end_to_end": [], "validation": []}

    def store():
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    for name in options.models:
        if options.only != "end_to_end":
            runs = max(7, options.runs // 2)
            row = validation(name, options.batches[0], device, options.lock, runs=runs)
            result["validation"].append(row)
            print(row, flush=True)
            store()
        if options.only == "validation":
            continue
        for batch in options.batches:
            row = end_to_end(name, batch, device, lock=options.lock, runs=options.runs)
            result["end_to_end"].append(row)
            store()
            for key, member in row["members"].items():
                timing = row["measurement"]["timings"].get(key, {})
                print(
                    name,
                    batch,
                    key,
                    timing.get("median_ns"),
                    member.get("error"),
                    member.get("agrees"),
                    member.get("break_even_calls"),
                    member.get("first_call_ns"),
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
