# SPDX-License-Identifier: Apache-2.0
"""What the pass ``udf-instrument`` watches, and the sources that its output needs.

There are manifests for UDF libraries, whose forms ``udf-widen`` makes, and for the watch library,
whose functions call the stock ones. docs/swap/passes.md describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.swap.library.description import UdfFunction
from pytest_udftorch.swap.library.symbols import (
    C_TYPES,
    COMPOSITES,
    DTYPES,
    FUNCTIONS,
    KNOWN,
    forms,
)
from pytest_udftorch.swap.native.runtime import native_file

#: Forms in the order of their numbers, as in udfprof.h; ``CELL_FORMS`` of the records has one more.
FORMS: Final = ("scalar", "v4", "v8", "v16", "array")

#: Functions by number; 0 means none. ``StringTable`` begins with the same strings.
WATCHED: Final = ("", *FUNCTIONS, "sincos", *COMPOSITES)

#: Elements of an array that are watched and computed at a time: input and output together
#: take 8 KiB (float32) or 16 KiB (float64) of the first-level cache.
CHUNK: Final = 1024

#: Function -> the range of arguments, for float32 and float64, in which its results are normal
#: numbers and monotonic. There, generated code does not inspect the result. It always inspects
#: arguments that are zero or subnormal. exp(x) is normal from ln of the smallest normal number
#: (-87.34, -708.4) to ln of the largest (88.72, 709.78), exp2(x) from -126 and -1022 to 128 and
#: 1024. expm1 and sinh end as exp does, and erfc(x) is normal below 9.19 and 26.54. Near zero all
#: others are close to x, and erf to 1.13 x, so a normal argument has a normal result. Logarithms
#: (0 at 1) and functions that are not monotonic have no such range.
ORDINARY: Final[dict[str, tuple[tuple[float, float], tuple[float, float]]]] = {
    "exp": ((-87.0, 88.0), (-708.0, 709.0)),
    "exp2": ((-126.0, 127.0), (-1022.0, 1023.0)),
    "expm1": ((-1e30, 88.0), (-1e300, 709.0)),
    "sinh": ((-88.0, 88.0), (-709.0, 709.0)),
    "tanh": ((-1e30, 1e30), (-1e300, 1e300)),
    "asinh": ((-1e30, 1e30), (-1e300, 1e300)),
    "atan": ((-1e30, 1e30), (-1e300, 1e300)),
    "erf": ((-1e30, 1e30), (-1e300, 1e300)),
    "erfc": ((-1e30, 9.0), (-1e300, 26.0)),
    "log1p": ((-0.99, 1e30), (-0.99, 1e300)),
    "asin": ((-1.0, 1.0), (-1.0, 1.0)),
    "atanh": ((-0.99, 0.99), (-0.99, 0.99)),
}

#: Those of them with f(0) = 1 and f(-inf) = 0, which softmax computes in every row.
EXPONENTIAL: Final = ("exp", "exp2")


def slot(function: str, dtype: str, form: str) -> int:
    """Return the number of the cell, as stated at ``UDFPROF_SLOTS`` in udfprof.h."""
    number = (WATCHED.index(function) * len(DTYPES) + DTYPES.index(dtype)) * len(FORMS)
    return number + FORMS.index(form)


def entry(
    symbol: str, function: str, dtype: str, form: str, chunk: int, *, ordinary: bool
) -> dict[str, Any]:
    """Return the manifest's entry for one function of the module.

    ``ordinary`` says whether the function behaves as ``ORDINARY`` states.
    """
    joint = function == "sincos"
    more: dict[str, Any] = {}
    if ordinary and function in ORDINARY and form != "array":
        more["ordinary"] = list(ORDINARY[function][DTYPES.index(dtype)])
        if function in EXPONENTIAL:
            more["exponential"] = True
    return {
        **more,
        "symbol": symbol,
        "form": "sincos" if joint else form,
        "type": C_TYPES[dtype],
        "arity": 1 if joint else KNOWN[function].arity,
        "slot": slot(function, dtype, form),
        "chunk": chunk,
    }


def instrument_manifest(functions: Iterable[UdfFunction], level: str) -> dict[str, Any]:
    """Return the manifest for the forms of a UDF library at a CPU level.

    The joint form of sin and cos has no entry: it calls their scalar forms.
    """
    watched = []
    for f in functions:
        for form in forms(f.dtype, level):
            if form not in FORMS:  # ``vx`` has no cell: profiles were not tried with SVE
                continue
            symbol = KNOWN[f.name].export(f.dtype, form)
            # Correct rounding keeps the order of results. Nothing is known of other functions.
            ordinary = f.max_ulp == 0.5
            watched.append(entry(symbol, f.name, f.dtype, form, CHUNK, ordinary=ordinary))
    return {"watch": watched}


def observe_source() -> tuple[Path, Path]:
    """Return observe.c, which is compiled into each profiled library, and its header."""
    return native_file("observe.c"), native_file("udfprof.h")


def team_source() -> Path:
    """Return team.c, which is linked into what Inductor compiles."""
    return native_file("team.c")


def link_inputs() -> list[str]:
    """Return what a profiled library is linked with: the runtime that holds its cells."""
    return [str(native_file("libudfrt.so"))]
