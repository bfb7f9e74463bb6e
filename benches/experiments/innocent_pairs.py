# SPDX-License-Identifier: Apache-2.0
"""Does the judge of model pairs accuse the innocent, and does it catch planted faults?

    python -m benches.experiments.innocent_pairs [--seeds N] [--store FILE]

Innocent forms of a model compute the same function in another order: another memory layout, other
numbers of threads, rows one by one or in halves, oneDNN on or off, another CPU capability (in a
process of its own), TorchScript, a GPU. Faulty forms have one planted fault each: a layer that
computes in half precision, a wrong epsilon, inputs cut to ten bits, a lost bias, another GELU.
Each is judged as a member of a ``ModelPair``. No innocent form may be accused, and no fault missed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benches.experiments import command as commands
from pytest_udftorch.measure import ModelPair, model_pair
from pytest_udftorch.measure.planning.pairs import Member

SEEDS = 10
BATCH = 4


class Attention(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result for a batch."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(mixed.reshape(rows, length, width))
        return x + self.mlp(self.after(x))


class Recurrent(nn.Module):
    """A recurrent network and its last step's classes."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell: Any = kind(32, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result for a batch."""
        out: torch.Tensor = self.head(self.cell(x)[0][:, -1])
        return out


class Residual(nn.Module):
    """Two convolutions around which the input passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result for a batch."""
        return F.relu(x + self.body(x))


def _convolutions(*middle: nn.Module, width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), *middle,
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip


def _depthwise() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.SiLU()]
        layers += [nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.Hardswish()]
    return _convolutions(*layers)


IMAGES, ROWS, VECTORS = (BATCH, 3, 24, 24), (BATCH, 20, 32), (BATCH, 2048)

#: Name -> what makes the model, and the shape of its input.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(2048, 256), nn.Tanh(), nn.Linear(256, 10)),
        VECTORS,
    ),
    "long sum": (lambda: nn.Sequential(nn.Linear(2048, 1)), VECTORS),
    "deep": (
        lambda: nn.Sequential(
            *itertools.chain.from_iterable((nn.Linear(32, 32), nn.ReLU()) for _ in range(20))
        ),
        ROWS,
    ),
    "convolutions": (lambda: _convolutions(nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()), IMAGES),
    "residual": (lambda: _convolutions(Residual(16), Residual(16), Residual(16)), IMAGES),
    "depthwise": (_depthwise, IMAGES),
    "wide kernel": (lambda: _convolutions(nn.Conv2d(16, 16, 11, padding=5), nn.ELU()), IMAGES),
    "like AlexNet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(1152, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10),
        ),
        IMAGES,
    ),
    "attention": (lambda: nn.Sequential(Attention(), Attention(), nn.LayerNorm(32)), ROWS),
    "lstm": (lambda: Recurrent(nn.LSTM), ROWS),
    "gru": (lambda: Recurrent(nn.GRU), ROWS),
    "norms": (
        lambda: _convolutions(nn.GroupNorm(4, 16), nn.GELU(), nn.InstanceNorm2d(16), nn.GELU()),
        IMAGES,
    ),
}  # fmt: skip

Form = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _with_threads(count: int) -> Form:
    def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            out: torch.Tensor = model(x)
            return out
        finally:
            torch.set_num_threads(before)

    return run


def _in_parts(size: int) -> Form:
    return lambda model, x: torch.cat([model(part) for part in x.split(size)])


def _last(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 4:
        form = torch.channels_last
        model, x = copy.deepcopy(model).to(memory_format=form), x.contiguous(memory_format=form)
    out: torch.Tensor = model(x)
    return out


def _strided(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    spread = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])[..., ::2]
    out: torch.Tensor = model(spread.copy_(x))
    return out


def _without_onednn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.backends.mkldnn.flags(enabled=False):
        out: torch.Tensor = model(x)
        return out


def _scripted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.jit.freeze(torch.jit.trace(model, x))(x)
    return out


def _in_larger_batch(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(torch.cat([x.flip(0), x, x]))[len(x) : 2 * len(x)]
    return out


def _on_cuda(run: Form) -> Form:
    """Return the form on a GPU, without TF32: its factors have ten bits, which is a fault here."""

    def form(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.backends.cudnn.flags(allow_tf32=False):
            return run(copy.deepcopy(model).cuda(), x.cuda()).cpu()

    return form


INNOCENT: dict[str, Form] = {
    "channels last": _last,
    "one thread": _with_threads(1),
    "three threads": _with_threads(3),
    "row by row": _in_parts(1),
    "in halves": _in_parts(BATCH // 2),
    "in a larger batch": _in_larger_batch,
    "strided input": _strided,
    "without oneDNN": _without_onednn,
    "TorchScript": _scripted,
}
if torch.cuda.is_available():
    INNOCENT |= {
        "CUDA": _on_cuda(lambda model, x: model(x)),
        "channels last on CUDA": _on_cuda(_last),
        "row by row on CUDA": _on_cuda(_in_parts(1)),
    }


def _layers(model: nn.Module, *kinds: type[nn.Module]) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, kinds)]


def _in_half(layer: nn.Module) -> None:
    compute = layer.forward
    layer.bfloat16()
    layer.forward = lambda x: compute(x.bfloat16()).float()  # type: ignore[method-assign]


def _cut(layer: nn.Module) -> None:
    """Compute with ten bits of each factor, as tensor cores do in TF32."""

    def ten_bits(x: torch.Tensor) -> torch.Tensor:
        return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)

    compute = layer.forward
    weight: Any = layer.weight
    weight.data = ten_bits(weight.data)
    layer.forward = lambda x: compute(ten_bits(x))  # type: ignore[method-assign]


def _other_epsilon(layer: Any) -> None:
    layer.eps *= 10


def _without_bias(layer: Any) -> None:
    layer.bias = None


def _by_tanh(layer: Any) -> None:
    layer.approximate = "tanh"


NORMS = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)
PRODUCTS = (nn.Linear, nn.Conv2d)

#: Name -> the kinds of layers that can have the fault, and what plants it.
FAULTS: dict[str, tuple[tuple[type[nn.Module], ...], Callable[[Any], None]]] = {
    "half precision": (PRODUCTS, _in_half),
    "ten bits": (PRODUCTS, _cut),
    "wrong epsilon": (NORMS, _other_epsilon),
    "no bias": (PRODUCTS, _without_bias),
    "GELU by tanh": ((nn.GELU,), _by_tanh),
}


def faulty(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield copies of a model with one fault in the last layer that can have it."""
    for name, (kinds, plant) in FAULTS.items():
        broken = copy.deepcopy(model)
        layers = _layers(broken, *kinds)
        if layers:
            plant(layers[-1])
            yield name, broken


def case(name: str, seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a model with weights and an input of its own for each seed."""
    torch.manual_seed(1000 * seed + sum(map(ord, name)))
    make, shape = MODELS[name]
    model = make().eval()
    for norm in _layers(model, nn.BatchNorm2d):
        norm.running_mean.normal_()  # type: ignore[operator, union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[operator, union-attr]
    return model, torch.randn(shape)


def judged(pair: ModelPair, name: str, output: torch.Tensor) -> tuple[bool, float, float]:
    """Return whether a form agrees, its distance, and its distance over the eager result's."""
    member = Member(name)
    pair.judge(member, (output, output))
    eager = pair.exact[0].distance
    assert member.accuracy is not None
    distance = member.accuracy.distance
    return member.agrees, distance, distance / eager if eager else math.inf


@torch.no_grad()
def outputs_of_all(seeds: int) -> dict[tuple[str, int], torch.Tensor]:
    """Return what every model gives in this process."""
    found = {}
    for name in MODELS:
        for seed in range(seeds):
            model, x = case(name, seed)
            found[name, seed] = model(x)
    return found


def elsewhere(seeds: int, capability: str) -> dict[tuple[str, int], torch.Tensor]:
    """Return what every model gives in a process with another CPU capability."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outputs.pt"
        command = [sys.executable, "-m", "benches.experiments.innocent_pairs"]
        command += ["--seeds", str(seeds), "--outputs", str(file)]
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        subprocess.run(command, env=environment, check=True)
        found: dict[tuple[str, int], torch.Tensor] = torch.load(file, weights_only=False)
        return found


@torch.no_grad()
def measure(seeds: int) -> dict[str, Any]:
    """Judge all forms of all models."""
    here = torch.backends.cpu.get_cpu_capability().lower()
    others = {c: elsewhere(seeds, c) for c in ("default", "avx2") if c != here}
    innocent: dict[str, list[tuple[bool, float, float]]] = {}
    faults: dict[str, list[tuple[bool, float, float]]] = {}
    accused, missed = [], []
    by_one_sample = 0
    for name in MODELS:
        for seed in range(seeds):
            model, x = case(name, seed)
            pair = model_pair(model, x, ["eager"])
            forms = {form: run(model, x) for form, run in INNOCENT.items()}
            forms |= {f"capability {c}": found[name, seed] for c, found in others.items()}
            for form, output in forms.items():
                found = judged(pair, form, output)
                innocent.setdefault(form, []).append(found)
                by_one_sample += found[2] > pair.tolerance
                if not found[0]:
                    accused.append({"model": name, "seed": seed, "form": form, "times": found[2]})
            for fault, broken in faulty(model):
                found = judged(pair, fault, broken(x))
                faults.setdefault(fault, []).append(found)
                if found[0]:
                    missed.append({"model": name, "seed": seed, "fault": fault, "times": found[2]})
    return {
        "models": list(MODELS),
        "seeds": seeds,
        "innocent": {form: _summary(rows) for form, rows in innocent.items()},
        "faults": {fault: _summary(rows) for fault, rows in faults.items()},
        "innocent_pairs": sum(map(len, innocent.values())),
        "faulty_pairs": sum(map(len, faults.values())),
        "over_tolerance_by_one_eager_result": by_one_sample,
        "accused": accused,
        "missed": missed,
    }


def _summary(rows: list[tuple[bool, float, float]]) -> dict[str, Any]:
    times = sorted(row[2] for row in rows)
    return {
        "pairs": len(rows),
        "agree": sum(row[0] for row in rows),
        "times_eager_least": times[0],
        "times_eager_median": times[len(times) // 2],
        "times_eager_most": times[-1],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = commands.parser("innocent_pairs", __doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--outputs", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1.")
    if options.outputs is not None:
        torch.save(outputs_of_all(options.seeds), options.outputs)
        return 0

    def judge(figures: dict[str, Any]) -> bool:
        print(
            f"{figures['innocent_pairs']} innocent pairs, {len(figures['accused'])} accused; "
            f"{figures['faulty_pairs']} faulty pairs, {len(figures['missed'])} missed"
        )
        for row in (*figures["accused"], *figures["missed"]):
            print(row)
        return not figures["accused"] and not figures["missed"]

    return commands.run("innocent_pairs", options, lambda: measure(options.seeds), judge)


if __name__ == "__main__":
    sys.exit(main())
