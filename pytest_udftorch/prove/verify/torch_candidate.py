# SPDX-License-Identifier: Apache-2.0
"""What PyTorch calls and offers, as candidates: VML, SLEEF, the C library, and operators."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import TorchNotFoundError, UnknownFunctionError, VerifyError, nearest
from pytest_udftorch.prove.verify.candidate import (
    OPERATOR,
    STOCK,
    Candidate,
    address,
    chosen_form,
    file_sha256,
)
from pytest_udftorch.prove.verify.udf_candidate import source_sha256
from pytest_udftorch.swap.cpu.composites import operator as composite_operator
from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.library.symbols import COMPOSITES, FUNCTIONS
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from pytest_udftorch.swap.toolchain.shared_library import build_library

# ATen/cpu/vml.h calls VML with VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE.
_VML_MODE: Final = 0x2 | 0x140000 | 0x100


def torch_library() -> Path:
    """Return the path of ``libtorch_cpu.so`` without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise TorchNotFoundError(
            "torch is not installed, so its functions cannot be verified: pip install torch."
        )
    return Path(spec.origin).parent / "lib" / "libtorch_cpu.so"


def _shipped(binary: Path, **facts: Any) -> Candidate:
    """Return a candidate whose binary was built elsewhere; the file itself is its source."""
    sha256 = file_sha256(binary)
    return Candidate(
        build_id=sha256[:16],
        library_sha256=sha256,
        source_sha256=sha256,
        compiler="as shipped",
        **{"path": binary, **facts},
    )


def shipped_candidate(library: str, function: str, form: str | None) -> Candidate:
    """Return a function that libtorch calls by symbol; see ``find_candidate``."""
    known = FUNCTIONS[function]
    level = resolve_cpu_level(None)
    widest = "v16" if level == "avx512" else "v8"
    default = {"vml": "array", "libm": "scalar"}.get(library, widest)
    chosen = chosen_form(form, STOCK[library], default, library)
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
    try:
        found = bool(symbol and address(path, symbol))
    except AttributeError:
        found = False
    if not found:
        raise UnknownFunctionError(
            f"{library} as PyTorch ships it has no {function!r}"
            f"{f' ({symbol} is missing in {path.name})' if symbol else ''}."
        )
    return _shipped(
        path,
        library=library,
        version=version,
        function=function,
        dtype="float32",
        form=chosen,
        cpu_level=level,
        symbol=symbol,
        mode=_VML_MODE if library == "vml" else 0,
    )


def _libm_path() -> str:
    """Return the file of the loaded C math library."""
    mapped = address(Path("libm.so.6"), "cosf")
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        for line in maps:
            fields = line.split()
            start, end = (int(x, 16) for x in fields[0].split("-"))
            if start <= mapped < end:
                return os.path.realpath(fields[-1])
    raise VerifyError("The C math library is not mapped from a file.")


# Operators ---------------------------------------------------------------------------


def operator_candidate(
    library: UdfLibrary, function: str, dtype: str, form: str | None
) -> Candidate:
    """Return torch's operator of a function; see ``find_candidate``."""
    chosen_form(form, (OPERATOR,), OPERATOR, f"{dtype} of {library.name}")
    import torch

    if function not in library.function_names:
        raise UnknownFunctionError(
            f"UDF library {library.name!r} has no function {function!r}. "
            f"{nearest(function, library.function_names)}"
        )
    names: dict[str, Any] = {
        "library": library.name,
        "function": function,
        "dtype": dtype,
        "form": OPERATOR,
        "cpu_level": str(torch.backends.cpu.get_cpu_capability()),
        "symbol": f"torch.{function}",
    }
    if library.stock:
        version = f"torch {torch.__version__}"
        return _shipped(torch_library(), version=version, path=library.folder, **names)
    build = build_library(library)
    described = library.functions.get((function, "float32")) if dtype == "float32" else None
    return Candidate(
        **names,
        version=library.version,
        build_id=build.build_id,
        library_sha256=file_sha256(build.path),
        source_sha256=source_sha256(library, function),
        compiler="see the float32 certificate",
        path=library.folder,
        claim=(described and described.claim) or library.claim,
        max_ulp=described.max_ulp if described else None,
    )


def _operator(torch: Any, function: str) -> Any:
    if function in COMPOSITES:
        return composite_operator(torch, function)
    return getattr(torch, function)


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

    from pytest_udftorch.swap.session.session import patched

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
            result = _operator(torch, candidate.function)(*tensors)
        finally:
            torch.set_flush_denormal(before)
    return np.asarray(result.view(signed).numpy()).view(width)
