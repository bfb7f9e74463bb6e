# SPDX-License-Identifier: Apache-2.0
"""Watch the inputs and outputs of every operator and layer over several runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.tensor_contents import hides, real_parts
from pytest_udftorch.diagnose.sensitivity.digits import Samples
from pytest_udftorch.diagnose.sensitivity.perturbation import Perturbation
from pytest_udftorch.swap.observe.layers import Place, Whereabouts
from pytest_udftorch.swap.observe.recorder import Recording
from pytest_udftorch.swap.observe.recording import effects, given, results
from pytest_udftorch.swap.operators.overload import is_view, says_numbers


@dataclass
class Watched:
    """A call of an operator, or of a layer, in every run.

    Attributes:
        name: the overload; empty for a layer.
        place: where it is called.
        inputs: of each floating-point tensor that it got.
        outputs: of each that it made or wrote into.
    """

    name: str
    place: Place
    inputs: list[Samples]
    outputs: list[Samples]

    def take(self, inputs: list[Any], outputs: list[Any]) -> bool:
        """Take a run's tensors in, unless they do not fit to those of the first run."""
        for known, tensors in ((self.inputs, inputs), (self.outputs, outputs)):
            if len(known) != len(tensors):
                return False
            if not all(s.fits(t) for s, t in zip(known, tensors, strict=True)):
                return False
        for known, tensors in ((self.inputs, inputs), (self.outputs, outputs)):
            for samples, tensor in zip(known, tensors, strict=True):
                samples.add(tensor)
        return True


@dataclass
class Book:
    """What all runs together have shown.

    Attributes:
        operators: in the order of the first run's calls.
        layers: in the order in which they ended.
        results: name -> what a run gives.
        runs: how many were taken in.
        parted: the first call that was another one than in the first run: its position, the
            operator there and here, and its place; or None.
        changed: results that the last run changed.
        unseen: operators and kinds of tensors that could not be looked into.
    """

    operators: list[Watched] = field(default_factory=list)
    layers: list[Watched] = field(default_factory=list)
    results: dict[str, Samples] = field(default_factory=dict)
    runs: int = 0
    parted: tuple[int, str, str, Place] | None = None
    changed: int = 0
    unseen: set[str] = field(default_factory=set)

    def end_run(self, values: dict[str, Any]) -> None:
        """Take in what a run gave."""
        for name, tensor in values.items():
            parts = _reals(tensor)
            for number, part in enumerate(parts):
                own = name if len(parts) == 1 else f"{name}, part {number}"
                known = self.results.setdefault(own, Samples(part))
                if known.fits(part):
                    known.add(part)
        self.runs += 1


def watching(where: Whereabouts, book: Book, perturbation: Perturbation | None) -> Any:
    """Return a mode that takes a run in, and changes results if it is told to."""

    class Watching(OperatorWatch):
        def __init__(self) -> None:
            self.recording = Recording()
            self.position = 0
            self.ended = 0
            self.handles: list[Any] = []
            self.entered: list[tuple[Place, list[Samples | Any]]] = []

        def __enter__(self) -> Self:
            from torch.nn.modules import module

            before, after = self.before_layer, self.after_layer
            self.handles = [
                module.register_module_forward_pre_hook(before),
                module.register_module_forward_hook(after),
            ]
            return super().__enter__()

        def __exit__(self, *exception: object) -> None:
            for handle in self.handles:
                handle.remove()
            super().__exit__(*exception)

        def passed(self, operator: Any) -> None:
            book.unseen.add(f"what {operator.name()} computes itself")

        def before_layer(self, _: Any, args: Any) -> None:
            with _apart():
                # A layer may write into its arguments.
                kept = [t.detach().clone() for t in _reals(args)]
            self.entered.append((where.now(), kept))

        def after_layer(self, _: Any, args: Any, output: Any) -> None:
            place, inputs = self.entered.pop()
            with _apart():
                self.take(book.layers, self.ended, "", place, inputs, _reals(output))
            self.ended += 1

        def take(
            self, rows: list[Watched], at: int, name: str, place: Place, got: Any, gave: Any
        ) -> None:
            if book.parted is not None:
                return
            if book.runs == 0:
                rows.append(Watched(name, place, [*map(Samples, got)], [*map(Samples, gave)]))
            there = rows[at] if at < len(rows) else None
            if there is None or there.name != name or not there.take(got, gave):
                was = "the end" if there is None else there.name
                book.parted = (at, was, name, place)

        def call(self, func: Any, args: Any, kwargs: Any) -> Any:
            if is_view(func) or not says_numbers(func):
                return func(*args, **kwargs)
            place = where.now()
            leaves = compat.pytree().tree_leaves
            written = {id(t) for p in effects(func).written for t in leaves(p.of(args, kwargs))}
            # What is written in place is read before.
            inputs = [
                part.detach().clone() if id(t) in written else part
                for t in given(func, args, kwargs)
                for part in _reals(t)
            ]
            returned = (
                func(*args, **kwargs) if perturbation is None
                else perturbation.call(func, args, kwargs)
            )  # fmt: skip
            made = results(func, args, kwargs, returned)
            book.unseen |= {f"tensors of the kind {what}" for what in map(hides, made) if what}
            outputs = [part for t in made for part in _reals(t)]
            self.take(book.operators, self.position, str(func.name()), place, inputs, outputs)
            self.position += 1
            return returned

    return Watching()


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Look at tensors outside of an operator, so that nobody follows what is computed of them."""
    import torch

    with (
        compat.no_torch_function(), compat.no_modes(), compat.no_transforms(), torch.no_grad(),
    ):  # fmt: skip
        yield


def _reals(values: Any) -> list[Any]:
    """Return the plain tensors of real numbers that the tensors in something consist of."""
    import torch

    if hasattr(values, "items"):  # Hugging Face's results are not known to torch's trees
        values = dict(values)
    leaves = compat.pytree().tree_leaves(values)
    return [p for t in leaves if isinstance(t, torch.Tensor) for p in real_parts(t)]
