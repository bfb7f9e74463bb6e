# SPDX-License-Identifier: Apache-2.0
"""The main job: LeNet on MNIST under the stock functions and under corem, side by side.

    python -m benches.experiments.demo_lenet [--mnist DIR] [--epochs N] [--store FILE]

Every library trains its own model from the same seed on the same batches, twice. In the timed run
the libraries take turns every few steps, so that a disturbance of the machine affects both. In the
observed run a dispatch mode sees every operator that needs exp, expm1 or log; the libraries have a
process each. The observed run must end with the weights of the timed one, bit for bit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benches import stored
from benches.data.mnist import load
from benches.data.models.lenet import LeNet
from benches.data.samples import Samples
from benches.experiments.training import Task, Training
from pytest_udftorch import UdfError, patched, trace
from pytest_udftorch.swap.toolchain.environment import caption, describe

FUNCTIONS = ("exp", "expm1", "log")

#: Steps of a turn. The first of them is not timed: it finds the caches as the other library left
#: them.
TURN = 8


@dataclass(frozen=True)
class Settings:
    """What a training depends on."""

    epochs: int = 10
    batch: int = 50
    test_batch: int = 1000
    learning_rate: float = 0.05
    seed: int = 0
    threads: int = 1


@dataclass
class Operand:
    """The arguments of one elementary function inside one ATen operator.

    Attributes:
        calls: of the ATen operator.
        elements: arguments that the operator's definition gives the function.
        low, high: smallest and largest of them.
        symbols: symbol of libm, SLEEF or MKL -> calls that libtorch made to it.
    """

    operator: str
    function: str
    calls: int = 0
    elements: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    symbols: dict[str, int] = field(default_factory=dict)

    def see(self, values: torch.Tensor, symbols: dict[str, int]) -> None:
        """Add one call."""
        self.calls += 1
        self.elements += values.numel()
        if values.numel():
            low, high = (float(v) for v in values.aminmax())
            self.low, self.high = min(self.low, low), max(self.high, high)
        for name, count in symbols.items():
            self.symbols[name] = self.symbols.get(name, 0) + count

    @property
    def providers(self) -> str:
        """The libraries whose functions libtorch called, before any swap."""
        found = {
            "SLEEF" if s.startswith("Sleef") else "MKL" if s.startswith("vm") else "libm"
            for s in self.symbols
        }
        return "+".join(sorted(found, reverse=True))


def _elu(x: torch.Tensor, *_: Any) -> dict[str, torch.Tensor]:
    return {"expm1": x[x <= 0]}


def _elu_backward(
    grad: torch.Tensor, alpha: float, scale: float, input_scale: float, is_result: bool,
    x: torch.Tensor,
) -> dict[str, torch.Tensor]:  # fmt: skip
    return {} if is_result else {"exp": x[x <= 0]}


def _log_softmax(x: torch.Tensor, dim: int, *_: Any) -> dict[str, torch.Tensor]:
    below = x - x.amax(dim, keepdim=True)
    # In double precision, because its exp is not a symbol that the demo's libraries swap.
    return {"exp": below, "log": below.double().exp().sum(dim)}


def _log_softmax_backward(
    grad: torch.Tensor, result: torch.Tensor, *_: Any
) -> dict[str, torch.Tensor]:
    return {"exp": result}


#: ATen operator -> its name in the table, and what finds the operands of each function in its
#: arguments, by its definition (ATen/native/cpu/Elu.h, LogSoftmaxKernelImpl.h).
OPERANDS: dict[Any, tuple[str, Callable[..., dict[str, torch.Tensor]]]] = {
    torch.ops.aten.elu: ("elu", _elu),
    torch.ops.aten._log_softmax: ("log_softmax", _log_softmax),
    torch.ops.aten.elu_backward: ("elu, backward", _elu_backward),
    torch.ops.aten._log_softmax_backward_data: ("log_softmax, backward", _log_softmax_backward),
}


class Observer(TorchDispatchMode):
    """Records the operands of exp, expm1 and log in the operators that LeNet runs.

    Values that a vector computes and drops (elu where x > 0) are not operands. The calls of symbols
    are counted while the operator itself runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], Operand] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket not in OPERANDS:
            return func(*args, **(kwargs or {}))
        name, operands = OPERANDS[func.overloadpacket]
        with trace(FUNCTIONS) as calls:
            result = func(*args, **(kwargs or {}))
        for function, values in operands(*args, **(kwargs or {})).items():
            mine = {s: n for s, n in calls.items() if _is_form_of(s, function)}
            key = (name, function)
            self.found.setdefault(key, Operand(*key)).see(values, mine)
        return result


def _is_form_of(symbol: str, function: str) -> bool:
    names = {"exp": "vmsExp", "expm1": "vmsExpm1", "log": "vmsLn"}
    return symbol in (function + "f", names[function]) or symbol.startswith(f"Sleef_{function}f")


def task_of(digits: Samples, settings: Settings) -> Task:
    """Return LeNet on the digits."""
    return Task(
        "lenet",
        "LeNet",
        digits,
        LeNet,
        lambda weights: torch.optim.SGD(weights, settings.learning_rate),
        settings.batch,
        settings.test_batch,
    )


def epochs(task: Task, settings: Settings) -> Iterator[list[torch.Tensor]]:
    """Yield, for each epoch, the indices of its batches; the same for every library."""
    batches = task.batches(settings.seed)
    for _ in range(settings.epochs):
        yield list(islice(batches, len(task.samples.train_targets) // task.batch))


def accuracy(training: Training) -> float:
    """Return the share of the test images that the model classifies correctly."""
    right = training.test()[0] == training.task.samples.test_targets
    return int(right.sum()) / right.numel()


@dataclass
class Timed:
    """What the timed run gave for one library."""

    training: Training
    accuracies: list[float] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)


def timed(digits: Samples, settings: Settings, libraries: Sequence[str]) -> dict[str, Timed]:
    """Train under each library, in turns of ``TURN`` steps, and time the steps."""
    task = task_of(digits, settings)
    runs = {name: Timed(Training(task, settings.seed)) for name in libraries}
    turn = 0
    for number, batches in enumerate(epochs(task, settings), start=1):
        for first in range(0, len(batches), TURN):
            turn += 1
            for name in libraries if turn % 2 else reversed(libraries):
                run = runs[name]
                with patched(name, None if name == "std" else FUNCTIONS):
                    for index, batch in enumerate(batches[first : first + TURN]):
                        start = time.perf_counter_ns()
                        run.training.step(batch)
                        elapsed = time.perf_counter_ns() - start
                        if index:
                            run.step_ns.append(elapsed)
        for name, run in runs.items():
            with patched(name, None if name == "std" else FUNCTIONS):
                run.accuracies.append(accuracy(run.training))
        print(f"epoch {number} of {settings.epochs}", file=sys.stderr)
    return runs


#: The weights at the end, and what the functions got there.
Observed = tuple[torch.Tensor, dict[tuple[str, str], Operand]]


def observed(digits: Samples, settings: Settings, library: str) -> Observed:
    """Train once more under one library and record the arguments of its functions."""
    torch.set_num_threads(settings.threads)
    task, observer = task_of(digits, settings), Observer()
    training = Training(task, settings.seed)
    functions = None if library == "std" else FUNCTIONS
    # The trace around all makes those of single operators cheap.
    with patched(library, functions), trace(FUNCTIONS), observer:
        for number, batches in enumerate(epochs(task, settings), start=1):
            for batch in batches:
                training.step(batch)
            accuracy(training)
            print(f"observed {library}: epoch {number} of {settings.epochs}", file=sys.stderr)
    return training.weights(), observer.found


def side_by_side(
    digits: Samples, settings: Settings, libraries: Sequence[str]
) -> dict[str, Observed]:
    """Observe the training under each library; all but the first in a process of their own."""
    # A fork would have OpenMP's state without its threads.
    fresh = multiprocessing.get_context("spawn")
    first, *others = libraries
    with ProcessPoolExecutor(len(others), mp_context=fresh) as pool:
        running = {
            name: pool.submit(_there, pickle.dumps((digits, settings, name))) for name in others
        }
        found = {first: observed(digits, settings, first)}
        return found | {name: pickle.loads(task.result()) for name, task in running.items()}


def _there(arguments: bytes) -> bytes:
    """Observe in another process. Tensors cross as bytes: torch's way shares their memory."""
    return pickle.dumps(observed(*pickle.loads(arguments)))


# Result ------------------------------------------------------------------------------


class DemoError(UdfError):
    """The demo's check of itself failed."""


def run(digits: Samples, settings: Settings, libraries: Sequence[str]) -> dict[str, Any]:
    """Run the demo and return its figures, ready for JSON.

    Raises:
        DemoError: the observed run ended with other weights than the timed one.
        UdfError: as from opening a session.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        runs = timed(digits, settings, libraries)
        print(
            "training once more under each library, to see which operators call its functions, and "
            "on what numbers",
            file=sys.stderr,
        )
        operands = {}
        for name, (weights, operands[name]) in side_by_side(digits, settings, libraries).items():
            if not torch.equal(weights, runs[name].training.weights()):
                raise DemoError(
                    f"The observed training under {name!r} ended with other weights than the timed "
                    "one: this torch is not deterministic here, so the ranges belong to another "
                    "run than the accuracy. Try --threads 1."
                )
    finally:
        torch.set_num_threads(threads)
    first, second = (runs[name] for name in libraries)
    differ = first.training.weights() != second.training.weights()
    ratios = [b / a for a, b in zip(first.step_ns, second.step_ns, strict=True)]
    return {
        "digits": str(digits),
        "settings": asdict(settings),
        "libraries": list(libraries),
        "parameters": differ.numel(),
        "parameters_different": int(differ.sum()),
        "accuracy": {name: runs[name].accuracies for name in libraries},
        "step_ns": {name: _summary(runs[name].step_ns) for name in libraries},
        "steps_timed": len(first.step_ns),
        "step_ratio": statistics.median(ratios),
        "operands": {name: [asdict(o) for o in operands[name].values()] for name in libraries},
        "providers": {name: [o.providers for o in operands[name].values()] for name in libraries},
    }


def _summary(values: Sequence[int]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "lower_quartile": low, "upper_quartile": high}


def text(figures: dict[str, Any], environment: dict[str, Any]) -> str:
    """Return the page that the demo prints."""
    settings, names = figures["settings"], figures["libraries"]
    lines = [
        f"LeNet on {figures['digits']}",
        f"SGD, learning rate {settings['learning_rate']}, batch {settings['batch']}, "
        f"{settings['epochs']} epochs, seed {settings['seed']}, threads {settings['threads']}",
        caption(environment),
        "",
        f"{'':40}" + "".join(f"| {name:<31}" for name in names),
        f"{'function':<9}{'operator':<23}{'count':>7} "
        + "".join(f"| {'library':<11}{'min':>9} {'max':>9} " for _ in names),
        "-" * 40 + "".join("+" + "-" * 32 for _ in names),
    ]
    for index, row in enumerate(figures["operands"][names[0]]):
        line = f"{row['function']:<9}{row['operator']:<23}{row['calls']:>7,} "
        for name in names:
            mine = figures["operands"][name][index]
            library = figures["providers"][name][index] if name == "std" else name
            line += f"| {library:<11}{mine['low']:>9.3g} {mine['high']:>9.3g} "
        lines.append(line)
    lines.append("")
    for label, value in (
        ("test accuracy", lambda n: f"{100 * figures['accuracy'][n][-1]:.1f} %"),
        ("time per step, median", lambda n: f"{figures['step_ns'][n]['median'] / 1e6:.2f} ms"),
        (
            "  half of the steps took",
            lambda n: (
                f"{figures['step_ns'][n]['lower_quartile'] / 1e6:.2f} to "
                f"{figures['step_ns'][n]['upper_quartile'] / 1e6:.2f} ms"
            ),
        ),
    ):
        lines.append(f"{label:<40}" + "".join(f"| {value(name):<31}" for name in names))
    rows = figures["operands"][names[0]]
    forward = [r for r in rows if "backward" not in r["operator"]]
    passes = next(r["calls"] for r in forward if r["function"] == "log")
    exponentials = sum(r["calls"] for r in forward if r["function"] != "log")
    share = figures["step_ratio"] - 1
    lines += [
        f"{names[1]} against {names[0]}, step by step: {100 * share:+.1f} % "
        f"(median over {figures['steps_timed']:,} steps)",
        f"weights that differ in their bits: {figures['parameters_different']:,} of "
        f"{figures['parameters']:,}",
        f"forward passes: {passes:,}; operators with a logarithm {passes:,}, with an exponential "
        f"(exp or expm1) {exponentials:,}",
        "",
        "count: calls of the ATen operator. min, max: what the operator's definition gives the",
        "function (elu: x where x <= 0; log_softmax: exp of x minus the row's largest, log of",
        "their sum; backward: exp of x, and of the result). Both from a second run, which ended",
        "with the same weights bit for bit. library: whose symbols libtorch called; under",
        f"{names[1]} they are bound to it. Steps are timed in turns of {TURN}, the first of each "
        "left out.",
    ]
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.experiments.demo_lenet", description=__doc__
    )
    parser.add_argument(
        "--mnist", type=Path, metavar="DIR", help="folder with MNIST/raw: all 70,000 digits"
    )
    parser.add_argument(
        "--library", default="corem", help="trained beside std; needs exp, expm1 and log"
    )
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--threads", type=int, default=Settings.threads)
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write the figures as JSON")
    options = parser.parse_args(arguments)
    for name in ("epochs", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1.")
    if options.store and not options.store.parent.is_dir():
        parser.error(f"--store: there is no folder {options.store.parent}.")
    settings = Settings(epochs=options.epochs, seed=options.seed, threads=options.threads)
    try:
        figures = run(load(options.mnist), settings, ("std", options.library))
    except UdfError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    page = text(figures, describe())
    print(page)
    if options.store:
        stored.save(options.store, "make demo", {**figures, "text": page})
    return 0


if __name__ == "__main__":
    sys.exit(main())
