# SPDX-License-Identifier: Apache-2.0
"""Journals as plain data: the payloads of their lines, and lines with the hashes of others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def payloads(path: Path) -> list[Any]:
    """Return what the lines of a journal hold; the first one says what it is of."""
    return [json.loads(line.partition(b" ")[2]) for line in path.read_bytes().splitlines()]


def text(lines: list[Any]) -> bytes:
    """Return a journal of these payloads, as someone would write it who edits it on purpose."""
    found = []
    for payload in lines:
        plain = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
        found.append(hashlib.sha256(plain).hexdigest()[:16].encode() + b" " + plain + b"\n")
    return b"".join(found)


def entries(path: Path) -> dict[str, Any]:
    """Return the entries of the journal of a search, the last of each name."""
    return {name: value for line in payloads(path)[1:] for name, value in line.items()}
