# SPDX-License-Identifier: Apache-2.0
"""What a comparison found, as text and as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from pytest_udftorch.base.result import Result
from pytest_udftorch.base.table import text_table
from pytest_udftorch.diagnose.diff.alignment import Kind
from pytest_udftorch.diagnose.diff.compiler_bisection import Bisection
from pytest_udftorch.diagnose.diff.graph import Node
from pytest_udftorch.diagnose.runs.sides import Side
from pytest_udftorch.prove.judge.truth import Apart, Error, Truth
from pytest_udftorch.swap.observe.layers import Place
from pytest_udftorch.swap.observe.recorder import Kept


@dataclass(frozen=True)
class Proof:
    """What becomes of the runs when one side's output is put into the other's run.

    Attributes:
        before: operators whose outputs differ.
        removed: operators that still differ when a's output is put into b's run; None if b is a
            record, into which nothing can be put.
        same_end: whether b's run then ends with a's bits; None likewise.
        made: operators whose outputs are b's when b's output is put into a's run, of those that
            differed; None if that was not tried.
        makes_end: whether a's run then ends with b's bits; None likewise.
    """

    before: int
    removed: int | None
    same_end: bool | None
    made: int | None = None
    makes_end: bool | None = None

    def sentence(self, a: str, b: str) -> str:
        """Return the proof as a sentence; ``a`` and ``b`` are the names of the sides."""
        if self.removed is None:
            return (
                f"With {b}'s output put into {a}'s run, {self.made:,} of {self.before:,} operators "
                f"give {b}'s bits" + (f", and the run ends with {b}'s." if self.makes_end else ".")
            )
        if self.same_end and not self.removed:
            end = f"With {a}'s output put into {b}'s run, nothing differs any more"
        else:
            end = (
                f"With {a}'s output put into {b}'s run, {self.removed:,} of {self.before:,} "
                "operators still differ, so it is not the only cause"
            )
        if self.makes_end is None:
            return f"{end}."
        if self.makes_end:
            return f"{end}; with {b}'s put into {a}'s run, that run ends with {b}'s bits."
        return (
            f"{end}; with {b}'s put into {a}'s run, {self.made:,} of {self.before:,} operators "
            f"give {b}'s bits."
        )


@dataclass(frozen=True, repr=False)
class Finding(Result):
    """A place at which the two runs part.

    Attributes:
        kind: see :class:`Parting`.
        operator: the overload; empty where no single operator is to be named.
        place: its layer, phase and step, or None.
        calls: its position among a's calls and among b's.
        apart: each output that differs.
        truth: for each of these, both sides beside the true result, or None.
        proof: what the exchange of its outputs shows, or None.
        note: one more sentence.
        arguments: of ``arguments``, each that differs: its name, and what a and b give, as text;
            empty where a side is a record without the values.
        kept: the call on a's side with its values; None where there is none.
        other: the call on b's side.
    """

    kind: Kind
    operator: str = ""
    place: Place | None = None
    calls: tuple[int | None, int | None] = (None, None)
    apart: tuple[Apart, ...] = ()
    truth: tuple[Truth | None, ...] = ()
    proof: Proof | None = None
    note: str = ""
    arguments: tuple[tuple[str, str, str], ...] = ()
    kept: Kept | None = field(default=None, repr=False, compare=False)
    other: Kept | None = field(default=None, repr=False, compare=False)

    @property
    def alone(self) -> bool:
        """Whether the proof shows that nothing else makes the runs differ."""
        proof = self.proof
        if proof is None:
            return False
        return bool(proof.makes_end if proof.removed is None else proof.same_end)

    @property
    def explained(self) -> bool | None:
        """Whether rounding explains both sides; None if that is not known."""
        known = [t.explained for t in self.truth if t is not None]
        if self.kind != "operator" or not known or None in known:
            return None
        return all(known)

    @property
    def sources(self) -> tuple[str, ...]:
        """The lines of code that call the operator: one, or that of each side if they differ."""
        known = [k.source for k in (self.kept, self.other) if k is not None and k.source]
        return tuple(dict.fromkeys(known))

    def text(self) -> str:
        """Return a paragraph in which the sides are called a and b."""
        return self.paragraph("a", "b")

    def paragraph(self, a: str, b: str) -> str:
        """Return a paragraph; ``a`` and ``b`` are the names of the sides."""
        lines = [_headline(self, a, b), *(f"  at {line}" for line in self.sources)]
        if self.kept is not None and self.kept.forward:
            lines.append(f"  in the gradient of {self.kept.forward}")
        for one, truth in zip(self.apart, self.truth, strict=True):
            lines += [f"  {line}" for line in _apart_lines(one, truth, self.kind, a, b)]
        if self.proof is not None:
            lines.append(f"  Proof: {self.proof.sentence(a, b)}")
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return everything but the tensors as plain data."""
        return {
            "kind": self.kind,
            "operator": self.operator,
            "place": _place(self.place),
            "calls": list(self.calls),
            "apart": [asdict(one) for one in self.apart],
            "truth": [
                None if t is None else {**asdict(t), "nearer": t.nearer, "explained": t.explained}
                for t in self.truth
            ],
            "explained": self.explained,
            "proof": None if self.proof is None else asdict(self.proof),
            "note": self.note,
            "arguments": [list(one) for one in self.arguments],
            "sources": list(self.sources),
            "forward": "" if self.kept is None else self.kept.forward,
        }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {"layer": place.layer, "phase": place.phase, "step": place.step}


def _headline(found: Finding, a: str, b: str) -> str:
    where = f"{found.operator} in {found.place}" if found.place is not None else ""
    sentences: dict[str, str] = {
        "operator": f"{where}: equal inputs, other outputs.",
        "arguments": f"{where}: equal tensors, other arguments"
        + (f": {_named(found.arguments, a, b)}." if found.arguments else "."),
        "random": f"{where}: the random numbers begin from other states of the generator.",
        "sequence": "The sides call other operators"
        + (f", and {where} is the first that gets other inputs from them." if where else "."),
        "inputs": f"{where}: its inputs differ already, and no operator before made them.",
        "result": "Every operator gives the same, but the results differ: something outside of "
        "torch's operators made them.",
        "compiled": "The results differ.",
    }
    return sentences[found.kind]


def _named(arguments: tuple[tuple[str, str, str], ...], a: str, b: str) -> str:
    """Return ``approximate='none' for a, 'tanh' for b``."""
    return "; ".join(f"{name}={x} for {a}, {y} for {b}" for name, x, y in arguments)


def _apart_lines(one: Apart, truth: Truth | None, kind: Kind, a: str, b: str) -> list[str]:
    place, first, second = one.worst
    ulp = "" if one.ulp is None else f"at most {one.ulp:,} ULP, "
    what = "sampled elements" if one.sampled else "elements"
    lines = [
        f"output {one.output}: {one.differ:,} of {one.elements:,} {what} differ, {ulp}"
        f"{one.relative:.2g} of its norm; at {list(place)}: {first:.9g} and {second:.9g}"
    ]
    if truth is None and kind != "operator":  # each side is right about what it was given
        return lines
    if truth is None:
        return [
            *lines,
            "who is nearer the truth: unknown, it draws random numbers or has no float64 form"
            + (", or its inputs were not kept" if one.sampled else ""),
        ]
    lines += [_error_line(a, truth.a, truth), _error_line(b, truth.b, truth)]
    return [*lines, f"{_nearer(truth, a, b)} ({truth.method}); {_judgement(truth, a, b)}"]


def _nearer(truth: Truth, a: str, b: str) -> str:
    """Say which side is nearer the truth, and by what; its worst element may say otherwise."""
    if truth.nearer == "both alike":
        return "both are alike near the truth"
    name, near, far = (a, truth.a, truth.b) if truth.nearer == "a" else (b, truth.b, truth.a)
    if truth.by_norm:
        worse = ", though its worst element is farther" if near.ulp > far.ulp else ""
        return f"{name} is nearer the truth by the norm of its error{worse}"
    return f"{name} is nearer the truth by its worst element"


def _error_line(name: str, error: Error, truth: Truth) -> str:
    return f"{name}: {error.ulp:.3g} ULP from the truth at worst, {error.relative:.2g} of its norm"


def _judgement(truth: Truth, a: str, b: str) -> str:
    if truth.explained is None:
        return "there is no bound to hold them to"
    if truth.explained and truth.cancels:
        left = -math.log2(max(truth.a.relative, truth.b.relative))
        return (
            f"rounding explains both ({truth.bound}), but numbers cancel inside: about "
            f"{max(left, 0):.0f} of {1 - math.log2(truth.eps):.0f} bits of the norm are left"
        )
    if truth.explained:
        return f"rounding explains both ({truth.bound})"
    guilty = [
        f"{name} ({e.beyond:,} elements beyond the bound, by up to {e.excess:.3g} times)"
        for name, e in ((a, truth.a), (b, truth.b))
        if e.beyond
    ]
    return f"rounding does not explain {' and '.join(guilty)}: {truth.bound}"


@dataclass(frozen=True)
class LayerDistance:
    """How far the sides lie apart in one layer, estimated from samples.

    Attributes:
        layer: its path.
        operators: how many of its operators differ, and how many it has.
        distance: the largest distance of an output, relative to its norm; 0 if the samples agree,
            None if no samples of the two sides belong to the same places.
    """

    layer: str
    operators: tuple[int, int]
    distance: float | None


def _far(one: LayerDistance) -> str:
    if one.distance is None:
        return "unknown"
    return f"{one.distance:.2g}" if one.distance else "not in the samples"


@dataclass(frozen=True, repr=False)
class Difference(Result):
    """What :func:`first_difference` found.

    Attributes:
        a: the name of the first side.
        b: of the second.
        findings: the places at which the runs part, the first one first. Each later one is found
            with the earlier ones' outputs exchanged.
        repeatable: side -> whether two runs of it gave the same bits; b only where it was run
            twice.
        calls: operators of a's run and of b's.
        differ: how many aligned operators differ.
        unaligned: calls that only one side has: operators of a and of b, with their places.
        layers: the layers with a difference, in the order of the run.
        results: name -> distance of what the runs give, where it differs.
        unread: what has numbers at which nobody could look, each in words.
        more: whether further causes were left, or could not be told apart.
        compiled: for a compiled side, what in the compiler makes the difference.
        graph: the operators of both runs, in order; empty where the sides are equal or compiled.
        sides: the two sides.
    """

    a: str
    b: str
    findings: tuple[Finding, ...] = ()
    repeatable: Mapping[str, bool] = field(default_factory=dict)
    calls: tuple[int, int] = (0, 0)
    differ: int = 0
    unaligned: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    layers: tuple[LayerDistance, ...] = ()
    results: Mapping[str, float | None] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    more: bool = False
    compiled: Bisection | None = None
    graph: tuple[Node, ...] = field(default=(), repr=False)
    sides: tuple[Side, Side] | None = field(default=None, repr=False, compare=False)

    @property
    def equal(self) -> bool:
        """Whether the two runs gave the same bits everywhere, and everything could be read."""
        return not self.findings and not self.unread

    @property
    def first(self) -> Finding | None:
        """The first place at which the runs part, or None."""
        return self.findings[0] if self.findings else None

    @property
    def explained(self) -> bool:
        """Whether rounding explains every difference, and everything could be read."""
        return not self.more and not self.unread and all(f.explained is True for f in self.findings)

    def text(self) -> str:
        """Return a report for a terminal."""
        return "\n".join([self._report(), *self._unread_lines()])

    def _report(self) -> str:
        if False in self.repeatable.values():
            return self._unrepeatable()
        if self.compiled is not None:
            names = ", ".join(self.results)
            head = f"{self.compiled.verdict(self.a, self.b)}\n"
            head += f"{self.a} and {self.b} give other results: {names}."
            return f"{head}\n{self.compiled.paragraph(self.a, self.b)}"
        counts = f"{self.calls[0]:,} operators of {self.a}, {self.calls[1]:,} of {self.b}"
        if not self.findings and self.unread:
            return f"{self.verdict()}\nWhat was read has the same bits: {counts}."
        if self.equal:
            if not all(self.calls):
                return f"{self.a} and {self.b} give the same results, bit for bit."
            return f"{self.a} and {self.b} give the same bits: {counts}."
        many = "1 operator" if self.differ == 1 else f"{self.differ:,} operators"
        head = f"{self.a} and {self.b} differ in {many} ({counts})."
        parts = [self.verdict(), head, *(f.paragraph(self.a, self.b) for f in self.findings)]
        if self.more and not self._follows():
            recorded = any(one.record is not None for one in self.sides or ())
            parts.append(
                "What differs behind it may have further causes: no output of another run can be "
                "put into a record."
                if recorded
                else "There are further causes; ask for more with causes=."
            )
        parts += self._gaps()
        if self.layers:
            parts.append(self._table())
        return "\n".join(parts)

    def verdict(self) -> str:
        """Return the answer in a line: is it rounding, where does it begin, how far does it go?"""
        first = self.first
        if first is None and self.unread:
            return f"Not known to be equal: {self._hidden()}, and what was read has the same bits."
        if first is None:
            return f"Equal: {self.a} and {self.b} give the same bits."
        if False in self.repeatable.values():
            return self._unrepeatable().partition("\n")[0]
        said = self._parting(first)
        return f"{said[:-1]}; {self._hidden()}." if self.unread else said

    def _hidden(self) -> str:
        many = len(self.unread)
        return (
            "one tensor could not be read" if many == 1 else f"{many:,} tensors could not be read"
        )

    def _unread_lines(self) -> list[str]:
        rest = len(self.unread) - 5
        more = [f"Not read: {rest:,} more."] if rest > 0 else []
        return [*(f"Not read: {one}." for one in self.unread[:5]), *more]

    def _parting(self, first: Finding) -> str:
        """Return where the runs part, whether that is rounding, and how far it goes."""
        where = f"{first.operator} in {first.place}" if first.place is not None else ""
        kinds = {
            "arguments": f"Other arguments of {where}",
            "random": f"Other random numbers: {where} begins from another state of the generator",
            "inputs": f"Other inputs: the sides begin from other numbers, and {where} gets them",
            "sequence": "Other operators: "
            + (self._gap(*self.unaligned[0]) if self.unaligned else first.note).rstrip("."),
            "result": "Other results, though every operator gives the same",
            "compiled": "Other results of compiled code",
        }
        if first.kind == "arguments" and first.arguments:
            kinds["arguments"] += f" ({_named(first.arguments, self.a, self.b)})"
        said = kinds.get(first.kind) or f"{self._kind()}: {self._causes()} {where}"
        far = max((d for d in self.results.values() if d is not None), default=0.0)
        if far:
            return f"{said}; the results differ by {far:.2g} of their norm."
        return f"{said}; {self._unseen()}." if self.results else f"{said}."

    def _unseen(self) -> str:
        plural = len(self.results) > 1
        return f"{'some bits of the results' if plural else 'some bits of the result'} differ"

    def _kind(self) -> str:
        """Say what all causes are, as far as it is known."""
        found = [f.explained for f in self.findings if f.kind == "operator"]
        if False in found:
            return "More than rounding"
        return "Rounding, or more: unknown" if None in found else "Ordinary rounding"

    def _causes(self) -> str:
        count = len(self.findings)
        if self.more and not self._follows():
            return f"{count} causes or more, first" if count > 1 else "one cause or more,"
        return f"{count} causes, first" if count > 1 else "one cause,"

    def _follows(self) -> bool:
        """Whether what differs later may follow from the last finding."""
        return bool(self.findings) and self.findings[-1].kind in ("inputs", "sequence", "result")

    def _unrepeatable(self) -> str:
        (name,) = [n for n, same in self.repeatable.items() if not same]
        head = f"{name} differs from itself when it runs again from the same state and seeds."
        return "\n".join(
            [head, *(f.paragraph("the first run", "the second") for f in self.findings)]
        )

    def _gaps(self) -> list[str]:
        lines = [f"O{self._gap(*gap)[1:]}" for gap in self.unaligned[:5]]
        if len(self.unaligned) > 5:
            lines.append(f"{len(self.unaligned) - 5} more blocks of calls have no counterpart.")
        return lines

    def _gap(self, first: tuple[str, ...], second: tuple[str, ...]) -> str:
        if first and second:
            return f"only {self.a} calls {_some(first)}; only {self.b} calls {_some(second)}."
        return f"only {self.a if first else self.b} calls {_some(first or second)}."

    def _table(self) -> str:
        rows = [
            (one.layer or "(outside)", f"{one.operators[0]} of {one.operators[1]}", _far(one))
            for one in self.layers
        ]
        if len(rows) > 20:
            rows = [*rows[:12], ("...", "", ""), *rows[-7:]]
        header = ("layer", "operators that differ", "distance (sampled)")
        return f"\n{text_table(header, rows)}"

    def document(self) -> dict[str, Any]:
        """Return everything but the tensors as plain data."""
        return {
            "format": "udftorch-diff-1",
            "a": self.a,
            "b": self.b,
            "verdict": self.verdict(),
            "equal": self.equal,
            "explained": None if self.equal else self.explained,
            "repeatable": dict(self.repeatable),
            "calls": list(self.calls),
            "differ": self.differ,
            "findings": [f.document() for f in self.findings],
            "more": self.more,
            "unaligned": [{"a": list(x), "b": list(y)} for x, y in self.unaligned],
            "layers": [asdict(one) for one in self.layers],
            "results": dict(self.results),
            "unread": list(self.unread),
            "graph": [_node(node) for node in self.graph],
            "compiled": None if self.compiled is None else asdict(self.compiled),
        }


def _node(node: Node) -> dict[str, Any]:
    return {**asdict(node), "place": _place(node.place), "calls": list(node.calls)}


def _some(calls: tuple[str, ...]) -> str:
    """Return the first of some calls; those of one operator in a row are one."""
    runs = [(call, len(list(same))) for call, same in groupby(calls)]
    shown = ", ".join(f"{call} ({n} times)" if n > 1 else call for call, n in runs[:3])
    rest = sum(n for _, n in runs[3:])
    return f"{shown} and {rest} more" if rest else shown
