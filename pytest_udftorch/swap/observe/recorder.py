# SPDX-License-Identifier: Apache-2.0
"""Record every operator of a run, below autograd: digests always, values of a few on request."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, Self

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.source_line import ForwardCalls, source_line
from pytest_udftorch.base.tensor_contents import is_plain, sizes
from pytest_udftorch.swap.observe.digests import (
    NO_ROWS,
    XXH3,
    TensorNote,
    array_of,
    fastest,
    note_of,
    row_axis,
    row_slice,
    sample_places,
    seed_of,
    xxh3,
)
from pytest_udftorch.swap.observe.layers import Place
from pytest_udftorch.swap.observe.native_recorder import load_recorder, xxh3_address
from pytest_udftorch.swap.observe.recording import (
    Effects,
    draws,
    effects,
    given,
    leaves_of,
    results,
    strided_copy,
)
from pytest_udftorch.swap.operators.overload import is_view, name_of, says_numbers
from pytest_udftorch.swap.operators.rows import find

#: Of the names of calls that are no operators: generated kernels, and whole graphs.
KERNELS: Final = "inductor::"


class Stopped(BaseException):
    """Ends a run after the last operator whose values were asked for."""


class Call(NamedTuple):
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
        operator: the overload, or the name of a kernel that a compiler generated.
        args: as they were before the call, copied.
        kwargs: likewise.
        outputs: as in :class:`Call`, copied.
        source: the line that calls it; see :func:`.source_line.source_line`. Empty if unknown.
        forward: in a backward pass, the operator whose gradient it computes, and the line that
            calls that one; empty if unknown.
    """

    operator: Any
    args: Any
    kwargs: Any
    outputs: list[Any]
    source: str = ""
    forward: str = ""


@dataclass
class Recording:
    """A run.

    Attributes:
        calls: every call of an operator in order, views left out.
        result: name -> what the run gives: outputs, and what training leaves in parameters.
        kept: position -> the call with its values.
        values: name -> the tensor, of what the run gives; empty unless asked for.
        hashed: the kind of the digests.
        failing: operators that failed, each with its place and the number of calls before it.
        failed: why and where the run ended early; empty if it did not.
    """

    calls: list[Call] = field(default_factory=list)
    result: dict[str, TensorNote] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    hashed: str = field(default_factory=fastest)
    failing: list[tuple[str, Place, int]] = field(default_factory=list)
    failed: str = ""


@dataclass(frozen=True)
class Wanted:
    """What a run is asked for beside digests.

    Attributes:
        keep: positions of calls whose values are kept.
        put: position -> tensors that take the place of the call's outputs.
        stop: whether the run may end after the last of ``keep``.
        traced: whether the forward operators are wanted whose gradients the kept calls compute.
    """

    keep: frozenset[int] = frozenset()
    put: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    stop: bool = False
    traced: bool = False


class _State(NamedTuple):
    """What changes when a tensor is written to, or given other memory."""

    storage: int
    writes: int
    version: int


class _Digests:
    """Notes of tensors; one that nobody wrote to is read once."""

    def __init__(self, batch: tuple[int, int] | None, hashed: str, by_value: bool) -> None:
        self._how = batch, hashed, by_value
        self._known: dict[int, tuple[weakref.ref[Any], _State, bool, TensorNote]] = {}
        self._writes: dict[int, int] = {}  # storage -> writes seen
        self._count = compat.write_counter()

    def _state(self, tensor: Any) -> _State:
        address = tensor.untyped_storage().data_ptr()
        count = -1 if tensor.is_inference() else self._count(tensor)
        return _State(address, self._writes.get(address, 0), count)

    def note(self, tensor: Any, written: bool = False) -> TensorNote:
        """Describe a tensor.

        Args:
            tensor: an argument or a result.
            written: whether the running operator wrote into it. torch counts that when the operator
                has returned, so the count may be one more when the tensor is seen next.
        """
        if not is_plain(tensor):
            return note_of(tensor, *self._how)
        state = self._state(tensor)
        key = id(tensor)
        known = self._known.get(key)
        if known is not None and known[0]() is tensor:
            own, late, found = known[1:]
            if own == state:
                return found
            if late and state == (own.storage, own.writes, own.version + 1):
                self._known[key] = (known[0], state, False, found)
                return found
        found = note_of(tensor, *self._how)
        gone = self._known
        reference = weakref.ref(tensor, lambda _: gone.pop(key, None))
        self._known[key] = (reference, state, written, found)
        return found

    def forget(self) -> None:
        """Read every tensor anew: operators ran that were not seen here."""
        self._known.clear()

    def wrote(self, tensor: Any) -> None:
        if not is_plain(tensor):
            return
        address = tensor.untyped_storage().data_ptr()
        self._writes[address] = self._writes.get(address, 0) + 1


def put_into(target: Any, value: Any, batch: tuple[int, int] | None) -> None:
    """Write a value of the other side into an output, in its dtype and on its device.

    Where one side runs a row of the batch, the row is taken from the value or written into it.
    """
    axis = row_axis(sizes(target), sizes(value))
    if axis is not None and batch is not None:
        length = max(target.shape[axis], value.shape[axis])
        part = row_slice(axis, length, batch)
        if value.shape[axis] == length:
            value = value[part]
        else:
            target = target[part]
    target.copy_(value)


class _Operator(NamedTuple):
    """What is to be known of an overload at each of its calls.

    Attributes:
        name: ``aten::add.Tensor``.
        silent: whether it is not recorded.
        resizes: whether a silent one gives its first argument other memory.
        effects: where its results lie.
        draws: whether it may draw random numbers.
    """

    name: str
    silent: bool
    resizes: bool
    effects: Effects
    draws: bool


@functools.cache
def _known(func: Any) -> _Operator:
    import torch

    row = find(name_of(func))
    silent = is_view(func) or not says_numbers(func)
    random = torch.Tag.nondeterministic_seeded in func.tags
    return _Operator(
        str(func.name()), silent, row is not None and row.resizes, effects(func), random
    )


class Where(Protocol):
    """Knows which layer runs: :class:`Whereabouts`, or what watches compiled code."""

    def now(self) -> Place:
        """Return where the operator that is being called belongs."""

    def tell(self, listener: Any) -> None:
        """Tell a recorder in C++ from now on which layer runs."""

    def place(self, layer: int, phase: int, step: int) -> Place:
        """Return the place that such a recorder knows by numbers."""


def recorder(
    where: Where,
    wanted: Wanted,
    batch: tuple[int, int] | None,
    hashed: str | None = None,
    native: bool = True,
    by_value: bool = False,
) -> Any:
    """Return a mode that records the operators called inside it in its ``recording``.

    Args:
        where: tells the layer.
        wanted: values to keep or to put in.
        batch: the size of the batch, and the row whose digests are also wanted.
        hashed: the kind of digests; by default the fastest.
        native: whether to let the recorder in C++ see most calls, where there is one. It makes the
            same objects.
        by_value: whether equal numbers of two types have one digest.
    """
    import torch

    last = max(wanted.keep, default=-1)
    kind = hashed or fastest()
    Tensor, Parameter = torch.Tensor, torch.nn.Parameter
    unsaid = (torch.Generator, torch.device)
    # It knows neither rows of a batch nor SHA-1.
    quick = native and not by_value and kind == XXH3 and batch is None
    # Nor does it see the lines that make the nodes of a gradient.
    helper = load_recorder() if quick and not wanted.traced else None

    class Recorder(OperatorWatch):
        def __init__(self) -> None:
            self.recording = Recording(hashed=kind)
            self.digests = _Digests(batch, kind, by_value)
            self.forward = ForwardCalls()
            self.helped = False

        def __enter__(self) -> Self:
            super().__enter__()
            if helper is not None:
                parts = _parts(self.recording, self.digests, where)
                kept = wanted.keep | wanted.put.keys()
                self.helped = helper.start(self._modes[-1], parts, kept, xxh3_address())
                where.tell(helper if self.helped else None)
            return self

        def __exit__(self, *exception: Any) -> None:
            failed = None
            if self.helped and helper is not None:
                self.helped = False
                where.tell(None)
                failed = helper.stop()
            super().__exit__(*exception)
            if failed is not None:
                raise failed

        def noted(self, tensors: Mapping[str, Any]) -> dict[str, TensorNote]:
            """Return the notes of what the run gives that are known here; inside the mode."""
            if not self.helped or helper is None:
                return {}
            plain = {n: t for n, t in tensors.items() if type(t) in (Tensor, Parameter)}
            return {n: helper.note(t) for n, t in plain.items()}

        def call(self, func: Any, args: Any, kwargs: Any) -> Any:
            place = where.now()
            known = _known(func)
            if known.silent:
                returned = self._ran(place, func, known, args, kwargs)
                if known.resizes:
                    self.digests.wrote(args[0])
                return returned
            return self._recorded(place, func, known, args, kwargs)

        def _ran(self, place: Place, func: Any, known: _Operator, args: Any, kwargs: Any) -> Any:
            """Run an operator; if it fails, say so. Whoever called it may go on."""
            try:
                return func(*args, **kwargs)
            except Exception:
                failing = known.name, place, len(self.recording.calls)
                self.recording.failing.append(failing)
                raise

        def _recorded(
            self, place: Place, func: Any, known: _Operator, args: Any, kwargs: Any
        ) -> Any:
            at = len(self.recording.calls)
            if wanted.traced and torch.is_grad_enabled():
                self.forward.note(func)
            inputs, text = self._inputs(func, args, kwargs)
            random = _generator_state(func, args, kwargs) if known.draws else None
            kept = None
            if at in wanted.keep:
                kept = compat.pytree().tree_map(strided_copy, (args, kwargs))
            returned = self._ran(place, func, known, args, kwargs)
            outputs = results(func, args, kwargs, returned)
            written = set()
            for tensor in leaves_of([p.of(args, kwargs) for p in known.effects.written]):
                if isinstance(tensor, Tensor):
                    self.digests.wrote(tensor)
                    written.add(id(tensor))
            if kept is not None:
                copies = [strided_copy(t) for t in outputs]
                made = self.forward.running() if place.phase == "backward" else ""
                own = Kept(func, kept[0], kept[1], copies, source_line(), made)
                self.recording.kept[at] = own
            if at in wanted.put:
                for target, value in zip(outputs, wanted.put[at], strict=True):
                    put_into(target, value, batch)
                    self.digests.wrote(target)
            notes = tuple([self.digests.note(t, id(t) in written) for t in outputs])
            self.recording.calls.append(Call(known.name, place, inputs, notes, text, random))
            if wanted.stop and at == last:
                raise Stopped
            return returned

        def _inputs(self, func: Any, args: Any, kwargs: Any) -> tuple[tuple[TensorNote, ...], str]:
            read = [v for v in given(func, args, kwargs) if isinstance(v, Tensor)]
            shown = [
                repr(v)
                for v in leaves_of((*args, *kwargs.values()))
                if not isinstance(v, (Tensor, *unsaid))
            ]
            return tuple([self.digests.note(t) for t in read]), ", ".join(shown)

    return Recorder()


def _parts(recording: Recording, digests: _Digests, where: Where) -> tuple[Any, ...]:
    """Return what the recorder in C++ asks for; see ``udfrecorder_start``."""
    return (
        recording.calls, Call, TensorNote, _described, xxh3(), seed_of, _places, digests.forget,
        where.place, NO_ROWS, recording.failing,
    )  # fmt: skip


@functools.cache
def _described(name: str) -> tuple[Any, ...]:
    """Return the parts of an :class:`_Operator` as the recorder in C++ reads them."""
    known = _known(overload_of(name))
    written, overwritten = (
        tuple(place.position for place in places)
        for places in (known.effects.written, known.effects.overwritten)
    )
    fresh = tuple(map(int, known.effects.fresh))
    return known.name, known.silent, known.resizes, known.draws, written, overwritten, fresh


def _places(count: int) -> bytes:
    """Return the positions of samples as 64-bit integers."""
    return bytes(sample_places((count,)).astype("int64").tobytes())


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
