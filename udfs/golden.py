# SPDX-License-Identifier: Apache-2.0
"""Write golden.json of corem and canary: results at the inputs of the canary operators.

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
from pytest_udftorch.build.golden import rows
from pytest_udftorch.rounding import correctly_rounded

UDFS = Path(__file__).parent


def results(function: str, *, canary: bool) -> str:
    """Return the encodings of a float32 function's results in hex."""
    columns = tuple(np.array(row, dtype=np.float32) for row in rows(function))
    encodings = correctly_rounded(columns if len(columns) > 1 else columns[0], function=function)
    if canary:
        values = encodings.view(np.float32)
        encodings = encodings ^ (np.isfinite(values) & (values != 0)).astype(np.uint32)
    return encodings.astype(">u4").tobytes().hex()


def document(library: str) -> dict[str, dict[str, str]]:
    """Return what the file of a library holds."""
    names = find_library(str(UDFS / library)).function_names
    return {"float32": {name: results(name, canary=library.startswith("canary")) for name in names}}


def main() -> None:
    """Write the files."""
    for library in ("corem", "canary", "corem-composites", "canary-composites"):
        path = UDFS / library / "golden.json"
        path.touch()  # the library names it
        path.write_text(json.dumps(document(library), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
