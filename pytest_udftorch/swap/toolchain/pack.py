# SPDX-License-Identifier: Apache-2.0
"""A copy of CUDA's ``libdevice`` that has the functions of every shipped library side by side.

A session needs a copy in which ``__nv_expf`` is a UDF if the session swaps exp, and the stock
function if not. There are too many selections to ship a copy for each, and a machine without LLVM
cannot make one. So one copy is shipped, the *pack*. In it ``__nv_expf`` is the stock function, and
the UDF of the library number i is called ``__n<i>_expf``. Bitcode keeps the names of functions as
plain bytes in a table of strings, apart from the functions. The pack becomes the copy for a
selection if the two names, which are equally long, change places.

No function of libdevice calls another that a session can swap, so exchanging names changes no other
function.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import CudaFormError
from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.toolchain import bitcode, cache
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.compiler import Compiler, tool
from pytest_udftorch.swap.toolchain.job import Step, run_stages

#: The libraries in a pack, by number.
LIBRARIES: Final = ("corem", "corem-ff", "canary")

OUTPUT: Final = "libdevice.10.bc"

#: Raise it when packs change.
_VERSION: Final = 1

Chosen = Sequence[tuple[UdfLibrary, Sequence[tuple[str, str]]]]


def names(function: str, parts: Sequence[str]) -> list[str]:
    """Return the names in libdevice of a function and of its parts."""
    c_name = FUNCTIONS[function].c_name("float32")
    return [f"__nv_{c_name}", *(f"__nv_udf_{c_name}_{part}" for part in parts)]


def own_name(name: str, number: int) -> str:
    """Return what a name in libdevice is called for the library with a number."""
    return f"__n{number}_{name.removeprefix('__nv_')}"


def libraries() -> list[UdfLibrary]:
    """Return the libraries in a pack."""
    return [find_library(name) for name in LIBRARIES]


def recipe(single: Sequence[str]) -> str:
    """Return the recipe of a pack from those of the copies that it is made of."""
    return hashlib.sha256(json.dumps([_VERSION, *single]).encode()).hexdigest()


def find(chosen: Chosen, parts: Sequence[str], wanted: Callable[[], str]) -> Path | None:
    """Return a copy for a selection that is made of a shipped pack, or None if none applies.

    Args:
        chosen: libraries with the functions that are taken from each.
        parts: the parts of a function; see ``libdevice.SPLIT``.
        wanted: returns the recipe of the pack.

    Raises:
        CacheError: the cache cannot be written, or the shipped pack is damaged.
    """
    if not prebuilt.stores():
        return None
    numbers = {library.folder: i for i, library in enumerate(libraries())}
    if any(library.folder not in numbers for library, _ in chosen):
        return None
    if (found := prebuilt.find(wanted(), {})) is None:
        return None
    folder, facts = found
    pairs = [
        (name, own_name(name, numbers[library.folder]))
        for library, keys in chosen
        for function, _ in keys
        for name in names(function, parts)
    ]
    key = hashlib.sha256(json.dumps([facts["files"], pairs]).encode()).hexdigest()[:16]
    target = cache.cache_folder() / f"libdevice-pack-{key}"

    def make(scratch: Path) -> Mapping[str, Any]:
        (scratch / OUTPUT).write_bytes(exchanged((folder / OUTPUT).read_bytes(), pairs))
        return {}

    cache.fill(target, make)
    return target / OUTPUT


def exchanged(content: bytes, pairs: Sequence[tuple[str, str]]) -> bytes:
    """Return a pack in which names have changed places.

    Raises:
        CudaFormError: a name is not there exactly once.
    """
    result = bytearray(content)
    for pair in pairs:
        stock, own = (_place(content, name) for name in pair)
        result[stock : stock + len(pair[0])] = pair[1].encode()
        result[own : own + len(pair[1])] = pair[0].encode()
    return bytes(result)


def _place(content: bytes, name: str) -> int:
    place = content.find(name.encode())
    if place < 0 or content.find(name.encode(), place + 1) >= 0:
        raise CudaFormError(
            f"The shipped functions for GPUs have {name} not exactly once. Reinstall "
            "pytest_udftorch, or install clang, lld and LLVM's tools."
        )
    return place


# Making a pack -----------------------------------------------------------------------


def make(
    stock: Path, copies: Sequence[Path], parts: Sequence[str], compiler: Compiler, wanted: str
) -> Path:
    """Return the folder of a pack in the cache, and make the pack first if it is missing.

    Args:
        stock: the ``libdevice.10.bc`` that triton ships.
        copies: one for each library, in which all its functions are swapped.
        parts: see :func:`find`.
        compiler: clang with the pass plugin.
        wanted: the recipe.

    Raises:
        SourceError, CudaFormError, CacheError: it cannot be made.
    """
    key = hashlib.sha256(json.dumps([wanted, compiler.identity]).encode()).hexdigest()[:16]
    folder = cache.cache_folder() / f"pack-{key}"

    def write(scratch: Path) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory(dir=scratch) as work:
            texts, stages = _steps(stock, copies, parts, compiler)
            run_stages(stages, texts, Path(work), bitcode.failed)
            shutil.copyfile(Path(work, OUTPUT), scratch / OUTPUT)
        content = (scratch / OUTPUT).read_bytes()
        for number, library in enumerate(libraries()):
            for function in library.function_names:
                for name in names(function, parts):
                    _place(content, name)
                    _place(content, own_name(name, number))
        return {"compiler": compiler.version, "file": OUTPUT, "seconds": 0.0}

    cache.fill(folder, write)
    return folder


def _steps(
    stock: Path, copies: Sequence[Path], parts: Sequence[str], compiler: Compiler
) -> tuple[dict[str, str], list[list[Step]]]:
    opt, load = tool(compiler, "opt"), f"-load-pass-plugin={compiler.plugin}"
    every = ",".join(names(function, ())[0] for function in FUNCTIONS)
    first = [
        Step(
            opt,
            (load, "-passes=udf-split,verify", f"-udf-split-functions={every}", str(stock), "-o",
             "stock.bc"),
        )
    ]  # fmt: skip
    second, pieces, texts = [], ["stock.bc"], {}
    for number, (copy, library) in enumerate(zip(copies, libraries(), strict=True)):
        kept = [name for f in library.function_names for name in names(f, parts)]
        first.append(
            Step(
                opt,
                ("-passes=internalize,globaldce", f"-internalize-public-api-list={','.join(kept)}",
                 str(copy), "-o", f"{number}.bc"),
            )
        )  # fmt: skip
        texts[f"{number}.map"] = "".join(
            f"function: {{ source: {name}, target: {own_name(name, number)} }}\n" for name in kept
        )
        pieces.append(f"{number}-own.bc")
        second.append(
            Step(
                opt,
                ("-passes=rewrite-symbols", f"-rewrite-map-file={number}.map", f"{number}.bc", "-o",
                 pieces[-1]),
            )
        )  # fmt: skip
    link = Step(tool(compiler, "llvm-link"), (*pieces, "-o", "linked.bc"))
    strip = Step(opt, ("-passes=strip-dead-prototypes,verify", "linked.bc", "-o", OUTPUT))
    return texts, [first, second, [link], [strip]]
