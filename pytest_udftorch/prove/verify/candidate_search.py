# SPDX-License-Identifier: Apache-2.0
"""Finding candidates: in UDF libraries, in PyTorch's wheel, and among torch's operators.

``vml``, ``sleef``, ``sleef-u35`` and ``libm`` stand for the functions that libtorch calls by
symbol, and ``std`` for torch's stock operators. Anything else names a UDF library or its path.
Torch's operators in a session verify its 16-bit types.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from pytest_udftorch.errors import UnknownFunctionError, VerifyError, nearest
from pytest_udftorch.prove.verify.candidate import OPERATOR, SIXTEEN_BITS, STOCK, Candidate
from pytest_udftorch.prove.verify.torch_candidate import operator_candidate, shipped_candidate
from pytest_udftorch.prove.verify.udf_candidate import udf_candidate
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, FUNCTIONS, KNOWN, forms
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

Reference = Literal["auto", "llvmlibc", "libm", "mpfr"]


@dataclass(frozen=True)
class Request:
    """How a function is to be verified.

    Attributes:
        dtype: ``float32``; ``bfloat16`` and ``float16`` go through torch's operators.
        form: by default ``array``, the widest vector for SLEEF, ``scalar`` for libm,
            ``operator`` for ``std`` and for 16-bit dtypes.
        cpu_level: ``baseline``, ``avx2`` or ``avx512``; the best of this CPU by default.
        reference: ``auto`` takes LLVM-libc if it has the function, else the C library.
        flush: flush denormals while the candidate runs.
        garbage: fill all lanes of a vector but one with random numbers.
        sparse: set every input among easy ones, so that no block is repaired as a whole.
        chunk_bits: a chunk has 2**chunk_bits inputs; 2**24 take some tenths of a second.
        pairs: inputs of a function of two arguments.
        seed: of the pairs.
        count_hard: count the inputs that a UDF's fast path leaves to the accurate one.
    """

    dtype: str = "float32"
    form: str | None = None
    cpu_level: str | None = None
    reference: Reference = "auto"
    flush: bool = False
    garbage: bool = False
    sparse: bool = False
    chunk_bits: int = 24
    pairs: int = 2**30
    seed: int = 0
    count_hard: bool = True


DEFAULTS: Final = Request()


def find_candidate(library: str, function: str, request: Request = DEFAULTS) -> Candidate:
    """Build or locate one form of one function.

    Args:
        library: a UDF library's name or path, ``vml``, ``sleef``, ``sleef-u35``, ``libm`` or
            ``std``.
        function: torch's name.
        request: which dtype, form and CPU level, and whether to count hard inputs.

    Raises:
        UnknownFunctionError: no such function, or the library does not have it.
        VerifyError: the library has no such form.
        The errors of ``find_library`` and ``build_library``.
    """
    if function not in KNOWN:
        raise UnknownFunctionError(f"Unknown function {function!r}. {nearest(function, KNOWN)}")
    dtype, form = request.dtype, request.form
    if dtype not in ("float32", *SIXTEEN_BITS):
        raise VerifyError(
            f"dtype {dtype!r} cannot be verified over all its encodings. Choose float32, "
            f"{' or '.join(SIXTEEN_BITS)}; for float64 use the assertions of "
            "pytest_udftorch.prove on a sample."
        )
    if library in STOCK and dtype == "float32":
        return shipped_candidate(library, function, form)
    described = find_library(library)
    if described.stock or dtype != "float32" or form == OPERATOR:
        return operator_candidate(described, function, dtype, form)
    return udf_candidate(described, function, form, request.cpu_level, request.count_hard)


def functions_of(library: str, dtype: str) -> tuple[str, ...]:
    """Return the functions of a library that can be verified in a dtype."""
    if dtype in SIXTEEN_BITS:
        # A function of two arguments has 2**32 pairs there.
        names = find_library(library).function_names
        return tuple(name for name in names if KNOWN[name].arity == 1)
    if library not in STOCK:
        return find_library(library).function_names
    found = []
    for name in FUNCTIONS:
        with suppress(UnknownFunctionError):
            found.append(find_candidate(library, name).function)
    return tuple(found)


def forms_of(library: str, cpu_level: str | None) -> Sequence[str]:
    """Return the forms of a library at a CPU level."""
    return STOCK.get(library) or forms("float32", resolve_cpu_level(cpu_level))


def cpu_levels() -> list[str]:
    """Return the CPU levels that this CPU has."""
    names = list(CPU_LEVELS)
    return names[: names.index(resolve_cpu_level(None)) + 1]
