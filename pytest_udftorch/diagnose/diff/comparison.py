# SPDX-License-Identifier: Apache-2.0
"""Find the first operator that makes two runs differ, and prove it.

Each side runs with digests alone. Where the runs part, both run again for the values of that one
operator, and b's run gets a's output in its place: what still differs has another cause, which is
looked for in the same way. So no more than one operator's values are kept beside a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytest_udftorch.base import compat
from pytest_udftorch.base.tensor_contents import sizes
from pytest_udftorch.diagnose.diff.alignment import (
    Gap,
    Parting,
    aligned,
    differing,
    parting,
    same_outputs,
    same_result,
)
from pytest_udftorch.diagnose.diff.compiler_bisection import Budget, Compiled
from pytest_udftorch.diagnose.diff.graph import graph_of
from pytest_udftorch.diagnose.diff.record import digests_of, execute
from pytest_udftorch.diagnose.diff.record_comparison import BesideRecord, unlike
from pytest_udftorch.diagnose.diff.result import Difference, Finding, LayerDistance, Proof
from pytest_udftorch.diagnose.runs import record_file
from pytest_udftorch.diagnose.runs.other_process import Subject
from pytest_udftorch.diagnose.runs.sides import Side, side
from pytest_udftorch.diagnose.runs.work import Work, work_of
from pytest_udftorch.errors import DiagnosisError, RunError
from pytest_udftorch.prove.judge.truth import Apart, Truth, apart, judged
from pytest_udftorch.swap.observe.digests import (
    TensorNote,
    distance,
    row_axis,
    row_slice,
    same_bits,
)
from pytest_udftorch.swap.observe.recorder import Kept, Recording, Wanted

Pairs = Sequence[tuple[int, int] | Gap]


# Each option of a comparison is a parameter.
def first_difference(  # noqa: PLR0913
    a: Side | str | Callable[[], Any],
    b: Side | str | Callable[[], Any],
    model: Any = None,
    inputs: Any = (),
    *,
    make: Callable[[], Any] | str | None = None,
    train: bool | None = None,
    steps: int = 1,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
    causes: int = 3,
    seconds: float | None = None,
    tell: Callable[[str], None] | None = None,
) -> Difference:
    """Find the first operator that makes two runs differ, and prove it.

    Args:
        a: one side: ``"eager"``, ``"library=corem"``, ``"threads=1"``, ``"compiled"`` and so on,
            see :func:`.sides.side`; a :class:`Side`; or a callable, which is the run
            of this side.
        b: the other side.
        model: a module or a callable; it is copied for every run and left as it is.
        inputs: its positional arguments, a dictionary of keyword arguments, or one tensor.
        make: instead of model and inputs: returns them, or a callable that is the run. It is called
            before each run, after all generators are seeded. As a text, ``model.py:make`` or a
            script, it can also run in another process.
        train: whether loss, backward pass and a step of the optimizer follow the forward pass; by
            default if the model is in training mode.
        steps: of training, or forward passes.
        loss: makes a number of what the model gives; by default the sum of the means of squares.
        optimizer: makes an optimizer of a list of parameters; by default AdamW.
        seed: of the random numbers of torch, Python and NumPy.
        causes: how many independent causes are looked for, at most.
        seconds: of the search of a compiled side, at most; by default as long as it takes. What
            was found until then is returned.
        tell: gets a line before each run of compiled code: which it is, and the best answer so
            far. With it, Ctrl-C ends such a search, and what was found is returned.

    Raises:
        DiagnosisError: a side means nothing, or the two cannot be compared; a recorded side cannot
            be read, or was made with other seeds or steps.
        RunError: a run fails, cannot be repeated, or calls no operator.
        UdfError: as from opening sessions of the sides' libraries.
    """
    first, second = side(a), side(b)
    if first.name == second.name:
        first, second = (
            replace(first, name=f"a: {first.name}"),
            replace(second, name=f"b: {second.name}"),
        )
    if make is None and model is not None:
        make = work_of(model, inputs)
    if isinstance(make, str):
        make = Subject(make)
    if make is None and not all(s.own or s.record is not None for s in (first, second)):
        raise DiagnosisError(
            "There is nothing to run. Give a model and its inputs, make=, or two callables."
        )
    work = Work(make or (lambda: None), seed, train, steps, loss, optimizer)
    work = replace(work, batch=_batch(work, first, second), hashed=digests_of(first, second))
    if work.batch is not None:
        work = replace(work, train=False)
    if first.dtype != second.dtype and not any(s.record or s.elsewhere for s in (first, second)):
        work = replace(work, by_value=True)
    _check_pair(work, first, second)
    if any(s.compiled or _is_compiled_record(s) for s in (first, second)):
        if not _show_kernels(first, second):
            _check_ended(first, second)
            return _compiled(work, first, second, Budget(seconds, tell, keeps=tell is not None))
        causes = 1
    return _Search(work, first, second, causes).difference()


def _check_pair(work: Work, a: Side, b: Side) -> None:
    """Refuse pairs of which one side cannot give what the other needs."""
    for one, other in ((a, b), (b, a)):
        if one.record is None and not one.elsewhere:
            continue
        kind = "a record" if one.record is not None else "a run of another process"
        if work.batch is not None:
            raise DiagnosisError(
                f"{one.name!r} is {kind}, which keeps digests of whole tensors, so no row of a "
                "batch can be compared with it. Compare two sides of this process."
            )
        if one.compiled or (other.compiled and one.record is None):
            raise DiagnosisError(
                f"{one.name!r} is {kind}, which knows operators; nothing sees those of compiled "
                "code. Compare it with an eager side."
            )


def _is_compiled_record(one: Side) -> bool:
    from pytest_udftorch.diagnose.diff.kernels import of_compiled

    return one.record is not None and of_compiled(record_file.load(one.record).recording)


def _check_ended(a: Side, b: Side) -> None:
    """Refuse records of runs that failed where only results can be compared."""
    for one in (a, b):
        if one.record is not None and record_file.load(one.record).recording.failed:
            raise DiagnosisError(
                f"{one.name!r} is a record of a run that failed, so it has no results, and the "
                "other side can be compared by nothing else. Compare it with an eager side, or "
                "record a run that ends."
            )


def _show_kernels(a: Side, b: Side) -> bool:
    """Tell whether kernels are seen on both sides: of one that is recorded, and not eager."""
    if a.record is None and b.record is None:
        return False
    return all(_is_compiled_record(s) or s.backend == "inductor" for s in (a, b))


def _compiled(work: Work, a: Side, b: Side, budget: Budget) -> Difference:
    """Compare results, as nothing else is seen of compiled code."""
    search = Compiled(work, a, b, budget)
    try:
        return _by_results(search, a, b)
    finally:
        search.close()


def _by_results(search: Compiled, a: Side, b: Side) -> Difference:
    whole = Difference(
        a.name,
        b.name,
        repeatable={a.name: True, b.name: True},
        calls=(len(search.a.calls), len(search.b.calls)),
        results=_apart(search.a, search.b),
        unread=_unread(search.a, search.b),
        sides=(a, b),
    )
    unrepeatable = search.unrepeatable()
    if unrepeatable is not None:
        found = Finding("result", note="Its results differ in bits.")
        return replace(whole, findings=(found,), repeatable={unrepeatable: False})
    if same_result(search.a, search.b):
        return whole
    if not (a.compiled or b.compiled):
        note = "One of them is a record of compiled code, in which nothing can be switched off. "
        note += "Compare with the compiled side itself to find what in the compiler does it."
        return replace(whole, findings=(Finding("compiled", note=note),))
    return replace(whole, findings=(Finding("compiled"),), compiled=search.bisected())


def _apart(a: Recording, b: Recording) -> dict[str, float | None]:
    """Return the distances of results that differ, by name."""
    return {
        name: distance(note, b.result[name])
        for name, note in a.result.items()
        if name in b.result and not same_bits(note, b.result[name])
    }


def _unread(a: Recording, b: Recording) -> tuple[str, ...]:
    """Return the tensors at whose numbers nobody could look, in the order of the runs.

    Two calls of one operator in one place give one line.
    """
    found: dict[str, None] = {}
    for one in (a, b):
        for call in one.calls:
            for notes, does in ((call.inputs, "gets"), (call.outputs, "gives")):
                for note in notes:
                    if note.unread:
                        found[f"{_tensor(note)} that {call.operator} in {call.place} {does}"] = None
        for name, note in one.result.items():
            if note.unread:
                found[f"{_tensor(note)}, the result {name}"] = None
    return tuple(found)


def _tensor(note: TensorNote) -> str:
    return f"a tensor of {list(note.shape)}, {note.dtype}"


def _batch(work: Work, a: Side, b: Side) -> tuple[int, int] | None:
    """Return the size of the batch and the row that one side runs alone."""
    import torch

    rows = {s.row for s in (a, b)}
    if rows == {None}:
        return None
    if None not in rows:
        raise DiagnosisError("Both sides run a row alone. Let one of them run the whole batch.")
    (row,) = rows - {None}
    if work.train:
        raise DiagnosisError(
            "A row cannot be trained alone: the loss of the batch is made of all rows. Compare "
            "forward passes (train=False)."
        )
    made = next((s.make for s in (a, b) if s.row is not None and s.make), work.make)()
    inputs = made[1] if isinstance(made, tuple | list) and len(made) == 2 else None
    tensors = [
        t for t in compat.pytree().tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.dim()
    ]
    lengths = {sizes(t)[0] for t in tensors}
    if len(lengths) != 1:
        raise DiagnosisError(
            f"The inputs have {sorted(lengths) or 'no'} rows, so no row of a batch can run alone. "
            "The first dimension of every tensor has to be that of the batch."
        )
    (size,) = lengths
    if row is None or row >= size:
        raise DiagnosisError(f"There is no row {row} in a batch of {size}.")
    return size, row


class _Search:
    """One comparison."""

    def __init__(self, work: Work, a: Side, b: Side, causes: int) -> None:
        self.work, self.a, self.b, self.causes = work, a, b, causes
        self.batch = work.batch is not None

    def difference(self) -> Difference:
        a = execute(self.work, self.a)
        if not a.calls and not a.result:
            raise RunError(
                f"The run of {self.a.name!r} calls no operator of torch and gives no tensor, so "
                "there is nothing to compare."
            )
        b = None
        unrepeatable: Difference | None = None
        if self.a.record is None:
            a, unrepeatable = self._repeated(a, self.a)
        else:
            b = execute(self.work, self.b)
            if self.b.record is None:
                b, unrepeatable = self._repeated(b, self.b)
        if unrepeatable is not None:
            return unrepeatable
        if b is None:
            b = execute(self.work, self.b)
        ended = _ended(self.a, a) + _ended(self.b, b)
        a, b = _until_the_end(a, b)
        pairs = aligned(a.calls, b.calls, shapes=not self.batch)
        found = parting(a, b, pairs, batch=self.batch)
        whole = Difference(
            self.a.name,
            self.b.name,
            repeatable={s.name: True for s in self._repeats()},
            calls=(len(a.calls), len(b.calls)),
            unaligned=_unaligned(a, b, pairs),
            unread=_unread(a, b),
            sides=(self.a, self.b),
        )
        if found is None:
            return replace(whole, findings=ended)
        changed = differing(a, b, pairs)
        whole = replace(
            whole,
            differ=len(changed),
            layers=_layers(a, b, pairs),
            results=_apart(a, b),
            graph=graph_of(a, b, pairs),
        )
        whole = self._explained(whole, a, b, pairs, found)
        return replace(whole, findings=(*whole.findings, *ended))

    def _repeats(self) -> list[Side]:
        """Return the side that runs twice, if one does: a record is what it is."""
        return [s for s in (self.a, self.b) if s.record is None][:1]

    def _repeated(self, recording: Recording, one: Side) -> tuple[Recording, Difference | None]:
        """Run a side again; return that run, and what differs from the first one, or None.

        A first run may make what the process keeps (a table in a cache), and later ones do not.
        """
        again = execute(self.work, one)
        pairs = aligned(recording.calls, again.calls)
        found = parting(recording, again, pairs)
        if found is None:
            return again, None
        return again, Difference(
            self.a.name,
            self.b.name,
            (_bare(recording, found),),
            {one.name: False},
            (len(recording.calls), len(again.calls)),
            len(differing(recording, again, pairs)),
            _unaligned(recording, again, pairs),
            _layers(recording, again, pairs),
            graph=graph_of(recording, again, pairs),
            sides=(one, one),
        )

    def _explained(
        self, whole: Difference, a: Recording, b: Recording, pairs: Pairs, found: Parting | None
    ) -> Difference:
        """Name one cause after the other, with the earlier ones taken out of b's run."""
        findings: list[Finding] = []
        more: bool | None = None
        put: dict[int, Sequence[Any]] = {}
        while found is not None and len(findings) < self.causes:
            if found.a is None or found.b is None or found.kind in ("inputs", "sequence"):
                findings.append(_bare(a, found))
                break
            if self.a.record is not None or self.b.record is not None:
                beside = BesideRecord(self.work, self.a, self.b)
                findings.append(beside.finding(a, b, pairs, found))
                more = not findings[0].alone
                break
            traced = a.calls[found.a].place.phase == "backward"
            only = Wanted(frozenset({found.a}), stop=True, traced=traced)
            once_more = execute(self.work, self.a, only)
            if not _same_until(found.a, a, once_more):
                return _differs(whole, self.a, a, once_more)
            kept = once_more.kept[found.a]
            put[found.b] = kept.outputs
            wanted = Wanted(frozenset({found.b}), dict(put))
            exchanged = execute(self.work, self.b, wanted)
            if not _same_until(found.b, b, exchanged):
                return _differs(whole, self.b, b, exchanged)
            other = exchanged.kept[found.b]
            left = aligned(a.calls, exchanged.calls, shapes=not self.batch)
            removed = len(differing(a, exchanged, left))
            # A script gives nothing but what its operators give.
            ends = same_result(a, exchanged) if a.result else not removed
            proof = Proof(len(differing(a, b, pairs)), removed, ends)
            if not findings:
                proof = self._made(proof, a, b, pairs, found, other)
            findings.append(self._finding(a, found, kept, other, proof))
            b, pairs = exchanged, left
            found = parting(a, b, pairs, batch=self.batch)
        more = found is not None if more is None else more
        return replace(whole, findings=tuple(findings), more=more)

    def _made(
        self, proof: Proof, a: Recording, b: Recording, pairs: Pairs, found: Parting, other: Kept
    ) -> Proof:
        """Put b's output into a's run as well."""
        assert found.a is not None
        with_b = execute(self.work, self.a, Wanted(put={found.a: other.outputs}))
        made = sum(
            same_outputs(with_b.calls[i], b.calls[j])
            for i, j in differing(a, b, pairs)
            if i < len(with_b.calls)
        )
        ends = same_result(with_b, b) if b.result else made == proof.before
        return replace(proof, made=made, makes_end=ends)

    def _finding(
        self, a: Recording, found: Parting, kept: Kept, other: Kept, proof: Proof
    ) -> Finding:
        assert found.a is not None
        call = a.calls[found.a]
        distances: list[Apart] = []
        truths: list[Truth | None] = []
        for index, (x, y) in enumerate(zip(kept.outputs, other.outputs, strict=True)):
            x, y, of_row = _same_rows(x, y, self.work.batch)
            one = apart(x, y, index)
            if not one.differ:
                continue
            distances.append(one)
            # A call with a row alone has inputs of its own.
            source = other if of_row else kept
            truths.append(judged(source, x, y, index) if found.kind == "operator" else None)
        return Finding(
            found.kind, call.operator, call.place, (found.a, found.b), tuple(distances),
            tuple(truths), proof, "", unlike(kept, other) if found.kind == "arguments" else (),
            kept, other,
        )  # fmt: skip


def _ended(one: Side, recording: Recording) -> tuple[Finding, ...]:
    """Return what there is to say of a record whose run failed."""
    if not recording.failed:
        return ()
    note = f"{one.name} is the part of a run that was done. {recording.failed}"
    return (Finding("sequence", note=note),)


def _until_the_end(a: Recording, b: Recording) -> tuple[Recording, Recording]:
    """Return as much of both as the shorter has whose run failed; such a run has no results."""
    counts = [len(one.calls) for one in (a, b) if one.failed]
    if not counts:
        return a, b
    first, second = (replace(one, calls=one.calls[: min(counts)], result={}) for one in (a, b))
    return first, second


def _bare(a: Recording, found: Parting) -> Finding:
    """Return a finding of which nothing is known but its place."""
    if found.a is None:
        return Finding(found.kind)
    call = a.calls[found.a]
    note = ""
    if found.kind == "inputs":
        note = "The sides begin from other numbers: parameters, inputs or constants differ."
    return Finding(found.kind, call.operator, call.place, (found.a, found.b), note=note)


def _same_until(at: int, before: Recording, after: Recording) -> bool:
    """Tell whether a side ran as before up to a call, and that call was kept."""
    return at in after.kept and all(
        same_outputs(x, y) for x, y in zip(before.calls[:at], after.calls[:at], strict=True)
    )


def _differs(whole: Difference, one: Side, before: Recording, again: Recording) -> Difference:
    """Report that a side differs from itself."""
    found = parting(before, again, aligned(before.calls, again.calls)) or Parting("result")
    return replace(whole, findings=(_bare(before, found),), repeatable={one.name: False})


def _same_rows(x: Any, y: Any, batch: tuple[int, int] | None) -> tuple[Any, Any, bool]:
    """Return what belongs to the same row on both sides, and whether y is that of a row alone."""
    axis = row_axis(sizes(x), sizes(y))
    if axis is None or batch is None:
        return x, y, False
    length = max(x.shape[axis], y.shape[axis])
    part = row_slice(axis, length, batch)
    return (x[part], y, True) if x.shape[axis] == length else (x, y[part], False)


def _unaligned(
    a: Recording, b: Recording, pairs: Pairs
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    return tuple(
        (
            tuple(f"{c.operator} in {c.place}" for c in a.calls[slice(*gap.a)]),
            tuple(f"{c.operator} in {c.place}" for c in b.calls[slice(*gap.b)]),
        )
        for gap in pairs
        if isinstance(gap, Gap)
    )


def _layers(a: Recording, b: Recording, pairs: Pairs) -> tuple[LayerDistance, ...]:
    """Return the layers in which something differs, in the order of the run."""
    counts: dict[str, tuple[int, int]] = {}
    distances: dict[str, float] = {}
    for pair in pairs:
        if isinstance(pair, Gap):
            continue
        one, other = a.calls[pair[0]], b.calls[pair[1]]
        layer, differs = one.place.layer, not same_outputs(one, other)
        differ, total = counts.get(layer, (0, 0))
        counts[layer] = differ + differs, total + 1
        if differs:
            far = [distance(x, y) for x, y in zip(one.outputs, other.outputs, strict=False)]
            known = [d for d in far if d is not None]
            if known:
                distances[layer] = max([distances.get(layer, 0.0), *known])
    return tuple(
        LayerDistance(layer, (differ, total), distances.get(layer))
        for layer, (differ, total) in counts.items()
        if differ
    )
