# SPDX-License-Identifier: Apache-2.0
"""Write sixteen.json: where rounding a correct float32 result to 16 bits is wrong.

    python udfs/sixteen.py corem corem-composites

All 65,536 inputs of each function are computed by MPFR twice: rounded to the format, and rounded to
float32 and then to the format.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from pytest_udftorch import find_library
from pytest_udftorch.prove.exact.formats import FORMATS, decode, encode
from pytest_udftorch.prove.exact.rounding import mpfr_rounded
from pytest_udftorch.prove.exact.ziv import round_dyadic
from pytest_udftorch.swap.library.symbols import COMPOSITES, FUNCTIONS


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


def document(library: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return dtype -> function of one argument -> what ``wrong`` finds; only where it finds any."""
    arity = dict.fromkeys(COMPOSITES, 1) | {name: f.arity for name, f in FUNCTIONS.items()}
    names = sorted({name for name, _ in find_library(library).functions if arity[name] == 1})
    found = {d: {name: wrong(name, d) for name in names} for d in ("bfloat16", "float16")}
    return {d: {n: w for n, w in words.items() if w["at"]} for d, words in found.items()}


def main() -> None:
    """Write the files of the libraries that are named."""
    for name in sys.argv[1:]:
        folder = Path(__file__).parent / name
        text = json.dumps(document(str(folder)), indent=1)
        (folder / "sixteen.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
