# SPDX-License-Identifier: Apache-2.0
"""Write golden.json of corem, canary and others: results at the inputs of the canary operators.

    python udfs/golden.py

No library is built for it. MPFR computes the correctly rounded results, which are corem's; those
of canary have the lowest bit of every finite, nonzero result inverted. The composites of both have
files of their own.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pytest_udftorch import find_library
from pytest_udftorch.prove import correctly_rounded
from pytest_udftorch.swap.toolchain.golden import rows

UDFS = Path(__file__).parent
LIBRARIES = (
    "corem", "canary", "corem-composites", "canary-composites", "corem-d", "canary-d",
)  # fmt: skip


def results(function: str, dtype: str, *, canary: bool) -> str:
    """Return the encodings of a function's results in hex."""
    columns = tuple(np.array(row, dtype=dtype) for row in rows(function))
    encodings = correctly_rounded(columns if len(columns) > 1 else columns[0], function=function)
    if canary:
        values = encodings.view(dtype)
        encodings = encodings ^ (np.isfinite(values) & (values != 0)).astype(encodings.dtype)
    return encodings.astype(encodings.dtype.newbyteorder(">")).tobytes().hex()


def document(library: str) -> dict[str, dict[str, str]]:
    """Return what the file of a library holds."""
    found: dict[str, dict[str, str]] = {}
    for name, dtype in find_library(str(UDFS / library)).functions:
        value = results(name, dtype, canary=library.startswith("canary"))
        found.setdefault(dtype, {})[name] = value
    return found


def main() -> None:
    """Write the files."""
    for library in LIBRARIES:
        path = UDFS / library / "golden.json"
        path.touch()  # the library names it
        path.write_text(json.dumps(document(library), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
