# SPDX-License-Identifier: Apache-2.0
"""The functions that can be verified: the forms of UDF libraries, and those in PyTorch's wheel.

``vml``, ``sleef``, ``sleef-u35`` and ``libm`` stand for the functions libtorch calls by
symbol; ``std`` for torch's stock operators. Anything else names a UDF library or its path;
its 16-bit types are verified through torch's operators in a session.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pytest_udftorch.build.shared import Build, build_library
from pytest_udftorch.build.toolchain import FLAGS, resolve_cpu_level
from pytest_udftorch.errors import TorchNotFoundError, UdfError, UnknownFunctionError, nearest
from pytest_udftorch.library.description import UdfFunction, UdfLibrary, find_library
from pytest_udftorch.library.symbols import CPU_LEVELS, FUNCTIONS, forms
from pytest_udftorch.verify.reference.checker import compile_shared, included_files

#: Names of the stock functions in PyTorch's wheel, and the forms that each has.
STOCK: Final = {
    "vml": ("array",),
    "sleef": ("v8", "v16"),
    "sleef-u35": ("v8", "v16"),
    "libm": ("scalar",),
}
OPERATOR: Final = "operator"
SIXTEEN_BITS: Final = ("bfloat16", "float16")

# ATen/cpu/vml.h calls VML with VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE.
_VML_MODE: Final = 0x2 | 0x140000 | 0x100


class UnknownFormError(UdfError):
    """The library has no such form of the function, or this CPU cannot run it."""


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
        mode: last argument of the array form.
        build_id: identifies the build.
        library_sha256: SHA-256 of the shared library.
        source_sha256: SHA-256 over what a UDF is compiled from; of the binary otherwise.
        compiler: first line of the compiler's version.
        claim: the author's words.
        max_ulp: the author's bound in ULP, or None if nothing is claimed.
        path: the shared library on this machine; certificates do not hold it.
        hard_counter: shared library that counts hard-to-round inputs, or None.
    """

    library: str
    version: str
    function: str
    dtype: str
    form: str
    cpu_level: str
    symbol: str
    mode: int
    build_id: str
    library_sha256: str
    source_sha256: str
    compiler: str
    claim: str
    max_ulp: float | None
    path: Path
    hard_counter: Path | None = None

    @property
    def arity(self) -> int:
        """Number of arguments."""
        return FUNCTIONS[self.function].arity


@functools.cache
def _sha256(path: Path, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    return _sha256(path, path.stat().st_mtime_ns)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def source_sha256(library: UdfLibrary, function: str) -> str:
    """Return the SHA-256 over what a function is compiled from.

    These are its C source and the headers of the library that it includes, without comments
    and with white space collapsed, and the names of its entry points. A certificate is valid
    as long as this digest stays the same.

    Raises:
        ReferenceMissingError, ReferenceBuildError: see ``included_files``.
    """
    digest = hashlib.sha256()
    for dtype in ("float32", "float64"):
        described = library.functions.get((function, dtype))
        if described is None:
            continue
        entry: tuple[str | None, ...]
        entry = (dtype, described.scalar, described.fast, described.accurate)
        if described.quick is not None:
            entry += (described.quick,)
        digest.update(repr(entry).encode())
        folders = (library.folder, *library.include_dirs)
        for path in included_files(described.source, folders):
            text = _COMMENT.sub(" ", path.read_text(encoding="utf-8"))
            name = os.path.relpath(path, library.folder)
            digest.update(f"\0{name}\0{' '.join(text.split())}".encode())
    return digest.hexdigest()


def find_candidate(
    library: str,
    function: str,
    *,
    dtype: str = "float32",
    form: str | None = None,
    cpu_level: str | None = None,
    count_hard: bool = True,
) -> Candidate:
    """Build or locate one form of one function.

    Args:
        library: a UDF library's name or path, ``vml``, ``sleef``, ``sleef-u35``, ``libm`` or
            ``std``.
        function: torch's name.
        dtype: ``float32``; ``bfloat16`` and ``float16`` go through torch's operators.
        form: by default ``array``, the widest vector for SLEEF, ``scalar`` for libm,
            ``operator`` for ``std`` and for 16-bit dtypes.
        cpu_level: ``baseline``, ``avx2`` or ``avx512``; the best of this CPU by default.
        count_hard: also compile a counter of the inputs that need the accurate path.

    Raises:
        UnknownFunctionError: no such function, or the library does not have it.
        UnknownFormError: the library has no such form.
        The errors of ``find_library`` and ``build_library``.
    """
    if function not in FUNCTIONS:
        raise UnknownFunctionError(f"Unknown function {function!r}. {nearest(function, FUNCTIONS)}")
    if dtype not in ("float32", *SIXTEEN_BITS):
        raise UnknownFormError(
            f"dtype {dtype!r} cannot be verified over all its encodings. Choose float32, "
            f"{' or '.join(SIXTEEN_BITS)}; for float64 use the assertions of "
            "pytest_udftorch.rounding on a sample."
        )
    if library in STOCK and dtype == "float32":
        return _stock(library, function, form)
    described = find_library(library)
    if described.stock or dtype != "float32" or form == OPERATOR:
        return _operator(described, function, dtype, form)
    return _udf(described, function, form or "array", cpu_level, count_hard)


def _chosen(form: str | None, possible: tuple[str, ...], default: str, what: str) -> str:
    chosen = form or default
    if chosen not in possible:
        raise UnknownFormError(
            f"{what} has no form {chosen!r}. It has: {', '.join(possible) or 'none'}."
        )
    return chosen


# UDF libraries -----------------------------------------------------------------------


def _udf(
    library: UdfLibrary, function: str, form: str, cpu_level: str | None, count_hard: bool
) -> Candidate:
    library.select((function,))
    level = resolve_cpu_level(cpu_level)
    _chosen(form, forms("float32", level), "array", f"{library.name} at CPU level {level}")
    if (function, "float32") not in library.functions:
        raise UnknownFunctionError(f"UDF library {library.name!r} has no float32 {function!r}.")
    described = library.functions[function, "float32"]
    build = build_library(library, level)
    facts = json.loads((build.path.parent / "build.json").read_text(encoding="utf-8"))
    return Candidate(
        library=library.name,
        version=library.version,
        function=function,
        dtype="float32",
        form=form,
        cpu_level=level,
        symbol=FUNCTIONS[function].export("float32", form),
        mode=0,
        build_id=build.build_id,
        library_sha256=file_sha256(build.path),
        source_sha256=source_sha256(library, function),
        compiler=facts["compiler"],
        claim=described.claim or library.claim,
        max_ulp=described.max_ulp,
        path=build.path,
        hard_counter=_hard_counter(build, described) if count_hard else None,
    )


def _hard_counter(build: Build, function: UdfFunction) -> Path | None:
    """Compile a loop that counts the inputs for which the fast path reports "hard"."""
    if function.fast is None:
        return None
    two = FUNCTIONS[function.name].arity == 2
    text = (
        f'#include "{function.source}"\n'
        '__attribute__((visibility("default")))\n'
        "int64_t udfref_hard(int64_t n, const float *a, const float *b) {\n"
        "  int64_t count = 0;\n"
        "  (void)b;\n"
        "  for (int64_t i = 0; i < n; i++) {\n"
        "    int hard = 0;\n"
        f"    {function.fast}(a[i], {'b[i], ' if two else ''}&hard);\n"
        "    count += hard != 0;\n"
        "  }\n"
        "  return count;\n"
        "}\n"
    )
    library = build.library
    folders = (library.folder, *library.include_dirs)
    flags = [f for f in FLAGS if f not in ("-femit-all-decls", "-Wall")]
    flags += [*CPU_LEVELS[build.cpu_level][0], *(f"-I{d}" for d in folders), "-include", "stdint.h"]
    return compile_shared(
        f"hard-{function.name}",
        {"hard.c": text, "build": build.build_id},
        tuple(flags),
        ("-lm",),
    )


# What PyTorch ships with -------------------------------------------------------------


def torch_library() -> Path:
    """Return the path of ``libtorch_cpu.so`` without importing torch.

    Raises:
        TorchNotFoundError: torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise TorchNotFoundError(
            "torch is not installed, so its functions cannot be verified: pip install torch."
        )
    return Path(spec.origin).parent / "lib" / "libtorch_cpu.so"


def _stock(library: str, function: str, form: str | None) -> Candidate:
    known = FUNCTIONS[function]
    level = resolve_cpu_level(None)
    widest = "v16" if level == "avx512" else "v8"
    chosen = _chosen(form, STOCK[library], {"vml": "array", "libm": "scalar"}.get(library, widest),
                     library)  # fmt: skip
    if library == "libm":
        path = Path(_libm_path())
        version = (os.confstr("CS_GNU_LIBC_VERSION") or "unknown").removeprefix("glibc ")
        symbol = known.c_name("float32")
    else:
        path = torch_library()
        version = f"torch {importlib.metadata.version('torch')}"
        names = known.symbols("float32").get(chosen, ())
        suffix = "u35" if library == "sleef-u35" else None
        symbol = next((n for n in names if suffix is None or n.endswith(suffix)), "")
    candidate = Candidate(
        library=library,
        version=version,
        function=function,
        dtype="float32",
        form=chosen,
        cpu_level=level,
        symbol=symbol,
        mode=_VML_MODE if library == "vml" else 0,
        build_id=file_sha256(path)[:16],
        library_sha256=file_sha256(path),
        source_sha256=file_sha256(path),
        compiler="as shipped",
        claim="",
        max_ulp=None,
        path=path,
    )
    if not symbol or not _has_symbol(candidate):
        raise UnknownFunctionError(
            f"{library} as PyTorch ships it has no {function!r}"
            f"{f' ({symbol} is missing in {path.name})' if symbol else ''}."
        )
    return candidate


def _libm_path() -> str:
    """Return the file of the loaded C math library."""
    address = ctypes.cast(ctypes.CDLL("libm.so.6").cosf, ctypes.c_void_p).value or 0
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        for line in maps:
            fields = line.split()
            start, end = (int(x, 16) for x in fields[0].split("-"))
            if start <= address < end:
                return os.path.realpath(fields[-1])
    raise UnknownFormError("The C math library is not mapped from a file.")


def _has_symbol(candidate: Candidate) -> bool:
    try:
        address_of(candidate)
    except AttributeError:
        return False
    return True


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    if path.name == "libtorch_cpu.so":
        # Its dependencies are found only after torch's own start-up code has run.
        import torch  # noqa: F401
    return ctypes.CDLL(str(path))


def address_of(candidate: Candidate) -> int:
    """Return the address of the function in this process.

    Raises:
        AttributeError: the library does not export the symbol.
    """
    function = getattr(_load(candidate.path), candidate.symbol)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def hard_counter_address(path: Path) -> int:
    """Return the address of a compiled hard-case counter."""
    return ctypes.cast(_load(path).udfref_hard, ctypes.c_void_p).value or 0


# Torch's operators -------------------------------------------------------------------


def _operator(library: UdfLibrary, function: str, dtype: str, form: str | None) -> Candidate:
    _chosen(form, (OPERATOR,), OPERATOR, f"{dtype} of {library.name}")
    import torch

    if function not in library.function_names:
        raise UnknownFunctionError(
            f"UDF library {library.name!r} has no function {function!r}. "
            f"{nearest(function, library.function_names)}"
        )
    if library.stock:
        path, source = torch_library(), None
        build_id = file_sha256(path)[:16]
        claim, max_ulp = "", None
    else:
        build = build_library(library)
        path, build_id, source = build.path, build.build_id, source_sha256(library, function)
        claim, max_ulp = library.claim, None
        if (function, "float32") in library.functions and dtype == "float32":
            described = library.functions[function, "float32"]
            claim, max_ulp = described.claim or claim, described.max_ulp
    return Candidate(
        library=library.name,
        version=f"torch {torch.__version__}" if library.stock else library.version,
        function=function,
        dtype=dtype,
        form=OPERATOR,
        cpu_level=str(torch.backends.cpu.get_cpu_capability()),
        symbol=f"torch.{function}",
        mode=0,
        build_id=build_id,
        library_sha256=file_sha256(path),
        source_sha256=source or file_sha256(path),
        compiler="as shipped" if library.stock else "see the float32 certificate",
        claim=claim,
        max_ulp=max_ulp,
        path=library.folder,
    )


def operator_results(
    candidate: Candidate, arguments: tuple[npt.NDArray[Any], ...], *, flush: bool = False
) -> npt.NDArray[Any]:
    """Run a torch operator on encodings and return the encodings of its results.

    Args:
        candidate: of form ``operator``.
        arguments: unsigned integer arrays of the dtype's width.
        flush: run under ``torch.set_flush_denormal(True)``.
    """
    import torch

    from pytest_udftorch.session.session import patched

    library = find_library(candidate.path)
    dtype = getattr(torch, candidate.dtype)
    signed = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    session: AbstractContextManager[Any] = nullcontext()
    if not library.stock:
        session = patched(library, functions=(candidate.function,))
    width = arguments[0].dtype
    tensors = [torch.from_numpy(a.view(f"i{width.itemsize}")).view(dtype) for a in arguments]
    before = bool(torch.tensor(2.0**-140) * 1.0 == 0)
    with session:
        torch.set_flush_denormal(flush)
        try:
            result = getattr(torch, candidate.function)(*tensors)
        finally:
            torch.set_flush_denormal(before)
    return np.asarray(result.view(signed).numpy()).view(width)
