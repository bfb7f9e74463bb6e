# SPDX-License-Identifier: Apache-2.0
"""Plans for the six torchvision models: every oracle, the bounds, and the fresh verdicts.

``python -m benches.experiments.compile_oracle OUT.json --models resnet50 --batches 1 32``.
An interrupted run continues where it stopped: it reads finished cells from OUT.json, and the
measurements of an unfinished cell from its journal beside OUT.json. ``--side-by-side`` is as in
``compile_models``.
"""

from __future__ import annotations

import argparse
import fcntl
import sys

import torch

from benches.experiments.compile_models import (
    begin,
    build,
    common,
    images,
    positive,
    run,
    there,
)
from benches.experiments.experiment import save, turn
from pytest_udftorch.measure import oracle
from pytest_udftorch.measure.timing.statistics import median, ratio

#: What a user can write for a whole model without this package; on CUDA, each in a CUDA graph.
STOCK = ("eager", "eager+channels_last", "compile", "compile+channels_last")

#: Executors that a plan is measured against but never made of.
OPPONENTS = {
    "cpu": ["thunder-profile"],
    "cuda": ["compile", "thunder-profile", "thunder-profile+cudagraph"],
}


def cell(name, batch, device, lock=None, size=224, **options):
    """Return the report of one model and batch, with the ratios that a plan has to reach."""
    model, x = build(name).to(device), images(batch, device, size)
    plan = oracle(
        model,
        x,
        compiling=lambda: turn(lock, fcntl.LOCK_SH),
        measuring=lambda: turn(lock, fcntl.LOCK_EX),
        progress=lambda done, of, text: print(f"{name} {batch}: {done}/{of} {text}", flush=True),
        opponents=OPPONENTS[device],
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
    """Return the ratios that a plan has to reach, all from one fresh, interleaved measurement.

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
        "thunder_profile": "thunder-profile",
        "thunder_profile_in_a_graph": "thunder-profile+cudagraph",
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


LISTS = ("cells",)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    common(parser)
    parser.add_argument("--units", type=positive, default=8)
    parser.add_argument("--max-seconds", type=float, default=600)
    parser.add_argument("--executors", nargs="+")
    options = parser.parse_args(arguments)
    handed = ["runs", "rounds", "units", "max_seconds", "executors"]
    return run("compile_oracle", options, LISTS, measure, handed)


def measure(options, device):
    """Make the plans that OUT.json does not hold yet; return the exit status."""
    result = {**begin(options.output, device, LISTS), "command": options.command}
    for name in options.models:
        for batch in options.batches:
            if there(result["cells"], name, batch):
                continue
            journal = options.output.with_suffix(f".{name}-{batch}.journal")
            row = cell(
                name,
                batch,
                device,
                options.lock,
                runs=options.runs,
                rounds=options.rounds,
                max_units=options.units,
                max_seconds=options.max_seconds,
                executors=options.executors,
                journal=journal,
            )
            result["cells"].append(row)
            save(options.output, result)
            journal.unlink()
            print(
                "RESULT",
                name,
                batch,
                row["segments"],
                row.get("replaced_by"),
                {
                    k: (v["executor"], v["times_faster"])
                    for k, v in row.get("plan_over", {}).items()
                },
                row["seconds"],
                row.get("regret_over_roofline"),
                row.get("plan_problems"),
                row.get("failed_on_units"),
                row.get("not_profiled"),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
