# SPDX-License-Identifier: Apache-2.0
"""Certificates as JSON files that carry the digests of their own contents."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import CertificateError
from pytest_udftorch.prove.verify.certificate import (
    EXAMPLE,
    FORMAT,
    IDENTITY,
    MAY_HAVE,
    MODES,
    SHA256,
    SUBJECT,
    Certificate,
    Run,
    Tally,
    bin_edges,
)
from pytest_udftorch.prove.verify.reference.checker import BINS, FINE_BINS


def save_certificate(certificate: Certificate, path: Path) -> None:
    """Write a certificate; the file appears whole or not at all.

    Raises:
        CertificateError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole_file.write(path, json.dumps(certificate.document(), indent=1) + "\n")
    except OSError as error:
        raise CertificateError(
            f"Cannot write the certificate {path}: {error}. Choose another folder with --out."
        ) from error


def load_certificate(path: Path) -> Certificate:
    """Read a certificate and check every digest in it.

    Raises:
        CertificateError: no such file, or another format; the file is not a whole JSON document;
            its text or its digests contradict each other.
    """
    try:
        data = shapes.parse_json(shapes.read_file(path))
    except OSError as error:
        raise CertificateError(f"Cannot read the certificate {path}: {error}.") from error
    except shapes.Malformed as error:
        raise CertificateError(
            f"{path} is not a whole certificate: {error}. It was truncated, or is another file. "
            "Run udftorch verify again."
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CertificateError(
            f"{path} is not a certificate of the format {FORMAT}. Run udftorch verify to make one."
        )
    stated = data.pop("sha256", None)
    if hashlib.sha256(shapes.canonical_json(data)).hexdigest() != stated:
        raise _edited(path, "its text does not have the SHA-256 that it states")
    try:
        certificate = _from_json(data)
    except shapes.Malformed as error:
        raise _edited(path, str(error)) from error
    for number, (run, raw) in enumerate(zip(certificate.runs, data["runs"], strict=True)):
        if run.complete is not raw["complete"]:
            raise _edited(path, f"run {number} does not have the chunks that it claims to have")
        if (run.digest(), run.normal_digest()) != (raw["digest"], raw["normal_digest"]):
            raise _edited(path, f"the chunks of run {number} do not give its digest")
        judged = sum(run.tally.histogram.values()) + run.tally.flushed
        if judged != run.tally.inputs:
            raise _edited(path, f"the histogram of run {number} does not count all inputs")
    return certificate


def _edited(path: Path, why: str) -> CertificateError:
    return CertificateError(
        f"{path} was changed after it was written: {why}. Run udftorch verify again."
    )


_CHUNK: Final = shapes.text("0|[1-9][0-9]{0,9}")
_RUN: Final = shapes.record(
    {
        **dict.fromkeys((k for k in IDENTITY if k not in MODES), shapes.text()),
        **dict.fromkeys(("flush", "garbage", "complete"), shapes.flag),
        **dict.fromkeys(("digest", "normal_digest"), shapes.optional(SHA256)),
        **dict.fromkeys(("chunk_digests", "normal_chunk_digests"), shapes.of(dict)),
        "total_chunks": shapes.whole(1),
        "incomparable": shapes.whole(),
        "histogram_ulp": shapes.each(shapes.row(shapes.number(), shapes.number(), shapes.whole())),
        "largest_error": shapes.optional(EXAMPLE),
        "date": shapes.text(),
        "seconds": shapes.number(),
        "machine": shapes.of(dict),
    },
    {**dict.fromkeys(MAY_HAVE, SHA256), "sparse": shapes.flag},
    closed=False,  # Tally.from_json checks the counts
)
_CERTIFICATE: Final = shapes.record(
    {
        **dict.fromkeys(SUBJECT, shapes.text()),
        "max_ulp": shapes.optional(shapes.number()),
        "source_sha256": SHA256,
        "domain": shapes.record(
            {"count": shapes.whole(1), "chunk_bits": shapes.whole(0, 64)}, closed=False
        ),
        "runs": shapes.each(_RUN),
    },
    closed=False,
)


def _from_json(data: Mapping[str, Any]) -> Certificate:
    """Return the certificate, or raise :class:`~plain_data.Malformed`."""
    _CERTIFICATE(data, "the certificate")
    if not data["runs"]:
        raise shapes.Malformed("it has no runs")
    runs: list[Run] = []
    for number, raw in enumerate(data["runs"]):
        try:
            runs.append(_run(raw, runs))
        except shapes.Malformed as error:
            raise shapes.Malformed(f"in run {number}, {error}") from None
    return Certificate({k: data[k] for k in SUBJECT}, data["domain"], tuple(runs))


def _run(raw: Mapping[str, Any], earlier: Sequence[Run]) -> Run:
    digests = _unshared(raw["chunk_digests"], 0, earlier)
    normals = _unshared(raw["normal_chunk_digests"], 1, earlier)
    if not digests or digests.keys() != normals.keys() or max(digests) >= raw["total_chunks"]:
        raise shapes.Malformed("the numbers of the chunks are not those of its inputs")
    if raw["largest_error"] is not None:
        shapes.number()(raw["largest_error"].get("ulp"), "largest_error.ulp")
    histogram = {}
    for low, high, count in raw["histogram_ulp"]:
        number = _bin_from(low)
        if number >= BINS - 1 or bin_edges(number) != (low, high):
            raise shapes.Malformed(f"histogram_ulp has no bin from {low} to {high}")
        histogram[str(number)] = count
    if raw["incomparable"]:
        histogram[str(BINS - 1)] = raw["incomparable"]
    stated = {k: raw[k] for k in (*IDENTITY, *MAY_HAVE) if k in raw}
    counts = {k: raw[k] for k in Tally.__dataclass_fields__ if k in raw}
    return Run(
        identity=dict.fromkeys(MODES, False) | stated,
        chunks={i: (digests[i], normals[i]) for i in digests},
        total_chunks=raw["total_chunks"],
        tally=Tally.from_json({**counts, "histogram": histogram}),
        largest=raw["largest_error"],
        date=raw["date"],
        seconds=raw["seconds"],
        machine=raw["machine"],
    )


def _bin_from(low: float) -> int:
    return int(low * FINE_BINS) if low < 1 else FINE_BINS + int(math.log2(low))


def _unshared(stored: Mapping[str, Any], which: int, earlier: Sequence[Run]) -> dict[int, str]:
    if "same_as_run" in stored:
        number = stored["same_as_run"]
        shapes.whole()(number, "same_as_run")
        if number >= len(earlier):
            raise shapes.Malformed(f"same_as_run names run {number}, which does not come before")
        return {i: c[which] for i, c in earlier[number].chunks.items()}
    shapes.mapping(_CHUNK, SHA256)(stored, "the digests of the chunks")
    return {int(i): digest for i, digest in stored.items()}
