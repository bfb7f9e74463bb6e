# SPDX-License-Identifier: Apache-2.0
"""How long do mutants of ResNet's convolutions take, with and without their corrections?

    python -m benches.experiments.pet_convolutions [--device D] [--batches N ...] [--seconds N]
        [--journal FILE] [--merge FILE ...] [--store FILE]

The distinct convolutions of torchvision's ResNet-50 for images of 224 x 224, as it is and with its
last strides replaced by dilation, but for those of one element. Each is compiled with ``udf_pet``
alone, whatever its mutants take (``gain`` 0), so that the report has the times of the fastest
mutant, of this mutant with its correction, and of the convolution. Each row names its machine;
``--merge`` joins the rows of journals, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torchvision
from torch import nn

from benches.experiments import command
from benches.experiments.rewriting_gains import DEVICES, machine
from pytest_udftorch.measure import recording

BATCHES: Final = (1, 8, 32)
IMAGE: Final = 224
#: Model -> which of its strides are dilations instead.
MODELS: Final = {"ResNet-50": (False, False, False), "dilated ResNet-50": (False, True, True)}
#: Measurements of each contender.
RUNS: Final = 9


def convolutions() -> dict[tuple[Any, ...], list[Any]]:
    """Return the distinct convolutions, each with the models that have it, as often as they do.

    The key is channels, rows and columns of the image, channels of the output, kernel, stride,
    padding and dilation. Those with dilation come first, then those with a stride.
    """
    found: dict[tuple[Any, ...], list[Any]] = {}
    for name, dilated in MODELS.items():
        model = torchvision.models.resnet50(replace_stride_with_dilation=list(dilated)).eval()

        def note(module: nn.Module, given: Any, result: Any, name: str = name) -> None:
            assert isinstance(module, nn.Conv2d)
            key = (*given[0].shape[1:], module.out_channels, module.kernel_size, module.stride,
                   module.padding, module.dilation)  # fmt: skip
            models = found.setdefault(key, [])
            models.append(name)

        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1):
                module.register_forward_hook(note)
        with torch.no_grad(), torch.device("meta"):
            model.to("meta")(torch.empty(1, 3, IMAGE, IMAGE))
    return dict(sorted(found.items(), key=lambda item: (-item[0][7][0], -item[0][5][0])))


def row(key: tuple[Any, ...], batch: int, device: str) -> dict[str, Any] | None:
    """Return the times of one convolution, or None where no mutant fits it."""
    channels, rows, columns, outputs, kernel, stride, padding, dilation = key
    torch.manual_seed(0)
    torch.compiler.reset()
    made = nn.Conv2d(
        channels, outputs, kernel, stride=stride, padding=padding, dilation=dilation, bias=False
    )
    conv, x = made.eval().to(device), torch.randn(batch, channels, rows, columns, device=device)
    compiled = torch.compile(
        conv, backend="udf_pet", dynamic=False, options={"gain": 0, "runs": RUNS}
    )
    before = time.perf_counter()
    with torch.no_grad(), recording() as reports:
        compiled(x)
    seconds = time.perf_counter() - before
    (report,) = reports
    if not report.details:
        return None
    return {**report.details[0], "seconds": seconds, "check": report.check,
            "left_alone": report.left_alone}  # fmt: skip


def measure(wanted: argparse.Namespace) -> dict[str, Any]:
    """Return the rows that are begun in time."""
    began = time.perf_counter()
    torch.backends.cudnn.allow_tf32 = False
    if wanted.threads:
        torch.set_num_threads(wanted.threads)
    found = []
    cases = [(batch, key, models) for batch in wanted.batches
             for key, models in convolutions().items()]  # fmt: skip
    for batch, key, models in cases:
        if time.perf_counter() - began > wanted.seconds:
            break
        times = row(key, batch, wanted.device)
        case = {"device": wanted.device, "batch": batch, "convolution": list(key),
                "in": {name: models.count(name) for name in MODELS if name in models}}  # fmt: skip
        found.append({**case, "machine": machine(wanted.device), "times": times})
        print(batch, key, times and [times[f"{n}_ns"] for n in ("mutant", "corrected", "stock")])
        if wanted.journal is not None:
            with wanted.journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[-1]) + "\n")
    return document(found)


def document(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what is stored of rows; of two of one case the later counts."""
    last = {(r["device"], r["batch"], str(r["convolution"])): r for r in rows}
    return {"image": IMAGE, "runs": RUNS, "rows": list(last.values())}


def read(journals: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the rows of journals."""
    return [
        json.loads(line)
        for path in journals
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("pet_convolutions", __doc__)
    parser.add_argument("--device", default="cpu", choices=DEVICES)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which none is begun")
    parser.add_argument("--threads", type=int, help="of torch, on the CPU")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="rows, as they are measured")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="journals to join")
    options = parser.parse_args(arguments)
    options.changed = ["--device cuda"] if options.device == "cuda" else []
    if options.merge:
        options.changed = ["--merge JOURNAL ..."]
        return command.run("pet_convolutions", options, lambda: document(read(options.merge)))
    return command.run("pet_convolutions", options, lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
