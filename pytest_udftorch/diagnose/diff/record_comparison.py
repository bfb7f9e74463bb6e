# SPDX-License-Identifier: Apache-2.0
"""What can be said of an operator where a side is a record: samples, or values if it has them.

The live side gives the operator's inputs, which are equal on both sides, so its true result is
known. The recorded side is held to it at the places of its samples, or everywhere if the record has
a window of values there. A record's outputs can be put into the live run, but not the other way
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_udftorch.base import compat
from pytest_udftorch.base.tensor_contents import sizes
from pytest_udftorch.diagnose.diff.alignment import (
    Gap,
    Parting,
    aligned,
    differing,
    same_outputs,
    same_result,
)
from pytest_udftorch.diagnose.diff.kernels import GRAPH, of_compiled
from pytest_udftorch.diagnose.diff.record import execute
from pytest_udftorch.diagnose.diff.result import Finding, Proof
from pytest_udftorch.diagnose.runs.sides import Side
from pytest_udftorch.diagnose.runs.work import Work
from pytest_udftorch.prove.judge.truth import Apart, Truth, apart, judged
from pytest_udftorch.swap.observe.digests import TensorNote, same_bits, sample_places
from pytest_udftorch.swap.observe.recorder import KERNELS, Kept, Recording, Wanted

Pairs = Sequence[tuple[int, int] | Gap]


class BesideRecord:
    """Judges a place of parting of which one side or both are records."""

    def __init__(self, work: Work, a: Side, b: Side) -> None:
        self._work, self._sides = work, (a, b)

    def finding(self, a: Recording, b: Recording, pairs: Pairs, found: Parting) -> Finding:
        """Return what is known of the call at which the runs part."""
        assert found.a is not None
        assert found.b is not None
        at = (found.a, found.b)
        calls = a.calls[found.a], b.calls[found.b]
        is_compiled = of_compiled(a) or of_compiled(b)
        # A compiled side that runs again is compiled again; without the other's values that is
        # for nothing.
        has_values = any(
            one.record is not None and position in recording.kept
            for one, recording, position in zip(self._sides, (a, b), at, strict=True)
        )
        kept: list[Kept | None] = [
            self._kept(one, recording, position) if has_values or not is_compiled else None
            for one, recording, position in zip(self._sides, (a, b), at, strict=True)
        ]
        distances: list[Apart] = []
        truths: list[Truth | None] = []
        for index, notes in enumerate(zip(calls[0].outputs, calls[1].outputs, strict=False)):
            if same_bits(*notes):
                continue
            one, truth = _compared(notes, kept, index)
            if one is not None:
                distances.append(one)
                truths.append(truth if found.kind == "operator" else None)
        note = ""
        missing = [
            f"--full {p}:{p + 1}" for p, k in zip(at, kept, strict=True) if k is None
        ]  # fmt: skip
        if is_compiled:
            note = _kernel_note(calls[0].operator, calls[0].arguments)
            if missing and calls[0].operator != GRAPH:
                again = " and ".join(dict.fromkeys(missing))
                note += f" Recorded again with {again}, it has the values of this call."
        elif missing:
            note = (
                "A record keeps 16 samples of each tensor. Recorded again with "
                f"{' and '.join(dict.fromkeys(missing))}, it has this operator's values and can "
                "prove it."
            )
        return Finding(
            found.kind, calls[0].operator, calls[0].place, at, tuple(distances), tuple(truths),
            self._proof(a, b, pairs, found, kept), note,
            unlike(*kept) if found.kind == "arguments" else (), kept[0], kept[1],
        )  # fmt: skip

    def _kept(self, one: Side, recording: Recording, at: int) -> Kept | None:
        if one.record is not None:
            return recording.kept.get(at)
        wanted = Wanted(frozenset({at}), stop=not one.compiled)
        return execute(self._work, one, wanted).kept.get(at)

    def _proof(
        self, a: Recording, b: Recording, pairs: Pairs, found: Parting,
        kept: Sequence[Kept | None],
    ) -> Proof | None:  # fmt: skip
        """Put the outputs that a record has into the run of the live side."""
        assert found.a is not None
        assert found.b is not None
        first, second = kept
        before = len(differing(a, b, pairs))
        if self._sides[1].record is None and first is not None:
            put = Wanted(put={found.b: first.outputs})
            exchanged = execute(self._work, self._sides[1], put)
            removed = len(differing(a, exchanged, aligned(a.calls, exchanged.calls)))
            ends = same_result(a, exchanged) if a.result else not removed
            return Proof(before, removed, ends)
        if self._sides[0].record is None and second is not None:
            exchanged = execute(self._work, self._sides[0], Wanted(put={found.a: second.outputs}))
            made = sum(
                same_outputs(exchanged.calls[i], b.calls[j])
                for i, j in differing(a, b, pairs)
                if i < len(exchanged.calls)
            )
            ends = same_result(exchanged, b) if b.result else made == before
            return Proof(before, None, None, made, ends)
        return None


def unlike(a: Kept | None, b: Kept | None) -> tuple[tuple[str, str, str], ...]:
    """Return the arguments beside tensors that two calls of an operator give otherwise, by name."""
    if a is None or b is None or isinstance(a.operator, str):
        return ()
    first, second = _by_name(a), _by_name(b)
    return tuple(
        (name, repr(first[name]), repr(second[name]))
        for name in first
        if repr(first[name]) != repr(second[name])
    )


def _by_name(kept: Kept) -> dict[str, Any]:
    """Return what a call gives each parameter, with defaults; a tensor only as its shape."""
    import torch

    given = list(compat.overload_schema(kept.operator).arguments)
    values = {p.name: p.default_value if p.has_default_value() else None for p in given}
    values |= dict(zip((p.name for p in given), kept.args, strict=False)) | dict(kept.kwargs)
    return {
        name: compat.pytree().tree_map(
            lambda v: _Shape(sizes(v)) if isinstance(v, torch.Tensor) else v, value
        )
        for name, value in values.items()
        if not isinstance(value, torch.Generator | torch.device)
    }


class _Shape:
    """Stands for a tensor among arguments."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)

    def __repr__(self) -> str:
        return f"a tensor of {list(self._shape)}"


def _kernel_note(operator: str, text: str) -> str:
    """Say which graph a kernel is of, and what it computes."""
    graph, _, fused = text.partition(": ")
    if not operator.startswith(KERNELS):
        return "Compiled code calls this operator."
    return f"It is of {graph}" + (f", and computes {fused}." if fused else ".")


def _compared(
    notes: tuple[TensorNote, TensorNote], kept: Sequence[Kept | None], index: int
) -> tuple[Apart | None, Truth | None]:
    """Compare an output by its values if both sides have them, or else by its samples."""
    source = next((k for k in kept if k is not None), None)
    if kept[0] is not None and kept[1] is not None:
        x, y = kept[0].outputs[index], kept[1].outputs[index]
        return apart(x, y, index), judged(kept[0], x, y, index)
    if notes[0].shape != notes[1].shape or not notes[0].samples or not notes[1].samples:
        return None, None
    x, y = map(_samples, notes)
    if x is None or y is None:
        return None, None
    found = apart(x, y, index, of=notes[0].shape)
    if source is None:
        return found, None
    return found, judged(source, x, y, index, sample_places(notes[0].shape))


def _samples(note: TensorNote) -> Any:
    import torch

    dtype = getattr(torch, note.dtype, None)
    if not isinstance(dtype, torch.dtype):  # this torch does not have it
        return None
    return torch.tensor(note.samples, dtype=torch.float64).to(dtype)
