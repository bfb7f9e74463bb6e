# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of the six models: the work that they must do over the rates of the device.

``python -m benches.experiments.compile_bounds OUT.json``; see ``pytest_udftorch.measure``.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benches.experiments.compile_models import MODELS, build, images, model_name, positive
from benches.experiments.experiment import missing_folder, save
from pytest_udftorch.measure.planning import roofline
from pytest_udftorch.measure.timing.device import describe_device


def bounds(models, batches, device, size=224):
    """Return the ceilings, and one row for each model and batch."""
    rates = roofline.ceilings(device)
    rows = []
    for name in models:
        model = build(name).to(device)
        for batch in batches:
            needed = roofline.work(model, (images(batch, device, size),))
            least = roofline.bound_ns(needed, rates)
            row = {"model": name, "batch": batch, **asdict(needed), "roofline_ns": round(least, 1)}
            rows.append(row)
    return {"ceilings": rates.document(), "rows": rows}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", nargs="+", type=model_name, default=MODELS)
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 32])
    options = parser.parse_args(arguments)
    if missing := missing_folder(options.output):
        parser.error(missing)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    try:
        found = bounds(options.models, options.batches, device)
    except KeyboardInterrupt:
        print("Interrupted. Nothing is stored.", file=sys.stderr)
        return 130
    command = ["python -m benches.experiments.compile_bounds OUT.json", "--models", *options.models]
    command += ["--batches", *map(str, options.batches)]
    save(options.output, {**describe_device(device), "command": " ".join(command), **found})
    print(found["ceilings"])
    for row in found["rows"]:
        print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
