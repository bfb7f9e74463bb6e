# SPDX-License-Identifier: Apache-2.0
"""What certificates say: those in ``udfs``, and those of the stock libraries, as they are stored.

Of the certificates of stock libraries ``benches/results/certificates`` keeps what each run counted,
a row for each run. ``benches.experiments.stock_certificates`` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from benches import stored
from pytest_udftorch.prove import Certificate, load_certificate
from pytest_udftorch.prove.verify.certificate import Run, Tally
from pytest_udftorch.prove.verify.reference.checker import BINS

COMPOSITES: Final = Path(__file__).parent.parent / "udfs" / "corem-composites"


def composite_digest(name: str) -> str | None:
    """Return the digest of a composite's certificate, or None if there is no complete one."""
    for path in sorted((COMPOSITES / name).glob("*.float32.certificate.json")):
        runs = [r for r in load_certificate(path).runs if r.complete and not r.identity["flush"]]
        if runs:
            return runs[0].digest()
    return None


def rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return a row for each run of the certificates in files, with what is said of all runs.

    Raises:
        CertificateError: a file is not a certificate, or was edited.
    """
    found = []
    for path in paths:
        load_certificate(path)  # checks it
        certificate = json.loads(path.read_text(encoding="utf-8"))
        runs = certificate.pop("runs")
        found += [{**certificate, **run} for run in runs]
    return found


def stock(folder: Path) -> Iterator[Certificate]:
    """Yield the stored certificates of stock libraries, without the digests of their chunks."""
    for path in sorted(folder.glob("*.json")):
        for row in stored.load(path)["rows"]:
            wrong = {BINS - 1: row["incomparable"]} if row["incomparable"] else {}
            run = Run(
                identity={"sparse": False, **row},
                chunks={},
                total_chunks=0 if row["complete"] else row["total_chunks"],
                tally=Tally(inputs=row["inputs"], wrong=row["wrong"], histogram=wrong),
                largest=row["largest_error"],
                date=row["date"],
                seconds=row["seconds"],
                machine=row["machine"],
            )
            yield Certificate(row, row["domain"], (run,))
