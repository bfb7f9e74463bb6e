"""Plans for the six torchvision models: every oracle, the bounds, and the fresh verdicts.

``python -m benches.compile_oracle OUT.json --models resnet50 --batches 1 32``. With ``--lock``
several processes may share a machine: making segments overlaps, measuring does not.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
from pathlib import Path

import torch

from benches.compile_models import MODELS, build, images, turn
from pytest_udftorch.oracle import oracle
from pytest_udftorch.samples import median, ratio
from pytest_udftorch.timers import describe_device

#: What a user can write for a whole model without this package, each in a CUDA graph on CUDA.
STOCK = ("eager", "eager+channels_last", "compile", "compile+channels_last")


def cell(name, batch, device, lock=None, size=224, **options):
    """Return the report of one model and batch, with the figures that are asked of a plan."""
    model, x = build(name).to(device), images(batch, device, size)
    plan = oracle(
        model,
        x,
        compiling=lambda: turn(lock, fcntl.LOCK_SH),
        measuring=lambda: turn(lock, fcntl.LOCK_EX),
        progress=lambda done, of, text: print(f"{name} {batch}: {done}/{of} {text}", flush=True),
        **options,
    )
    applied = plan.apply(model, (x,))
    with torch.no_grad():
        wanted, found = model(x), applied(x)
    report = dict(plan.report)
    return {
        "model": name,
        "batch": batch,
        "segments": [list(s) for s in plan.stored.segments],
        **figures(report, device),
        "applied_differs_from_eager_by": float((found - wanted).abs().max()),
        **report,
    }


def figures(report, device):
    """Return the asked ratios, all from the one fresh interleaved measurement.

    The plan's time is that of what the plan runs: the hybrid, or the uniform executor that
    replaced it.
    """
    if "fresh_measurement" not in report:
        return {}
    suffix = "+cudagraph" if device == "cuda" else ""
    timings = report["fresh_measurement"]["timings"]
    runs = {name: timing["runs_ns"] for name, timing in timings.items()}
    replaced = report.get("replaced_by")
    plan = runs["plan"] if replaced is None else runs[replaced + suffix]
    stock = min((n + suffix for n in STOCK if n + suffix in runs), key=lambda n: median(runs[n]))
    others = {
        "best_uniform": report["best_uniform"] + suffix,
        "best_stock_uniform": stock,
        "torch_compile": "compile",
        "eager": "eager",
    }
    found = {}
    for key, name in others.items():
        if name not in runs:
            continue
        quotient = ratio(runs[name], plan)
        found[key] = {
            "executor": name,
            "median_ns": median(runs[name]),
            "times_faster": round(quotient.value, 4),
            "low": round(quotient.low, 4),
            "high": round(quotient.high, 4),
        }
    return {"plan_ns": median(plan), "plan_over": found}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--units", type=int, default=8)
    parser.add_argument("--max-seconds", type=float, default=600)
    parser.add_argument("--lock", type=Path)
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    result = {**describe_device(device), "cells": []}
    for name in options.models:
        for batch in options.batches:
            row = cell(
                name,
                batch,
                device,
                options.lock,
                runs=options.runs,
                max_units=options.units,
                max_seconds=options.max_seconds,
            )
            result["cells"].append(row)
            options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(
                "RESULT",
                name,
                batch,
                row["segments"],
                row.get("fresh_speedup"),
                row.get("fresh_verdict"),
                row["seconds"],
                {
                    k: round(v["median_ns"] / 1e3, 1)
                    for k, v in row.get("plan_measurement", {}).get("timings", {}).items()
                },
                {k: round(v / 1e3, 1) for k, v in row["uniform"].items()},
                row.get("plan_problems"),
                row.get("failed_on_units"),
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
