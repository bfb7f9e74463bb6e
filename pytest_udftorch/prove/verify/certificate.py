# SPDX-License-Identifier: Apache-2.0
"""Certificates: the results of one function on all its inputs, in a file that can be checked.

A certificate is JSON. It holds one run per form, CPU level and denormal mode of the same
sources, and the SHA-256 of its own canonical text (sorted keys, no spaces, ASCII), so that
readers refuse an edited or truncated file.

**Digest of the outputs.** The inputs are cut into chunks of 2**chunk_bits. The outputs of a
chunk, as little-endian encodings in the order of the inputs with every NaN replaced by the
canonical one, have a SHA-256; the digest of a run is the SHA-256 over the chunks' digests
(32 raw bytes each) in order. So any machine can compute any chunk in any order, and anyone
can check a few of them later without the rest. The ``normal_digest`` is made the same way
from outputs in which 0 stands wherever the input is subnormal or the result is subnormal or
zero: flushing denormals must not change it.

**Errors** are fractional: the distance from the exact value in ULPs of the correctly rounded
result. The histogram's reference is a double-precision result, never rounded to float32. GNU
MPFR computes the largest error again.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.prove.verify.reference.checker import BINS, EXAMPLES, FINE_BINS

#: How a certificate says what it is.
FORMAT: Final = "udftorch-certificate/1"
DIGEST_METHOD: Final = (
    "SHA-256 over the concatenated raw SHA-256 digests of the chunks, in order; a chunk is "
    "2**chunk_bits outputs in order of the inputs, little-endian encodings, NaNs canonical"
)
#: Keys of a certificate's subject.
SUBJECT: Final = ("function", "dtype", "library", "version", "claim", "max_ulp", "source_sha256")
#: Modes of a run and the words for them; see ``Schedule``.
MODES: Final = {"flush": "denormals flushed", "garbage": "garbage", "sparse": "sparse"}
#: Keys of a run's identity that tell the runs of a certificate apart.
RUN_KEY: Final = ("cpu_level", "form", "symbol", *MODES)
#: Keys of a run's identity.
IDENTITY: Final = (*RUN_KEY, "build_id", "library_sha256", "compiler", "reference")
#: What the identity of a run has besides where its form is compiled from more than the sources of
#: the subject: the scalar form, if a short path lies in a file of its own, and the other forms of a
#: CPU level, if its quick path does.
MAY_HAVE: Final = ("short_sha256", "quick_sha256")
#: The counts of a tally that can be added.
_COUNTS: Final = ("inputs", "wrong", "reference_wrong", "disagreements", "arbitrated", "flushed")

#: Shape of a SHA-256 in hex.
SHA256: Final = shapes.text("[0-9a-f]{64}")
_ENCODING: Final = shapes.text("0x[0-9a-f]{1,8}")
_BINS: Final = "|".join(map(str, range(BINS)))
#: Shape of an example, and of the largest error of a run.
EXAMPLE: Final = shapes.record(
    {"inputs": shapes.each(_ENCODING), "got": _ENCODING, "want": _ENCODING}, closed=False
)
_TALLY: Final = shapes.record(
    {
        **dict.fromkeys((*_COUNTS, "worst_index"), shapes.whole()),
        "hard": shapes.optional(shapes.whole()),
        "histogram": shapes.mapping(shapes.text(_BINS), shapes.whole()),
        "examples": shapes.each(EXAMPLE),
        "worst_ulp": shapes.number(),
        "worst_got": shapes.whole(0, (1 << 32) - 1),
        "incomparable_index": shapes.optional(shapes.whole()),
    },
    closed=True,
)


@dataclass(frozen=True)
class Example:
    """One wrong result, as encodings.

    Attributes:
        inputs: one or two encodings.
        got: the result.
        want: the correctly rounded result.
    """

    inputs: tuple[int, ...]
    got: int
    want: int

    def as_json(self, bits: int) -> dict[str, Any]:
        """Return the example with encodings in hex."""
        digits = bits // 4
        return {
            "inputs": [f"0x{i:0{digits}x}" for i in self.inputs],
            "got": f"0x{self.got:0{digits}x}",
            "want": f"0x{self.want:0{digits}x}",
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Example:
        """Read what ``as_json`` wrote, in the shape :data:`EXAMPLE`."""
        return cls(
            tuple(int(i, 16) for i in data["inputs"]), int(data["got"], 16), int(data["want"], 16)
        )


@dataclass(frozen=True)
class Tally:
    """Counts over a set of inputs; tallies of disjoint sets can be added.

    Attributes:
        inputs: number of inputs that were run.
        wrong: results that are not correctly rounded.
        reference_wrong: the same for the reference, where MPFR decided.
        disagreements: results that differ from the reference's.
        arbitrated: inputs that MPFR decided.
        flushed: inputs not judged, because the input or the result is subnormal and the run
            flushes denormals.
        hard: inputs whose fast path was not certain; None if not counted.
        histogram: bin -> results, bins as in reference.h.
        examples: the first wrong results by input.
        worst_ulp: largest error measured, in ULP.
        worst_index: number of its input.
        worst_got: encoding of its result.
        incomparable_index: input of a result that has no error, or None.
    """

    inputs: int = 0
    wrong: int = 0
    reference_wrong: int = 0
    disagreements: int = 0
    arbitrated: int = 0
    flushed: int = 0
    hard: int | None = 0
    histogram: Mapping[int, int] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    worst_ulp: float = 0.0
    worst_index: int = 0
    worst_got: int = 0
    incomparable_index: int | None = None

    def __add__(self, other: Tally) -> Tally:
        """Add the counts of a disjoint set of inputs that comes after this one."""
        worst = self if self.worst_ulp >= other.worst_ulp else other
        first = self.incomparable_index
        return Tally(
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTS},
            hard=None if self.hard is None or other.hard is None else self.hard + other.hard,
            histogram=dict(Counter(self.histogram) + Counter(other.histogram)),
            examples=(self.examples + other.examples)[:EXAMPLES],
            worst_ulp=worst.worst_ulp,
            worst_index=worst.worst_index,
            worst_got=worst.worst_got,
            incomparable_index=other.incomparable_index if first is None else first,
        )

    def beyond(self, bound: float | None) -> tuple[int, int] | None:
        """Return how many results are against a claim, at least and at most; None without one.

        A claim of half an ULP means correctly rounded. Others are counted in the histogram, so
        that the two numbers are the same where the claim is an edge of its bins: at multiples of
        1/64 ULP below 1 and at powers of two from there on.
        """
        if bound is None:
            return None
        if bound <= 0.5:
            return self.wrong, self.wrong
        least = most = self.histogram.get(BINS - 1, 0)
        if self.worst_ulp <= bound:
            return least, most
        for number, count in self.histogram.items():
            edges = bin_edges(number)
            if edges is not None and edges[1] > bound:
                most += count
                least += count if edges[0] >= bound else 0
        # The largest error is known, and beyond.
        return max(least, 1), most

    def as_json(self, bits: int) -> dict[str, Any]:
        """Return the tally as plain data."""
        return {
            **vars(self),
            "histogram": {str(b): n for b, n in sorted(self.histogram.items())},
            "examples": [e.as_json(bits) for e in self.examples],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tally:
        """Read what ``as_json`` wrote.

        Raises:
            Malformed: it is something else, or a part is larger than the whole.
        """
        _TALLY(data, "the tally")
        for name in _COUNTS:
            if data[name] > data["inputs"]:
                raise shapes.Malformed(f"{name} is {data[name]} of {data['inputs']} inputs")
        histogram = {int(b): n for b, n in data["histogram"].items()}
        examples = tuple(Example.from_json(e) for e in data["examples"])
        return cls(**{**data, "histogram": histogram, "examples": examples})


def ulp_text(error: float) -> str:
    """Return an error in ULP as text; below one half, the text says how far below."""
    text = f"{error:.6g}"
    if text == "0.5" and error < 0.5:
        return f"0.5 - 2^{math.log2(0.5 - error):.1f}"
    return text


def against_text(tally: Tally, bound: float | None) -> str:
    """Return how many results are against a claim; a dash without one."""
    found = tally.beyond(bound)
    if found is None:
        return "-"
    least, most = found
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def bin_edges(number: int) -> tuple[float, float] | None:
    """Return the errors in ULP that a histogram bin holds, or None for the last one."""
    if number == BINS - 1:
        return None
    if number < FINE_BINS:
        return number / FINE_BINS, (number + 1) / FINE_BINS
    return math.ldexp(1, number - FINE_BINS), math.ldexp(1, number - FINE_BINS + 1)


@dataclass(frozen=True)
class ChunkResult:
    """The result of one chunk.

    Attributes:
        index: of the chunk.
        digest: SHA-256 of its outputs in hex.
        normal_digest: the same with subnormal inputs and results masked.
        tally: the counts.
    """

    index: int
    digest: str
    normal_digest: str
    tally: Tally


@dataclass(frozen=True)
class Run:
    """One form of a function over (part of) its inputs.

    Attributes:
        identity: facts that runs must share to be merged; see ``Candidate`` and ``Schedule``.
        chunks: chunk index -> (digest, normal digest).
        total_chunks: how many the domain has.
        tally: the counts over all chunks present.
        largest: the largest error: ``ulp``, ``inputs``, ``got``, ``want``; None without one.
        date: when it was finished, UTC, ISO 8601.
        seconds: wall-clock time.
        machine: CPU and versions, for the reader.
    """

    identity: Mapping[str, Any]
    chunks: Mapping[int, tuple[str, str]]
    total_chunks: int
    tally: Tally
    largest: Mapping[str, Any] | None
    date: str
    seconds: float
    machine: Mapping[str, Any]

    @property
    def complete(self) -> bool:
        """Whether every chunk is present."""
        return len(self.chunks) == self.total_chunks

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells the runs of a certificate apart."""
        return tuple(self.identity[k] for k in RUN_KEY)

    @property
    def label(self) -> str:
        """The form, the CPU level and the modes, for people."""
        modes = [words for mode, words in MODES.items() if self.identity[mode]]
        return ", ".join([self.identity["form"], self.identity["cpu_level"], *modes])

    def digest(self) -> str | None:
        """Return the digest over all outputs in hex; None while chunks are missing."""
        return self._digest(0) if self.complete else None

    def normal_digest(self) -> str | None:
        """Return the digest that flushing must not change; None while chunks are missing."""
        return self._digest(1) if self.complete else None

    def _digest(self, which: int) -> str:
        whole = hashlib.sha256()
        for index in sorted(self.chunks):
            whole.update(bytes.fromhex(self.chunks[index][which]))
        return whole.hexdigest()


@dataclass(frozen=True, repr=False)
class Certificate(Result):
    """The runs of one function of one library.

    Attributes:
        subject: function, dtype, and the library's name, version, claim and sources.
        domain: which inputs, how many, and how they are cut into chunks.
        runs: one per form, CPU level and denormal mode; those that flush come last.
    """

    subject: Mapping[str, Any]
    domain: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """Library and function, for messages."""
        return f"{self.subject['library']} {self.subject['function']} {self.subject['dtype']}"

    def run(self, **wanted: Any) -> Run | None:
        """Return the first run whose identity has all of ``wanted``, or None."""
        for run in self.runs:
            if all(run.identity.get(k) == v for k, v in wanted.items()):
                return run
        return None

    def failures(self) -> list[str]:
        """Return what contradicts the library's claim, one sentence each; empty if nothing.

        A claim of at most half an ULP means correctly rounded: no result may be wrong. Any
        other bound is compared with the largest error. Without a claim nothing can fail.
        """
        found: list[str] = []
        bound = self.subject["max_ulp"]
        for run in self.runs if bound is not None else ():
            tally = run.tally
            what = f"{self.name}, {run.label}"
            if bound <= 0.5 and tally.wrong:
                found.append(
                    f"{what}: {tally.wrong:,} of {tally.inputs:,} results are not "
                    "correctly rounded, which the claim of half an ULP means."
                )
            elif bound > 0.5 and tally.histogram.get(BINS - 1):
                found.append(
                    f"{what}: {tally.histogram[BINS - 1]:,} results are NaN or infinite where "
                    "the exact value is not, or the other way round."
                )
            elif bound > 0.5 and run.largest and run.largest["ulp"] > bound:
                found.append(
                    f"{what}: the largest error is {ulp_text(run.largest['ulp'])} ULP, "
                    f"the claim is {bound:g}."
                )
        return found

    def unfinished(self) -> list[str]:
        """Return which runs lack chunks, one sentence each."""
        return [
            f"{self.name}, {r.label}: {len(r.chunks)} of {r.total_chunks} chunks are done."
            for r in self.runs
            if not r.complete
        ]

    def _shown(self) -> Shown:
        rows = []
        for run in self.runs:
            worst = run.largest
            rows.append(
                (
                    run.label,
                    f"{run.tally.inputs:,}",
                    f"{run.tally.wrong:,}",
                    ulp_text(worst["ulp"]) if worst else "0",
                    ", ".join(worst["inputs"]) if worst else "",
                    "complete" if run.complete else f"{len(run.chunks)} of {run.total_chunks}",
                )
            )
        header = (
            "form", "inputs", "not correctly rounded", "largest error (ULP)", "at", "chunks"
        )  # fmt: skip
        found = self.failures()
        if self.subject["max_ulp"] is not None and not found:
            found = [f"Nothing contradicts the claim of {self.subject['max_ulp']:g} ULP."]
        return Shown(self.name, header, rows, found)

    def document(self) -> dict[str, Any]:
        """Return the certificate as plain data, with its digest."""
        bits = 32 if self.subject["dtype"] == "float32" else 16
        data: dict[str, Any] = {
            "format": FORMAT,
            "digest_method": DIGEST_METHOD,
            **self.subject,
            "domain": dict(self.domain),
            "runs": [_run_json(r, self.runs, bits) for r in self.runs],
        }
        data["sha256"] = hashlib.sha256(shapes.canonical_json(data)).hexdigest()
        return data

    def summaries(self) -> list[str]:
        """Return one line of text about each run."""
        lines = []
        for run in self.runs:
            digest = run.digest()
            largest = ulp_text(run.largest["ulp"]) if run.largest else "0"
            where = f" at {', '.join(run.largest['inputs'])}" if run.largest else ""
            lines.append(
                f"{self.name}, {run.label}: "
                f"{against_text(run.tally, self.subject['max_ulp'])} against the claim, "
                f"{run.tally.wrong:,} not correctly rounded, of {run.tally.inputs:,}; largest "
                f"error {largest} "
                f"ULP{where}; sha256 {digest[:16] if digest else 'incomplete'}; "
                f"{run.seconds:.0f} s"
            )
        return lines


def _run_json(run: Run, runs: Sequence[Run], bits: int) -> dict[str, Any]:
    digests = {i: c[0] for i, c in run.chunks.items()}
    normals = {i: c[1] for i, c in run.chunks.items()}
    tally = run.tally.as_json(bits)
    histogram = tally.pop("histogram")
    tally["incomparable"] = histogram.pop(str(BINS - 1), 0)
    tally["histogram_ulp"] = [
        [*cast(tuple[float, float], bin_edges(int(b))), n] for b, n in histogram.items()
    ]
    hard = run.tally.hard
    return {
        **run.identity,
        "complete": run.complete,
        "total_chunks": run.total_chunks,
        "digest": run.digest(),
        "normal_digest": run.normal_digest(),
        "chunk_digests": _shared(digests, 0, run, runs),
        "normal_chunk_digests": _shared(normals, 1, run, runs),
        **tally,
        "hard_share": hard / run.tally.inputs if hard is not None and run.tally.inputs else None,
        "largest_error": run.largest,
        "date": run.date,
        "seconds": run.seconds,
        "machine": run.machine,
    }


def _shared(digests: Mapping[int, str], which: int, run: Run, runs: Sequence[Run]) -> Any:
    """Return the digests, or the number of an earlier run that has the same ones."""
    for number, earlier in enumerate(runs):
        if earlier is run:
            break
        if {i: c[which] for i, c in earlier.chunks.items()} == digests:
            return {"same_as_run": number}
    return {str(i): digests[i] for i in sorted(digests)}
