# SPDX-License-Identifier: Apache-2.0
"""What can be verified: one form of one function of one binary."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import VerifyError
from pytest_udftorch.swap.library.symbols import KNOWN

#: Names of the stock functions in PyTorch's wheel, and the forms that each has.
STOCK: Final = {
    "vml": ("array",),
    "sleef": ("v8", "v16"),
    "sleef-u35": ("v8", "v16"),
    "libm": ("scalar",),
}
OPERATOR: Final = "operator"
SIXTEEN_BITS: Final = ("bfloat16", "float16")


@dataclass(frozen=True)
class Candidate:
    """One form of one function of one binary.

    Attributes:
        library: name of the library.
        version: its version.
        function: torch's name of the function.
        dtype: ``float32``, or ``bfloat16`` or ``float16`` for operators.
        form: ``array``, ``scalar``, ``v8``, ``v16`` or ``operator``.
        cpu_level: what it was compiled for, or what torch dispatches on.
        symbol: the exported name, or the operator's.
        build_id: identifies the build.
        library_sha256: SHA-256 of the shared library.
        source_sha256: SHA-256 over what a UDF is compiled from, or of another binary.
        compiler: first line of the compiler's version.
        path: the shared library on this machine; certificates do not hold it.
        mode: last argument of the array form.
        claim: the author's words.
        max_ulp: the author's bound in ULP, or None if nothing is claimed.
        hard_counter: shared library that counts hard-to-round inputs, or None.
        short_sha256: of the scalar form, SHA-256 over what its short path is compiled from, if
            that lies in a file of its own; else None.
        quick_sha256: of the other forms, SHA-256 over what the quick path of the CPU level is
            compiled from, if that lies in a file of its own; else None.
    """

    library: str
    version: str
    function: str
    dtype: str
    form: str
    cpu_level: str
    symbol: str
    build_id: str
    library_sha256: str
    source_sha256: str
    compiler: str
    path: Path
    mode: int = 0
    claim: str = ""
    max_ulp: float | None = None
    hard_counter: Path | None = None
    short_sha256: str | None = None
    quick_sha256: str | None = None

    @property
    def arity(self) -> int:
        """Number of arguments."""
        return KNOWN[self.function].arity


def chosen_form(form: str | None, possible: Sequence[str], default: str, what: str) -> str:
    """Return a form or its default.

    Raises:
        VerifyError: ``what`` does not have it.
    """
    chosen = form or default
    if chosen not in possible:
        raise VerifyError(
            f"{what} has no form {chosen!r}. It has: {', '.join(possible) or 'none'}."
        )
    return chosen


@functools.cache
def _sha256(path: Path, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    return _sha256(path, path.stat().st_mtime_ns)


def count_hard(counter: int, columns: Sequence[npt.NDArray[np.float32]]) -> int:
    """Return how many inputs a hard counter at an address counts; one array per argument."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    pointers = columns[0].ctypes.data, columns[-1].ctypes.data
    return int(prototype(counter)(columns[0].size, *pointers))


@functools.cache
def address(path: Path, symbol: str) -> int:
    """Return the address of a shared library's function in this process.

    Raises:
        AttributeError: the library does not export the symbol.
    """
    if path.name == "libtorch_cpu.so":
        # The loader finds its dependencies only after torch's own start-up code has run.
        import torch  # noqa: F401
    return ctypes.cast(getattr(ctypes.CDLL(str(path)), symbol), ctypes.c_void_p).value or 0
