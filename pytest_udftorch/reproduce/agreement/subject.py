# SPDX-License-Identifier: Apache-2.0
"""A model and its inputs as the ways of running it see them."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import RunError, UdfError

#: Names of results in the order in which one of them is what is compared.
_RESULTS: Final = ("logits", "prediction_logits", "last_hidden_state", "image_embeds")

#: Arguments that hold the sequence whose positions the result has.
_SEQUENCES: Final = ("decoder_input_ids", "input_ids")

#: Names of a cache, as an argument and in a result.
CACHES: Final = ("cache", "past_key_values", "cache_params")


@dataclass(frozen=True)
class Piece:
    """What a call gave for some rows and positions of the batch.

    Attributes:
        output: the result of the call, of shape (rows, positions, classes) or (rows, classes).
        rows: the rows of the batch, in the order of the result's.
        start: their first position.
        stop: the position behind the last, or None if the result has no positions.
        own_row: the first of these rows in the result.
        own_start: the first of these positions in the result.
        memory: how many positions keys have in the call.
        first_key: where the first token's key lies among them.
        gradients: name of a parameter -> the gradient of the loss of the whole batch.
        instead: what it is compared with, if that is not the evaluation of the model as it was.
    """

    output: Any
    rows: tuple[int, ...]
    start: int = 0
    stop: int | None = None
    own_row: int = 0
    own_start: int = 0
    memory: int = 0
    first_key: int = 0
    gradients: Mapping[str, Any] | None = None
    instead: Any = None

    def own(self) -> Any:
        """Return the part of the result that is to be compared."""
        found = self.output[self.own_row : self.own_row + len(self.rows)]
        if self.stop is None:
            return found
        return found[:, self.own_start : self.own_start + self.stop - self.start]

    def of(self, whole: Any) -> Any:
        """Return the same part of the result for the whole batch, or of what stands instead."""
        found = (whole if self.instead is None else self.instead)[list(self.rows)]
        return found if self.stop is None else found[:, self.start : self.stop]


class Subject:
    """A model, its inputs, and what it can be asked for.

    Attributes:
        model: in evaluation mode.
        inputs: name or position of an argument -> its tensor, whose first dimension is the batch.
        batch: how many rows there are.
        sequence: the argument whose positions the result has, or None.
        length: how many positions it has, or 0.
        causal: whether a position's result depends on earlier ones alone.
        targets: the class at each position whose log-probability is compared.
        counts_padding: whether the model has to be told the positions of a row behind padding.
    """

    model: Any
    sequence: Any
    counts_padding = True

    def __init__(self, model: Any, inputs: Any) -> None:
        import torch

        if not isinstance(model, torch.nn.Module):
            raise RunError(
                f"{type(model).__name__} is not a module of torch. The ways of running a model "
                "need one: return it, and its inputs, from the function."
            )
        self.model = model.eval()
        named = inputs if isinstance(inputs, Mapping) else dict(enumerate(_tuple(inputs)))
        self.inputs: dict[Any, Any] = dict(named)
        self.batch = self._rows()
        self._takes = set(inspect.signature(model.forward).parameters)
        whole = self._whole()
        if not whole.dim() or whole.shape[0] != self.batch or not whole.numel():
            raise RunError(
                f"The result of {type(model).__name__} has the shape {tuple(whole.shape)}, and the "
                f"batch {self.batch} rows. Its first dimension has to be the batch, and no other "
                "one empty."
            )
        self.sequence = self._sequence(whole)
        self.length = whole.shape[1] if self.sequence is not None else 0
        self.causal = self._is_causal(whole)
        self.targets = self._targets(whole)

    def _rows(self) -> int:
        import torch

        tensors = [t for t in self.inputs.values() if isinstance(t, torch.Tensor) and t.dim()]
        sizes = {t.shape[0] for t in tensors}
        if len(sizes) != 1:
            raise RunError(
                f"The inputs have {sorted(sizes) or 'no'} rows. The first dimension of each tensor "
                "has to be the batch."
            )
        (found,) = sizes
        if found < 2:
            raise RunError("A batch of one row agrees with itself. Give two rows or more.")
        return int(found)

    def _whole(self) -> Any:
        import torch

        try:
            with torch.no_grad():
                return self.call()
        except UdfError:
            raise
        except Exception as error:  # whatever a model's own code raises
            said = next(iter(str(error).strip().splitlines()), "")
            raise RunError(
                f"{type(self.model).__name__} cannot be run with its inputs "
                f"({', '.join(map(str, self.inputs))}): {type(error).__name__}: {said}. Write a "
                "function that returns a model and inputs that fit it, and name it as "
                "model.py:make."
            ) from error

    def _sequence(self, whole: Any) -> Any:
        for name in _SEQUENCES:
            ids = self.inputs.get(name)
            if ids is not None and whole.dim() == 3 and whole.shape[:2] == ids.shape[:2]:
                return name
        return None

    def _is_causal(self, whole: Any) -> bool:
        """Try it: the result for a prefix is that of the whole, but for rounding."""
        import torch

        if self.sequence is None or self.length < 4:
            return False
        half = self.length // 2
        with torch.no_grad():
            try:
                short = self.call({self.sequence: self.inputs[self.sequence][:, :half]})
            except (RuntimeError, ValueError):
                return False
        return not far(short, whole[:, :half])

    def _targets(self, whole: Any) -> Any:
        if self.causal and self.sequence is not None:
            following = self.inputs[self.sequence].roll(-1, 1)
            if bool(following.max() < whole.shape[-1]):  # not of hidden states, or other classes
                return following
        return whole.argmax(-1)

    def takes(self, name: str) -> bool:
        """Tell whether the model has an argument of this name."""
        return name in self._takes

    @functools.cached_property
    def cache(self) -> Any:
        """The name of the argument for a cache, or None; a result has to have one, too."""
        import torch

        name = next((name for name in CACHES if self.takes(name)), None)
        if not self.causal or name is None or not hasattr(self.model, "config"):
            return None
        try:
            with torch.no_grad():
                given = set(self.full(use_cache=True).keys())
        except Exception:  # whatever a model's own code raises: the ways report it
            return name
        return name if given.intersection(CACHES) else None

    def rows(self, which: Any) -> dict[Any, Any]:
        """Return the inputs of some rows: a slice, or a list of their numbers."""
        import torch

        return {
            name: value[which] if isinstance(value, torch.Tensor) and value.dim() else value
            for name, value in self.inputs.items()
        }

    def full(self, changed: Mapping[Any, Any] | None = None, **more: Any) -> Any:
        """Call the model, with some of its inputs replaced; return everything that it gives."""
        inputs = {**self.inputs, **(changed or {}), **more}
        if self.takes("use_cache") and "use_cache" not in inputs:
            inputs["use_cache"] = False
        positional = [inputs.pop(i) for i in range(len(inputs)) if i in inputs]
        return self.model(*positional, **inputs)

    def call(self, changed: Mapping[Any, Any] | None = None, **more: Any) -> Any:
        """Call the model; return the tensor that is compared."""
        found = result_of(self.full(changed, **more))
        return found.unsqueeze(-1) if found.dim() == 1 else found

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Put the model into training mode without what differs by intent while entered.

        Dropout is off, and normalisation over the batch keeps the statistics of evaluation.
        """
        import torch

        nn = torch.nn
        norms = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm

        def drops(module: Any, name: str) -> bool:
            # torch's and others' layers call the share ``p``.
            kind = type(module).__name__
            return "drop" in name or (name == "p" and ("Drop" in kind or "Stochastic" in kind))

        # Some layers ask the configuration, which has a share for SpecAugment, too.
        asked = (vars(module).get("config") for module in self.model.modules())
        configs = {id(c): c for c in asked if hasattr(c, "to_dict")}
        kept = [
            (holder, name, value)
            for holder in (*self.model.modules(), *configs.values())
            for name, value in vars(holder).items()
            if (isinstance(value, float) and drops(holder, name)) or name == "apply_spec_augment"
        ]
        for holder, name, value in kept:
            setattr(holder, name, type(value)(0))
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, norms):
                module.eval()
        try:
            yield
        finally:
            self.model.eval()
            for holder, name, value in kept:
                setattr(holder, name, value)

    def on(self, device: str) -> Subject:
        """Return a copy on another device."""
        found = copy.copy(self)
        found.model = copy.deepcopy(self.model).to(device)
        found.inputs = compat.pytree().tree_map(
            lambda t: t.to(device) if hasattr(t, "to") else t, self.inputs
        )
        return found


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def result_of(output: Any) -> Any:
    """Return the tensor of a model's output that is compared.

    Raises:
        RunError: it has none of floating-point numbers.
    """
    import torch

    if isinstance(output, Mapping):
        named = next((output[n] for n in _RESULTS if output.get(n) is not None), None)
        if named is not None:
            return named
        output = list(output.values())
    leaves = compat.pytree().tree_leaves(output)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf
    raise RunError("The model gives no tensor of floating-point numbers to compare.")


def far(a: Any, b: Any) -> bool:
    """Tell whether two results differ by more than rounding in another order could make of them."""
    import torch

    share = {torch.float32: 1e-3, torch.float64: 1e-6}.get(a.dtype, 0.1)
    if a.shape != b.shape or not bool(torch.isfinite(a).equal(torch.isfinite(b))):
        return True
    apart = (a.double() - b.double()).nan_to_num().abs().max()
    return bool(apart > share * b.double().nan_to_num().abs().max().clamp_min(1e-30))
