# SPDX-License-Identifier: Apache-2.0
"""Copies of CUDA's ``libdevice`` with UDFs of LLVM's text, made by llvmlite without clang.

``libdevice`` makes such a copy with clang and the passes. A UDF that is one scalar function needs
neither: here its text is linked into the library, and a function with the name of CUDA's calls it.
No function of libdevice calls another that a session can swap, so nothing else changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import CudaFormError
from pytest_udftorch.swap.library.description import UdfFunction, UdfLibrary
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.toolchain import cache
from pytest_udftorch.swap.toolchain.llvmlite_forms import applies, binding

_OUTPUT: Final = "libdevice.10.bc"

#: Raise it when the copies change.
_VERSION: Final = 1

#: What is kept of the attributes of functions.
_ATTRIBUTES: Final = ("alwaysinline", "noinline", "nounwind", "convergent")

#: Intrinsics that are no instructions of a GPU, or approximate ones: those of GpuCalls.cpp.
_OF_MATH: Final = (
    "acos", "asin", "atan", "atan2", "cos", "cosh", "exp", "exp10", "exp2", "log", "log10", "log2",
    "pow", "powi", "sin", "sinh", "tan", "tanh", "sincos", "sincospi", "modf",
)  # fmt: skip

Chosen = Sequence[tuple[UdfLibrary, Sequence[tuple[str, str]]]]


def serves(chosen: Chosen) -> bool:
    """Tell whether the functions of a selection can be put into a libdevice here."""
    return all(applies(library) for library, _ in chosen)


def copy_with(chosen: Chosen, stock: Path) -> Path:
    """Return a copy of a libdevice in which the chosen functions are UDFs.

    Args:
        chosen: libraries with the functions that are taken from each; they are of float32.
        stock: the ``libdevice.10.bc`` that triton ships.

    Raises:
        CudaFormError: llvmlite cannot read ``stock`` or a UDF, or ``stock`` lacks a function, or
            a UDF calls something that a GPU does not have.
        CacheError: the cache folder cannot be written.
    """
    functions = [library.functions[key] for library, keys in chosen for key in keys]
    texts = [f.source.read_text(encoding="utf-8") for f in functions]
    said = [_VERSION, list(binding().llvm_version_info), cache.sha256_of(stock), texts]
    key = hashlib.sha256(json.dumps([*said, [f.name for f in functions]]).encode()).hexdigest()[:16]
    folder = cache.cache_folder() / f"libdevice-llvmlite-{key}"

    def make(scratch: Path) -> Mapping[str, Any]:
        (scratch / _OUTPUT).write_bytes(_linked(functions, texts, stock))
        return {}

    cache.fill(folder, make)
    return folder / _OUTPUT


def _linked(functions: Sequence[UdfFunction], texts: Sequence[str], stock: Path) -> bytes:
    llvm = binding()
    try:
        whole = str(llvm.parse_bitcode(stock.read_bytes()))
        for function in functions:
            name = f"__nv_{FUNCTIONS[function.name].c_name(function.dtype)}"
            whole, count = re.subn(rf"@{name}\b", f"@{name}.stock", whole)
            if not count:
                raise CudaFormError(
                    f"{stock}, which comes with triton, does not define {name}: Triton kernels "
                    "would go on calling something else. Choose other functions."
                )
        module = llvm.parse_assembly(whole)
        udfs = [_udf(function, t, module) for function, t in zip(functions, texts, strict=True)]
        missing = sorted(set().union(*map(_missing, udfs)))
        for udf in () if missing else udfs:
            module.link_in(udf)
        module.verify()
    except RuntimeError as error:
        raise CudaFormError(
            f"The functions cannot be put into {stock}, which comes with triton: {error} Install "
            "clang, lld and LLVM's tools, or a Numba whose LLVM is nearer to triton's."
        ) from error
    if missing:
        raise CudaFormError(
            f"A UDF calls {', '.join(missing)}, which a GPU does not have. Write it without the C "
            "library, or leave the function out of sessions that use Triton."
        )
    return _older(str(module)).encode()


def _older(text: str) -> str:
    """Return a module's text as the older LLVM in a triton reads it too, which also takes bitcode.

    What newer LLVMs write and older ones reject are hints, which each LLVM finds again.
    """
    text = re.sub(r"^;.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(attributes #\d+ = \{)(.*)\}$", _plain_attributes, text, flags=re.MULTILINE)
    for new, old in ((" captures(none)", ""), (" nocapture", ""), ("icmp samesign ", "icmp ")):
        text = text.replace(new, old)
    return text


def _plain_attributes(found: re.Match[str]) -> str:
    kept = [word for word in found[2].split() if word in _ATTRIBUTES]
    return f"{found[1]} {' '.join(kept or _ATTRIBUTES[2:3])} }}"


def _missing(module: Any) -> set[str]:
    """Return what a UDF calls that a GPU does not have, as the pass ``udf-gpu-calls`` does."""
    found = set()
    for name in (f.name for f in module.functions if f.is_declaration):
        base = name.removeprefix("llvm.").partition(".")[0]
        if not name.startswith("llvm.") or base in _OF_MATH:
            found.add(base)
    return found


def _udf(function: UdfFunction, text: str, libdevice: Any) -> Any:
    """Return the module of a UDF, in which the only visible function has CUDA's name."""
    known = FUNCTIONS[function.name]
    given = ", ".join(f"float %x{i}" for i in range(known.arity))
    name = f"__nv_{known.c_name(function.dtype)}"
    module = binding().parse_assembly(
        f"{text}\ndefine float @{name}({given}) alwaysinline nounwind {{\n"
        f"  %y = call float @{function.scalar}({given})\n  ret float %y\n}}\n"
    )
    module.triple, module.data_layout = libdevice.triple, libdevice.data_layout
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != name:
            value.linkage = "internal"
    module.get_function(function.scalar).add_function_attribute("alwaysinline")
    return module
