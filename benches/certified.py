# SPDX-License-Identifier: Apache-2.0
"""What the certificates in ``udfs`` say, for results that are compared with them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pytest_udftorch.prove import load_certificate

COMPOSITES: Final = Path(__file__).parent.parent / "udfs" / "corem-composites"


def composite_digest(name: str) -> str | None:
    """Return the digest of a composite's certificate, or None if there is no complete one."""
    for path in sorted((COMPOSITES / name).glob("*.float32.certificate.json")):
        runs = [r for r in load_certificate(path).runs if r.complete and not r.identity["flush"]]
        if runs:
            return runs[0].digest()
    return None
