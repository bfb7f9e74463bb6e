# SPDX-License-Identifier: Apache-2.0
"""Merging certificates, and comparing them in a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytest_udftorch.base.table import markdown_table
from pytest_udftorch.errors import CertificateError
from pytest_udftorch.prove.verify.certificate import (
    IDENTITY,
    MAY_HAVE,
    SUBJECT,
    Certificate,
    Run,
    against_text,
    ulp_text,
)
from pytest_udftorch.prove.verify.reference.checker import BINS


def merge_certificates(certificates: Iterable[Certificate]) -> Certificate:
    """Merge certificates of other forms, or of other parts of the inputs, into one.

    Raises:
        CertificateError: another function, library, version, claim, sources or
            domain; the same form from another build or judged by another reference; or a
            chunk that two of them have with different outputs.
    """
    given = list(certificates)
    if not given:
        raise CertificateError("There is no certificate to merge. Name at least one.")
    first = given[0]
    runs: list[Run] = list(first.runs)
    for other in given[1:]:
        for key in SUBJECT:
            if first.subject[key] != other.subject[key]:
                raise CertificateError(
                    f"Certificates of different {'builds' if key == 'source_sha256' else key}s "
                    f"cannot be merged: {key} is {first.subject[key]!r} in the first and "
                    f"{other.subject[key]!r} in another. Verify one of them again."
                )
        if first.domain != other.domain:
            raise CertificateError(
                f"The certificates of {first.name} are over different inputs: {first.domain} "
                f"and {other.domain}."
            )
        for run in other.runs:
            same = next((n for n, mine in enumerate(runs) if mine.key == run.key), None)
            if same is None:
                runs.append(run)
            else:
                runs[same] = _merge_runs(runs[same], run, first.name)
    return replace(first, runs=in_order(runs))


def in_order(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the runs in the order of a certificate: those that flush denormals come last."""
    return tuple(sorted(runs, key=lambda run: bool(run.identity["flush"])))


def _merge_runs(a: Run, b: Run, name: str) -> Run:
    for key in (*IDENTITY, *MAY_HAVE):
        values = [run.identity.get(key) for run in (a, b)]
        if values[0] != values[1]:
            raise CertificateError(
                f"Certificates of different builds cannot be merged: for the {a.identity['form']} "
                f"form of {name}, {key} is {values[0]!r} in one and {values[1]!r} in the other. "
                "Verify the missing chunks with one build."
            )
    both = sorted(a.chunks.keys() & b.chunks.keys())
    if both:
        differ = [i for i in both if a.chunks[i] != b.chunks[i]]
        if differ:
            raise CertificateError(
                f"Chunk {differ[0]} of {name} has different outputs in two certificates of the "
                "same build: the function does not give the same bits everywhere."
            )
        if len(both) == len(a.chunks) == len(b.chunks):
            return b if b.date >= a.date else a
        raise CertificateError(
            f"Chunks {both[0]} to {both[-1]} of {name} are in both certificates, and would count "
            "twice. Merge certificates of separate chunks."
        )
    largest = [run.largest for run in (a, b) if run.largest]
    parts = (a, b) if min(a.chunks) < min(b.chunks) else (b, a)
    return replace(
        a,
        chunks={**a.chunks, **b.chunks},
        tally=parts[0].tally + parts[1].tally,
        largest=max(largest, key=lambda error: error["ulp"], default=None),
        date=max(a.date, b.date),
        seconds=a.seconds + b.seconds,
    )


def comparison_table(certificates: Iterable[Certificate]) -> str:
    """Return a Markdown table of functions x libraries.

    It says how many results are against the claim, how many are not correctly rounded, and how
    large the largest error is, and where. One line per run; the lines of a function stand together.
    """
    rows = []
    for certificate in certificates:
        subject = certificate.subject
        for run in certificate.runs:
            tally, largest = run.tally, run.largest
            error = ulp_text(largest["ulp"]) if largest else "0"
            if incomparable := tally.histogram.get(BINS - 1):
                error += f"; {incomparable:,} NaN or infinite"
            rows.append(
                (
                    subject["function"],
                    subject["dtype"],
                    f"{subject['library']} {subject['version']}",
                    run.label,
                    against_text(tally, subject["max_ulp"]),
                    f"{tally.wrong:,}" + ("" if run.complete else " (incomplete)"),
                    f"{tally.inputs:,}",
                    error,
                    ", ".join(largest["inputs"]) if largest else "",
                )
            )
    header = (
        "function", "dtype", "library", "form", "against the claim", "not correctly rounded",
        "inputs", "largest error (ULP)", "at",
    )  # fmt: skip
    return markdown_table(header, sorted(rows))
