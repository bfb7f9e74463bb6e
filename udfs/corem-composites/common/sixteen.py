# SPDX-License-Identifier: Apache-2.0
"""Write sixteen.json: where rounding a correct float32 result to 16 bits is wrong.

    python udfs/corem-composites/common/sixteen.py

All 65,536 inputs of each function are computed by MPFR twice: rounded to the format, and rounded to
float32 and then to the format.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pytest_udftorch.exact.formats import FORMATS, decode, encode
from pytest_udftorch.exact.rounding import mpfr_rounded
from pytest_udftorch.exact.ziv import round_dyadic
from pytest_udftorch.library.symbols import COMPOSITES


def rounded_twice(function: str, inputs: np.ndarray, dtype: str) -> np.ndarray:
    """Return the encodings of the float32 results, rounded to the format."""
    fmt, wide = FORMATS[dtype], FORMATS["float32"]
    results = mpfr_rounded(function, [encode(decode(inputs, fmt), wide)], wide)
    found = []
    for value in decode(results, wide).tolist():
        if not np.isfinite(value):
            found.append(int(encode(np.array([value]), fmt)[0]))
            continue
        sign = fmt.sign_bit if np.signbit(value) else 0
        numerator, denominator = abs(value).as_integer_ratio()
        exponent = 1 - denominator.bit_length()
        found.append(sign | (round_dyadic(numerator, exponent, fmt) if numerator else 0))
    return np.array(found, dtype=fmt.dtype)


def wrong(function: str, dtype: str) -> dict[str, str]:
    """Return the inputs at which the second rounding is wrong, and the right results."""
    inputs = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    want = mpfr_rounded(function, [inputs], FORMATS[dtype])
    at = np.flatnonzero(rounded_twice(function, inputs, dtype) != want)
    return {
        "at": "".join(f"{i:04x}" for i in at),
        "result": "".join(f"{int(w):04x}" for w in want[at]),
    }


def main() -> None:
    """Write the file."""
    document = {
        dtype: {name: wrong(name, dtype) for name in COMPOSITES}
        for dtype in ("bfloat16", "float16")
    }
    path = Path(__file__).parents[1] / "sixteen.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
