# SPDX-License-Identifier: Apache-2.0
"""Record every operator of a run, below autograd: digests always, values of a few on request."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_udftorch import compat
from pytest_udftorch.diff.digests import TensorNote, array_of, note_of, row_axis, row_slice
from pytest_udftorch.diff.layers import Place, Whereabouts
from pytest_udftorch.reach.definitions import is_view, name_of
from pytest_udftorch.reach.recording import draws, effects, results, strided_copy

#: Operators whose results hold whatever lay in memory, or that say nothing about numbers.
WITHOUT_VALUES: Final = frozenset(
    {
        "_record_function_enter_new", "_record_function_exit", "empty", "empty_like",
        "empty_permuted", "empty_strided", "is_same_size", "new_empty", "new_empty_strided",
        "record_stream", "resize_", "set_",
    }
)  # fmt: skip


class Stopped(BaseException):
    """Ends a run after the last operator whose values were asked for."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes:
        operator: the overload (``aten::add.Tensor``).
        place: layer, phase and step.
        inputs: its tensors before the call; those that it only overwrites are left out.
        outputs: the tensors that it made, then those that it wrote into.
        arguments: everything else that it got, as text.
        random: a digest of the generator's state if it draws random numbers.
    """

    operator: str
    place: Place
    inputs: tuple[TensorNote, ...]
    outputs: tuple[TensorNote, ...]
    arguments: str
    random: bytes | None = None


@dataclass
class Kept:
    """A call with its values.

    Attributes:
        operator: the overload.
        args: as they were before the call, copied.
        kwargs: likewise.
        outputs: as in :class:`Call`, copied.
    """

    operator: Any
    args: Any
    kwargs: Any
    outputs: list[Any]


@dataclass
class Recording:
    """A run.

    Attributes:
        calls: every call of an operator in order, views left out.
        result: name -> what the run gives: outputs, and what training leaves in parameters.
        kept: position -> the call with its values.
        values: name -> the tensor, of what the run gives; empty unless asked for.
    """

    calls: list[Call] = field(default_factory=list)
    result: dict[str, TensorNote] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """What a run is asked for beside digests.

    Attributes:
        keep: positions of calls whose values are kept.
        put: position -> tensors that take the place of the call's outputs.
        stop: whether the run may end after the last of ``keep``.
    """

    keep: frozenset[int] = frozenset()
    put: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    stop: bool = False


class _Digests:
    """Notes of tensors; one that nobody wrote to is read once."""

    def __init__(self, batch: tuple[int, int] | None) -> None:
        self._batch = batch
        self._known: dict[int, tuple[weakref.ref[Any], tuple[int, int, int], TensorNote]] = {}
        self._writes: dict[int, int] = {}  # storage -> writes seen

    def _state(self, tensor: Any) -> tuple[int, int, int]:
        address = tensor.untyped_storage().data_ptr()
        count = -1 if tensor.is_inference() else compat.write_count(tensor)
        return address, self._writes.get(address, 0), count

    def note(self, tensor: Any) -> TensorNote:
        try:
            state = self._state(tensor)
        except (RuntimeError, NotImplementedError):  # sparse tensors have no storage
            return note_of(tensor, self._batch)
        key = id(tensor)
        known = self._known.get(key)
        if known is not None and known[0]() is tensor and known[1] == state:
            return known[2]
        found = note_of(tensor, self._batch)
        gone = self._known
        self._known[key] = (weakref.ref(tensor, lambda _: gone.pop(key, None)), state, found)
        return found

    def wrote(self, tensor: Any) -> None:
        try:
            address = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            return
        self._writes[address] = self._writes.get(address, 0) + 1


def put_into(target: Any, value: Any, batch: tuple[int, int] | None) -> None:
    """Write a value of the other side into an output, in its dtype and on its device.

    Where one side runs a row of the batch, the row is taken from the value or written into it.
    """
    axis = row_axis(tuple(target.shape), tuple(value.shape))
    if axis is not None and batch is not None:
        length = max(target.shape[axis], value.shape[axis])
        part = row_slice(axis, length, batch)
        if value.shape[axis] == length:
            value = value[part]
        else:
            target = target[part]
    target.copy_(value)


def recorder(where: Whereabouts, wanted: Wanted, batch: tuple[int, int] | None) -> Any:
    """Return a mode that records the operators called inside it in its ``recording``."""
    import torch

    last = max(wanted.keep, default=-1)
    leaves = compat.pytree().tree_leaves

    class Recorder(compat.dispatch_mode()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.recording = Recording()
            self.digests = _Digests(batch)

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            place = where.now()
            if is_view(func) or name_of(func) in WITHOUT_VALUES:
                returned = func(*args, **kwargs)
                if name_of(func) in ("resize_", "set_"):
                    self.digests.wrote(args[0])
                return returned
            return self._recorded(place, func, args, kwargs)

        def _recorded(self, place: Place, func: Any, args: Any, kwargs: Any) -> Any:
            at = len(self.recording.calls)
            inputs, text = self._inputs(func, args, kwargs)
            random = _generator_state(func, args, kwargs)
            kept = None
            if at in wanted.keep:
                kept = compat.pytree().tree_map(strided_copy, (args, kwargs))
            returned = func(*args, **kwargs)
            outputs = results(func, args, kwargs, returned)
            written = [p.of(args, kwargs) for p in effects(func).written]
            for tensor in leaves(written):
                if isinstance(tensor, torch.Tensor):
                    self.digests.wrote(tensor)
            if kept is not None:
                copies = [strided_copy(t) for t in outputs]
                self.recording.kept[at] = Kept(func, kept[0], kept[1], copies)
            if at in wanted.put:
                for target, value in zip(outputs, wanted.put[at], strict=True):
                    put_into(target, value, batch)
                    self.digests.wrote(target)
            notes = tuple(self.digests.note(t) for t in outputs)
            self.recording.calls.append(Call(str(func.name()), place, inputs, notes, text, random))
            if wanted.stop and at == last:
                raise Stopped
            return returned

        def _inputs(self, func: Any, args: Any, kwargs: Any) -> tuple[tuple[TensorNote, ...], str]:
            over = [p.of(args, kwargs) for p in effects(func).overwritten]
            hidden = {id(t) for t in leaves(over)}
            found, shown = [], []
            for value in leaves((args, kwargs)):
                if not isinstance(value, torch.Tensor):
                    if not isinstance(value, torch.Generator | torch.device):
                        shown.append(repr(value))
                elif id(value) not in hidden:
                    found.append(self.digests.note(value))
            return tuple(found), ", ".join(shown)

    return Recorder()


def overload_of(name: str) -> Any:
    """Return ``torch.ops.aten.add.Tensor`` of ``aten::add.Tensor``, None if there is none."""
    import torch

    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None)


def _generator_state(func: Any, args: Any, kwargs: Any) -> bytes | None:
    """Return a digest of the state that a call draws random numbers from, None if it draws none."""
    import torch

    if not draws(func, args, kwargs):
        return None
    values = compat.pytree().tree_leaves((args, kwargs))
    own = next((v for v in values if isinstance(v, torch.Generator)), None)
    if own is not None:
        state = own.get_state()
    elif any(isinstance(v, torch.Tensor) and v.is_cuda for v in values):
        state = torch.cuda.get_rng_state()
    else:
        state = torch.get_rng_state()
    return hashlib.sha1(array_of(state).tobytes(), usedforsecurity=False).digest()
