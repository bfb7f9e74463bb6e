# SPDX-License-Identifier: Apache-2.0
"""Which rules fire on whole models, and how much faster do they become?

    python -m benches.experiments.rewriting_gains [--device D] [--seconds N] [--limit N]
        [--journal FILE] [--merge FILE ...] [--store FILE]

ResNet-50, GoogLeNet, SqueezeNet, Inception v3, ResNeXt-50 and DenseNet-121 of torchvision on images
of 224 x 224 (Inception: 299 x 299), RepVGG-A0 with its branches, DCGAN's generator, BERT-base from
its configuration over 64 tokens, an encoder as BERT's that needs no package, one block of a
transformer of the same width, and some steps of NasRNN, with random weights, at batch 1 and 32.
Each is rewritten by ``udf_templates``, ``udf_taso``, ``udf_pet`` and ``udf_fusion``, one row each.
The templates alone are the base line of the other three: they apply them, too, and only what their
own rules add is their gain. A row's model takes turns with that of ``udf_templates``, with eager
mode, with TorchInductor's, and with the graph as Dynamo traced it (``traced``): that is what runs
where nothing is kept, and nothing is that was not measured to be faster.
Each row names its machine, and is written to the journal as soon as it is there; a run that is
interrupted goes on from it. Rows that are not begun within ``--seconds`` are named as left out.
``--merge`` joins the rows of journals, which may come from several machines, and measures nothing;
of two rows of the same case the one that comes later counts. BERT needs
``pip install transformers``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torchvision
from torch import Tensor, nn

from benches.data.nas_rnn import NasRnn
from benches.experiments import command
from benches.experiments.compile_transformers import Block
from pytest_udftorch import UdfError
from pytest_udftorch.measure import GraphReport, recording, sync_timer
from pytest_udftorch.swap.toolchain.environment import describe

#: The base line of the others, which begin with its rules.
TEMPLATES: Final = "udf_templates"
BACKENDS: Final = (TEMPLATES, "udf_taso", "udf_pet", "udf_fusion")
BATCHES: Final = (1, 32)
IMAGE, TOKENS, WIDTH, HEADS, LAYERS, WORDS = 224, 64, 768, 12, 12, 1000
#: Of NasRNN: steps, and the width of the state.
STEPS, STATE = 5, 512
#: Turns of a model and eager mode: as many as fit into so many seconds, but not fewer than this.
RUNS, SECONDS = (7, 20), 10.0
#: Seconds in which a search has to end, and those of udf_taso among graphs.
LIMIT, SEARCH = 600.0, 60.0
DEVICES: Final = ("cpu", "cuda")
#: At most so many rules of a graph are named that matched and were not kept.
NAMED: Final = 3
#: What decides between floating-point results whose operations have another order.
TOLERANCE: Final = 1e-3


class _Bert(nn.Module):
    """BERT without its dictionary of results."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH,
        )
        self.model = transformers.BertModel(config)

    def forward(self, words: Tensor) -> Tensor:
        """Return the last layer's states, of batch x tokens x width."""
        states: Tensor = self.model(words).last_hidden_state
        return states


class _Layer(nn.Module):
    """A layer of an encoder as BERT's: a projection for each of query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return states of batch x tokens x width."""
        q, k, v = (
            layer(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.norms[0](x + self.output(attended.transpose(1, 2).reshape(x.shape)))
        found: Tensor = self.norms[1](x + self.narrow(nn.functional.gelu(self.wide(x))))
        return found


class _Encoder(nn.Sequential):
    """Layers as BERT's over embedded words, without a package for it."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(WORDS, WIDTH), *(_Layer() for _ in range(LAYERS)))


class _Generator(nn.Sequential):
    """DCGAN's generator of images of 64 x 64: transposed convolutions, norms and ReLU."""

    def __init__(self) -> None:
        sizes = (100, 512, 256, 128, 64)
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(itertools.pairwise(sizes)):
            stride, padding = (1, 0) if number == 0 else (2, 1)
            layers += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False)]
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
        super().__init__(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


class _Branches(nn.Module):
    """A block of RepVGG as it is trained: 3 x 3 and 1 x 1 beside each other, each with a norm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.wide, self.point = (
            nn.Sequential(
                nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)
            )
            for size in (3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return images, half as large where the stride is 2."""
        return (self.wide(x) + self.point(x)).relu()


class _RepVgg(nn.Sequential):
    """RepVGG-A0 as it is trained, without the identities beside the convolutions."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        before = 3
        for width, depth in ((48, 1), (48, 2), (96, 4), (192, 14), (1280, 1)):
            for number in range(depth):
                blocks.append(_Branches(before, width, 1 if number else 2))
                before = width
        super().__init__(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, WORDS))


def _image(batch: int) -> Tensor:
    return torch.randn(batch, 3, IMAGE, IMAGE)


#: Model -> what makes it, and an input for a batch.
MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]]] = {
    "transformer block": (lambda: Block(HEADS, WIDTH), lambda n: torch.randn(n, TOKENS, WIDTH)),
    "ResNet-50": (torchvision.models.resnet50, _image),
    "GoogLeNet": (
        lambda: torchvision.models.googlenet(aux_logits=False, init_weights=False),
        _image,
    ),
    "BERT": (_Bert, lambda n: torch.randint(WORDS, (n, TOKENS))),
    "encoder as BERT's": (_Encoder, lambda n: torch.randint(WORDS, (n, TOKENS))),
    "SqueezeNet": (torchvision.models.squeezenet1_1, _image),
    "Inception v3": (
        lambda: torchvision.models.inception_v3(aux_logits=False, init_weights=False),
        lambda n: torch.randn(n, 3, 299, 299),
    ),
    "ResNeXt-50": (torchvision.models.resnext50_32x4d, _image),
    "DenseNet-121": (torchvision.models.densenet121, _image),
    "RepVGG-A0": (_RepVgg, _image),
    "DCGAN": (_Generator, lambda n: torch.randn(n, 100, 1, 1)),
    "NasRNN": (lambda: NasRnn(STATE), lambda n: torch.randn(n, STEPS, STATE)),
}


@dataclass(frozen=True)
class Limits:
    """How long what is measured may take, in seconds.

    Attributes:
        search: of a row, with checks and measurements.
        graphs: of udf_taso's search among graphs.
        turns: of a model and eager mode, unless the fewest turns take longer.
    """

    search: float = LIMIT
    graphs: float = SEARCH
    turns: float = SECONDS


def machine(device: str) -> dict[str, Any]:
    """Return what a row says of where it was measured."""
    found = describe()
    return {
        "cpu": found["machine"]["cpu"],
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "",
        "versions": {name: found["versions"][name] for name in ("python", "torch")},
        "date": found["date"],
    }


def row(name: str, batch: int, backend: str, device: str, limits: Limits) -> dict[str, Any]:
    """Return the figures of one model at one batch size under one backend.

    Args:
        name: of the model.
        batch: its size.
        backend: that rewrites it.
        device: cpu or cuda.
        limits: on its time.

    Raises:
        UdfError: a rewritten model gives other results than the model.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    make, draw = MODELS[name]
    model, x = make().eval().to(device), draw(batch).to(device)
    wanted = model(x)
    given: dict[str, Any] = {"seconds": limits.search}
    if backend == "udf_taso":
        given["search_seconds"] = limits.graphs
    compiled = torch.compile(model, backend=backend, dynamic=False, options=given)
    before = time.perf_counter()
    with recording() as reports:
        result = compiled(x)
    seconds = time.perf_counter() - before
    distance = float((result - wanted).abs().max() / wanted.abs().max())
    if distance > TOLERANCE:
        raise UdfError(f"{name}, {backend}: the results differ by {distance:.2g}.")
    calls: dict[str, Callable[..., Any]] = {
        "eager": model,
        "traced": torch.compile(model, backend="eager", dynamic=False),
        TEMPLATES: torch.compile(model, backend=TEMPLATES, dynamic=False),
        "inductor": torch.compile(model, dynamic=False),
        backend: compiled,
    }
    once = sync_timer(device, runs=1, rounds=1, warmup=1).time(lambda: model(x)).median_ns / 1e9
    fewest, most = RUNS
    runs = min(most, max(fewest, int(limits.turns / max(6 * once, 1e-9))))
    rounds = 1 if once > 0.05 else 5
    timed = sync_timer(device, runs=runs, rounds=rounds, warmup=1).compare(
        {name: functools.partial(call, x) for name, call in calls.items()}
    )
    over = {name: timed.speedup(backend, over=name) for name in timed.timings if name != backend}
    return {
        "model": name,
        "batch": batch,
        "backend": backend,
        "device": device,
        "machine": machine(device),
        "shape": list(x.shape),
        "runs": runs,
        "median_ns": {n: timed[n].median_ns for n in timed.timings},
        "search_seconds": seconds,
        "search_limit": limits.search,
        "distance": distance,
        "speedup": [over["eager"].low, over["eager"].value, over["eager"].high],
        **{f"over_{n}": [r.low, r.value, r.high] for n, r in over.items() if n != "eager"},
        "graphs": [_graph(report.document()) for report in reports],
        "lost": [case for report in reports for case in _lost(report)],
    }


def _lost(report: GraphReport) -> list[dict[str, Any]]:
    """Return what of a backend's own matched and was not kept: the nearest to a gain of each rule.

    ``before_ns`` and ``after_ns`` are those of a part of the graph: of a region for udf_taso, of a
    convolution or chain for udf_pet. ``why`` is the measurement by which what was found is not
    kept.
    """
    best: dict[str, dict[str, Any]] = {}
    for detail in report.details:
        if "used" in detail:
            rule, kept = detail["rule"], detail["used"]
            before, after = detail["before_ns"], detail["after_ns"]
        elif "stock_ns" in detail:
            rule, kept = detail["rule"], detail["kept"]
            before, after = detail["stock_ns"], detail["corrected_ns"]
        else:
            continue
        case = {"rule": rule, "chosen": kept, "before_ns": before, "after_ns": after}
        known = best.get(rule)
        if known is None or after * known["before_ns"] < known["after_ns"] * before:
            best[rule] = case
    gone = [case for rule, case in best.items() if not case["chosen"] or rule not in report.own]
    gone.sort(key=lambda case: case["after_ns"] / max(case["before_ns"], 1e-9))
    return [{**case, "why": report.not_kept if case["chosen"] else ""} for case in gone[:NAMED]]


def _graph(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without its pictures, with the rules counted."""
    kept = {k: v for k, v in report.items() if k not in ("pictures", "fired", "tried")}
    counted = {k: dict(Counter(f["rule"] for f in report[k])) for k in ("fired", "tried")}
    return {**kept, **counted}


def _key(row: dict[str, Any]) -> tuple[str, int, str, str]:
    return row["device"], row["batch"], row["model"], row["backend"]


#: All rows there can be.
KEYS: Final = [
    (device, batch, name, backend)
    for device in DEVICES
    for batch in BATCHES
    for name in MODELS
    for backend in BACKENDS
]


def read(journals: Sequence[Path]) -> dict[tuple[str, int, str, str], dict[str, Any]]:
    """Return the rows of journals, by device, batch size, model and backend."""
    rows = {}
    for path in journals:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[_key(row)] = row
    return rows


def document(rows: dict[tuple[str, int, str, str], dict[str, Any]]) -> dict[str, Any]:
    """Return what is stored of rows, and the cases that no row is of, with their backends."""
    left: dict[str, list[str]] = {}
    for key in KEYS:
        if key not in rows:
            device, batch, name, backend = key
            left.setdefault(f"{name} at batch {batch} on {device}", []).append(backend)
    return {
        "image": IMAGE,
        "tokens": TOKENS,
        "width": WIDTH,
        "layers": LAYERS,
        "steps": STEPS,
        "state": STATE,
        "rows": [rows[key] for key in KEYS if key in rows and "failed" not in rows[key]],
        "failed": [rows[key] for key in KEYS if "failed" in rows.get(key, {})],
        "left_out": left,
    }


def _whole(figures: dict[str, Any]) -> bool:
    """Whether no row failed."""
    return not figures["failed"]


def measure(wanted: argparse.Namespace) -> dict[str, Any]:
    """Return the rows that are begun in time or in the journal, small batches first."""
    began = time.perf_counter()
    journal: Path | None = wanted.journal
    rows = read([journal] if journal is not None and journal.is_file() else [])
    limits = Limits(wanted.limit, wanted.search, wanted.turns)
    torch.backends.cudnn.allow_tf32 = False  # what is compared is float32
    torch.set_num_threads(wanted.threads or torch.get_num_threads())
    with torch.no_grad():
        for key in KEYS:
            device, batch, name, backend = key
            if key in rows or device != wanted.device or backend not in wanted.backends:
                continue
            if wanted.only and f"{name}, {batch}" not in wanted.only:
                continue
            if time.perf_counter() - began > wanted.seconds:
                break
            try:
                rows[key] = row(name, batch, backend, device, limits)
            except Exception as error:  # the other rows are worth having
                case = {"device": device, "batch": batch, "model": name, "backend": backend}
                said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                rows[key] = {**case, "machine": machine(device), "failed": said}
            shown = ("search_seconds", "speedup", "failed")
            print(*key, *(rows[key][name] for name in shown if name in rows[key]), flush=True)
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[key]) + "\n")
    return document(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser: argparse.ArgumentParser = command.parser("rewriting_gains", __doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which none is begun")
    parser.add_argument("--device", default="cpu", choices=DEVICES)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of each search")
    parser.add_argument("--search", type=float, default=SEARCH, help="of udf_taso's among graphs")
    parser.add_argument("--turns", type=float, default=SECONDS, help="seconds of the turns")
    parser.add_argument("--threads", type=int, help="of torch, on the CPU")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="CASE", help="for instance 'BERT, 1'"
    )
    parser.add_argument("--backends", nargs="*", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--journal", type=Path, metavar="FILE", help="rows, as they are measured")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="journals to join")
    options = parser.parse_args(arguments)
    usual = {"seconds": 3600.0, "limit": LIMIT, "search": SEARCH, "turns": SECONDS}
    options.changed = [
        f"--{name} {getattr(options, name):g}"
        for name, value in usual.items()
        if getattr(options, name) != value
    ]
    options.changed += ["--device cuda"] if options.device == "cuda" else []
    if options.merge:
        options.changed = ["--merge JOURNAL ..."]
        return command.run(
            "rewriting_gains", options, lambda: document(read(options.merge)), _whole
        )
    return command.run("rewriting_gains", options, lambda: measure(options), _whole)


if __name__ == "__main__":
    sys.exit(main())
