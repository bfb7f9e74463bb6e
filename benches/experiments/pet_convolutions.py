# SPDX-License-Identifier: Apache-2.0
"""How long do mutants of convolutions and of chains take, with and without their corrections?

    python -m benches.experiments.pet_convolutions [--device D] [--batches N ...] [--seconds N]
        [--no-chains] [--journal FILE] [--merge FILE ...] [--store FILE]

The distinct convolutions of torchvision's ResNet-50 for images of 224 x 224, as it is and with its
last strides replaced by dilation, but for those of one element. Each is compiled with ``udf_pet``
alone, whatever its mutants take (``gain`` 0), so that the report has the times of the fastest
mutant, of this mutant with its correction, and of the convolution. Chains of two and three linear
operators, as models have them, are measured alike. Each row names its machine;
``--merge`` joins the rows of journals, and measures nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
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


class Chain(nn.Module):
    """Operators one after the other, with zeros or cuts at the edges between.

    Args:
        parts: modules, and numbers of rows and columns to add at each edge.
    """

    def __init__(self, *parts: nn.Module | int) -> None:
        super().__init__()
        self.parts = parts
        self.held = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result, of images."""
        for part in self.parts:
            if isinstance(part, nn.Module):
                x = part(x)
            else:
                x = nn.functional.pad(x, (part,) * 2 * (x.dim() - 2))
        return x


#: Where models have it -> its operators, and what is behind the batch in the shape of its images.
CHAINS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]] = {
    "DenseNet-121, first transition": (
        lambda: Chain(nn.Conv2d(256, 128, 1, bias=False), nn.AvgPool2d(2)), (256, 56, 56),
    ),
    "DenseNet-121, third transition": (
        lambda: Chain(nn.Conv2d(1024, 512, 1, bias=False), nn.AvgPool2d(2)), (1024, 14, 14),
    ),
    "Inception v3, pooled branch": (
        lambda: Chain(nn.AvgPool2d(3, 1, 1), nn.Conv2d(768, 192, 1)), (768, 17, 17),
    ),
    "3 x 3 and pooling": (
        lambda: Chain(nn.Conv2d(64, 64, 3, padding=1), nn.AvgPool2d(2)), (64, 56, 56),
    ),
    "3 x 3 twice": (
        lambda: Chain(*(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((3, 64), (64, 3)))),
        (3, 64, 64),
    ),
    "depthwise, 1 x 1 and pooling": (
        lambda: Chain(nn.Conv2d(128, 128, 3, padding=1, groups=128), nn.Conv2d(128, 128, 1),
                      nn.AvgPool2d(2)),
        (128, 28, 28),
    ),
    "DCGAN, second layer": (
        lambda: Chain(nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False)), (512, 8, 8),
    ),
    "edges, 5 x 5 and a cut": (
        lambda: Chain(2, nn.Conv2d(32, 32, 5), -4), (32, 40, 40),
    ),
    "lines: 1 and pooling": (
        lambda: Chain(nn.Conv1d(128, 64, 1), nn.AvgPool1d(4)), (128, 4096),
    ),
    "space: 1 and pooling": (
        lambda: Chain(nn.Conv3d(64, 64, 1), nn.AvgPool3d(2)), (64, 16, 28, 28),
    ),
    "space: transposed": (
        lambda: Chain(nn.ConvTranspose3d(32, 16, 2, 2)), (32, 8, 14, 14),
    ),
}  # fmt: skip


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
    made = nn.Conv2d(
        channels, outputs, kernel, stride=stride, padding=padding, dilation=dilation, bias=False
    )
    found = rewritten(made, torch.randn(batch, channels, rows, columns), device)
    return {**found[0], **found[1]} if found else None


def rewritten(
    model: nn.Module, x: torch.Tensor, device: str
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return what was measured of the first part of a model, and how its check went, or None."""
    torch.manual_seed(0)
    torch.compiler.reset()
    conv, x = model.eval().to(device), x.to(device)
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
    said = {"seconds": seconds, "check": report.check, "left_alone": report.left_alone}
    return report.details[0], said


def chain(name: str, batch: int, device: str) -> dict[str, Any]:
    """Return the times of one chain."""
    make, shape = CHAINS[name]
    found = rewritten(make(), torch.randn(batch, *shape), device)
    shown = (
        "name",
        "regions",
        "needed",
        "tried",
        "mutant_ns",
        "corrected_ns",
        "stock_ns",
        "verdict",
    )
    times = None
    if found is not None and found[0]["rule"].startswith("chain "):
        times = {**{k: found[0][k] for k in shown}, **found[1]}
        times["regions"] = len(times["regions"])
    return {"chain": name, "batch": batch, "device": device, "machine": machine(device),
            "shape": list(shape), "times": times}  # fmt: skip


def measure(wanted: argparse.Namespace) -> dict[str, Any]:
    """Return the rows that are begun in time."""
    began = time.perf_counter()
    torch.backends.cudnn.allow_tf32 = False
    if wanted.threads:
        torch.set_num_threads(wanted.threads)
    found = []
    for batch, name in itertools.product(wanted.batches, CHAINS if wanted.chains else ()):
        found.append(chain(name, batch, wanted.device))
        case, times = found[-1], found[-1]["times"]
        print(
            case["chain"],
            times and [times[n] for n in ("name", "regions", "corrected_ns", "stock_ns")],
        )
        _noted(case, wanted.journal)
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
        _noted(found[-1], wanted.journal)
    return document(found)


def _noted(case: dict[str, Any], journal: Path | None) -> None:
    if journal is not None:
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(case) + "\n")


def document(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what is stored of rows; of two of one case the later counts."""
    last = {(r["device"], r["batch"], str(r.get("convolution", r.get("chain")))): r for r in rows}
    return {
        "image": IMAGE,
        "runs": RUNS,
        "rows": [r for r in last.values() if "convolution" in r],
        "chains": [r for r in last.values() if "chain" in r],
    }


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
    parser.add_argument("--chains", action=argparse.BooleanOptionalAction, default=True)
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
