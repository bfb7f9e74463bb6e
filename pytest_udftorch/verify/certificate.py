"""Certificates: what one function did on all its inputs, in a file that can be checked.

A certificate is JSON. It holds one run per form, CPU level and denormal mode of the same
sources, and the SHA-256 of its own canonical text (sorted keys, no spaces, ASCII), so that
an edited or truncated file is refused.

**Digest of the outputs.** The inputs are cut into chunks of 2**chunk_bits. The outputs of a
chunk, as little-endian encodings in the order of the inputs with every NaN replaced by the
canonical one, have a SHA-256; the digest of a run is the SHA-256 over the chunks' digests
(32 raw bytes each) in order. So chunks can be computed anywhere and in any order, and a few
of them can be checked later without the rest. The ``normal_digest`` is made the same way
from outputs in which 0 stands wherever the input is subnormal or the result is subnormal or
zero: flushing denormals must not change it.

**Errors** are fractional: the distance from the exact value in ULPs of the correctly rounded
result. The histogram's reference is a double-precision result, never rounded to float32; the
largest error is computed again with GMP's MPFR.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from pytest_udftorch.errors import UdfError
from pytest_udftorch.verify.reference.checker import BINS, EXAMPLES, FINE_BINS

FORMAT: Final = "udftorch-certificate/1"
DIGEST_METHOD: Final = (
    "SHA-256 over the concatenated raw SHA-256 digests of the chunks, in order; a chunk is "
    "2**chunk_bits outputs in order of the inputs, little-endian encodings, NaNs canonical"
)


class CertificateError(UdfError):
    """A certificate cannot be read or written."""


class CertificateTruncatedError(CertificateError):
    """The file ends too early or is no JSON."""


class CertificateEditedError(CertificateError):
    """The file's contents do not fit the digests it carries."""


class CertificateMismatchError(CertificateError):
    """Certificates of different functions, sources or builds cannot become one."""


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
        """Read what ``as_json`` wrote."""
        return cls(
            tuple(int(i, 16) for i in data["inputs"]), int(data["got"], 16), int(data["want"], 16)
        )


@dataclass(frozen=True)
class Tally:
    """Counts over a set of inputs; tallies of disjoint sets can be added.

    Attributes:
        inputs: how many were run.
        wrong: results that are not the correctly rounded one.
        reference_wrong: the same for the reference, where MPFR was asked.
        disagreements: candidate against reference.
        arbitrated: inputs that MPFR decided.
        flushed: not judged, because the input or the result is subnormal and denormals are
            flushed in this run.
        hard: inputs whose fast path was not certain, or None if that is not known.
        histogram: bin -> results, bins as in reference.h.
        examples: the first wrong results by input.
        worst_ulp: largest error measured, in ULP.
        worst_index: number of its input.
        worst_got: encoding of its result.
        incomparable_index: input of a result that no error can be given for, or None.
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
        histogram = dict(self.histogram)
        for bin_number, count in other.histogram.items():
            histogram[bin_number] = histogram.get(bin_number, 0) + count
        worst = self if self.worst_ulp >= other.worst_ulp else other
        first = self.incomparable_index
        return Tally(
            inputs=self.inputs + other.inputs,
            wrong=self.wrong + other.wrong,
            reference_wrong=self.reference_wrong + other.reference_wrong,
            disagreements=self.disagreements + other.disagreements,
            arbitrated=self.arbitrated + other.arbitrated,
            flushed=self.flushed + other.flushed,
            hard=None if self.hard is None or other.hard is None else self.hard + other.hard,
            histogram=histogram,
            examples=(self.examples + other.examples)[:EXAMPLES],
            worst_ulp=worst.worst_ulp,
            worst_index=worst.worst_index,
            worst_got=worst.worst_got,
            incomparable_index=other.incomparable_index if first is None else first,
        )

    def as_json(self, bits: int) -> dict[str, Any]:
        """Return the tally as plain data."""
        return {
            "inputs": self.inputs,
            "wrong": self.wrong,
            "reference_wrong": self.reference_wrong,
            "disagreements": self.disagreements,
            "arbitrated": self.arbitrated,
            "flushed": self.flushed,
            "hard": self.hard,
            "histogram": {str(b): n for b, n in sorted(self.histogram.items())},
            "examples": [e.as_json(bits) for e in self.examples],
            "worst_ulp": self.worst_ulp,
            "worst_index": self.worst_index,
            "worst_got": self.worst_got,
            "incomparable_index": self.incomparable_index,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tally:
        """Read what ``as_json`` wrote."""
        plain = dict(data)
        plain["histogram"] = {int(b): int(n) for b, n in data["histogram"].items()}
        plain["examples"] = tuple(Example.from_json(e) for e in data["examples"])
        return cls(**plain)


def ulp_text(error: float) -> str:
    """Return an error for the reader; just below one half it is said how far below."""
    text = f"{error:.6g}"
    if text == "0.5" and error < 0.5:
        return f"0.5 - 2^{math.log2(0.5 - error):.1f}"
    return text


def bin_edges(number: int) -> tuple[float, float] | None:
    """Return the errors in ULP that a histogram bin holds, or None for the last one."""
    if number == BINS - 1:
        return None
    if number < FINE_BINS:
        return number / FINE_BINS, (number + 1) / FINE_BINS
    return math.ldexp(1, number - FINE_BINS), math.ldexp(1, number - FINE_BINS + 1)


@dataclass(frozen=True)
class ChunkResult:
    """What came of one chunk.

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
        identity: facts that runs must share to be merged; see ``Candidate`` and ``Plan``.
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
        return tuple(self.identity[k] for k in ("cpu_level", "form", "symbol", "flush", "garbage"))

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


@dataclass(frozen=True)
class Certificate:
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
        found = []
        bound = self.subject["max_ulp"]
        for run in self.runs:
            tally = run.tally
            what = f"{self.name}, {run.identity['form']} form, {run.identity['cpu_level']}"
            if bound is None:
                continue
            if bound <= 0.5 and tally.wrong:
                found.append(f"{what}: {tally.wrong:,} of {tally.inputs:,} results are wrong.")
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


# Files -------------------------------------------------------------------------------


def canonical_json(data: Any) -> bytes:
    """Return the one text of plain data that digests are taken over."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


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


def as_json(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as plain data, with its digest."""
    bits = 32 if certificate.subject["dtype"] == "float32" else 16
    data: dict[str, Any] = {
        "format": FORMAT,
        "digest_method": DIGEST_METHOD,
        **certificate.subject,
        "domain": dict(certificate.domain),
        "runs": [_run_json(r, certificate.runs, bits) for r in certificate.runs],
    }
    data["sha256"] = hashlib.sha256(canonical_json(data)).hexdigest()
    return data


def save(certificate: Certificate, path: Path) -> None:
    """Write a certificate; the file appears whole or not at all.

    Raises:
        CertificateError: the folder cannot be written.
    """
    scratch = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(as_json(certificate), indent=1) + "\n", encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise CertificateError(
            f"Cannot write the certificate {path}: {error}. Choose another folder with --out."
        ) from error


def load(path: Path) -> Certificate:
    """Read a certificate and check everything it says about itself.

    Raises:
        CertificateError: no such file, or another format.
        CertificateTruncatedError: no whole JSON document.
        CertificateEditedError: its text or its digests do not fit.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError(f"Cannot read the certificate {path}: {error}.") from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CertificateTruncatedError(
            f"{path} is no whole certificate: {error}. It was truncated or is another file. "
            "Run udftorch verify again."
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CertificateError(
            f"{path} is no certificate of the format {FORMAT}. Run udftorch verify to make one."
        )
    stated = data.pop("sha256", None)
    if hashlib.sha256(canonical_json(data)).hexdigest() != stated:
        raise _edited(path, "its text does not have the SHA-256 that it states")
    try:
        certificate = _from_json(data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _edited(path, f"it lacks or garbles {error}") from error
    for number, (run, raw) in enumerate(zip(certificate.runs, data["runs"], strict=True)):
        if (run.digest(), run.normal_digest()) != (raw["digest"], raw["normal_digest"]):
            raise _edited(path, f"the chunks of run {number} do not give its digest")
        judged = sum(run.tally.histogram.values()) + run.tally.flushed
        if judged != run.tally.inputs:
            raise _edited(path, f"the histogram of run {number} does not count all inputs")
    return certificate


def _edited(path: Path, why: str) -> CertificateEditedError:
    return CertificateEditedError(
        f"{path} was changed after it was written: {why}. Run udftorch verify again."
    )


_SUBJECT: Final = (
    "function",
    "dtype",
    "library",
    "version",
    "claim",
    "max_ulp",
    "source_sha256",
)
IDENTITY: Final = (
    "cpu_level",
    "form",
    "symbol",
    "flush",
    "garbage",
    "build_id",
    "library_sha256",
    "compiler",
    "reference",
)


def _from_json(data: Mapping[str, Any]) -> Certificate:
    runs: list[Run] = []
    for raw in data["runs"]:
        digests = _unshared(raw["chunk_digests"], 0, runs)
        normals = _unshared(raw["normal_chunk_digests"], 1, runs)
        histogram = {_bin_from(low): n for low, _, n in raw["histogram_ulp"]}
        if raw["incomparable"]:
            histogram[BINS - 1] = raw["incomparable"]
        tally = Tally.from_json(
            {k: raw[k] for k in Tally.__dataclass_fields__ if k != "histogram"}
            | {"histogram": histogram}
        )
        runs.append(
            Run(
                identity={k: raw[k] for k in IDENTITY},
                chunks={i: (digests[i], normals[i]) for i in digests},
                total_chunks=raw["total_chunks"],
                tally=tally,
                largest=raw["largest_error"],
                date=raw["date"],
                seconds=raw["seconds"],
                machine=raw["machine"],
            )
        )
    return Certificate({k: data[k] for k in _SUBJECT}, data["domain"], tuple(runs))


def _bin_from(low: float) -> int:
    return int(low * FINE_BINS) if low < 1 else FINE_BINS + int(math.log2(low))


def _unshared(stored: Mapping[str, Any], which: int, runs: Sequence[Run]) -> dict[int, str]:
    if "same_as_run" in stored:
        return {i: c[which] for i, c in runs[stored["same_as_run"]].chunks.items()}
    return {int(i): str(d) for i, d in stored.items()}


# Merging -----------------------------------------------------------------------------


def merge(certificates: Iterable[Certificate]) -> Certificate:
    """Make one certificate of several, of other forms or of other parts of the inputs.

    Raises:
        CertificateMismatchError: another function, library, version, claim, sources or
            domain; the same form from another build or judged by another reference; or a
            chunk that two of them have with different outputs.
    """
    given = list(certificates)
    if not given:
        raise CertificateMismatchError("There is no certificate to merge.")
    first = given[0]
    runs: list[Run] = list(first.runs)
    for other in given[1:]:
        for key in _SUBJECT:
            if first.subject[key] != other.subject[key]:
                raise CertificateMismatchError(
                    f"Certificates of different {'builds' if key == 'source_sha256' else key}s "
                    f"cannot be merged: {key} is {first.subject[key]!r} in the first and "
                    f"{other.subject[key]!r} in another. Verify one of them again."
                )
        if first.domain != other.domain:
            raise CertificateMismatchError(
                f"The certificates of {first.name} are over different inputs: {first.domain} "
                f"and {other.domain}."
            )
        for run in other.runs:
            for number, mine in enumerate(runs):
                if mine.key == run.key:
                    runs[number] = _merge_runs(mine, run, first.name)
                    break
            else:
                runs.append(run)
    return replace(first, runs=in_order(runs))


def in_order(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the runs, those first whose outputs are the function's: nothing is flushed."""
    return tuple(sorted(runs, key=lambda run: bool(run.identity["flush"])))


def _merge_runs(a: Run, b: Run, name: str) -> Run:
    for key in IDENTITY:
        if a.identity[key] != b.identity[key]:
            raise CertificateMismatchError(
                f"Certificates of different builds cannot be merged: for the {a.identity['form']} "
                f"form of {name}, {key} is {a.identity[key]!r} in one and {b.identity[key]!r} in "
                "the other. Verify the missing chunks with one build."
            )
    both = sorted(a.chunks.keys() & b.chunks.keys())
    if both:
        differ = [i for i in both if a.chunks[i] != b.chunks[i]]
        if differ:
            raise CertificateMismatchError(
                f"Chunk {differ[0]} of {name} has different outputs in two certificates of the "
                "same build: the function does not give the same bits everywhere."
            )
        if len(both) == len(a.chunks) == len(b.chunks):
            return b if b.date >= a.date else a
        raise CertificateMismatchError(
            f"Chunks {both[0]} to {both[-1]} of {name} are in both certificates, so their counts "
            "would be added twice. Merge certificates of separate chunks."
        )
    worst = a.largest
    if a.largest is None or (b.largest is not None and b.largest["ulp"] > a.largest["ulp"]):
        worst = b.largest
    parts = (a, b) if min(a.chunks) < min(b.chunks) else (b, a)
    return replace(
        a,
        chunks={**a.chunks, **b.chunks},
        tally=parts[0].tally + parts[1].tally,
        largest=worst,
        date=max(a.date, b.date),
        seconds=a.seconds + b.seconds,
    )


# Comparing ---------------------------------------------------------------------------


def comparison_table(certificates: Iterable[Certificate]) -> str:
    """Return a Markdown table: function x library, number wrong, largest error, where.

    One line per run; the lines of a function stand together.
    """
    rows = []
    for certificate in certificates:
        subject = certificate.subject
        for run in certificate.runs:
            tally, largest = run.tally, run.largest
            mode = ", denormals flushed" if run.identity["flush"] else ""
            rows.append(
                (
                    subject["function"],
                    subject["dtype"],
                    f"{subject['library']} {subject['version']}",
                    f"{run.identity['form']}, {run.identity['cpu_level']}{mode}",
                    f"{tally.wrong:,}" + ("" if run.complete else " (incomplete)"),
                    f"{tally.inputs:,}",
                    _error_cell(tally, largest),
                    ", ".join(largest["inputs"]) if largest else "",
                )
            )
    header = (
        "function", "dtype", "library", "form", "wrong", "inputs", "largest error (ULP)", "at"
    )  # fmt: skip
    lines = [header, ("---",) * len(header), *sorted(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _error_cell(tally: Tally, largest: Mapping[str, Any] | None) -> str:
    incomparable = tally.histogram.get(BINS - 1, 0)
    error = ulp_text(largest["ulp"]) if largest else "0"
    return f"{error}; {incomparable:,} NaN or infinite" if incomparable else error
