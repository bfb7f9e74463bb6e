# SPDX-License-Identifier: Apache-2.0
"""Functions that watch others: they call them by pointer and count what goes in and out.

The *watch library* has one for each function, dtype and form, instrumented by ``udf-instrument``.
When ``std`` is profiled, they stand in for the stock functions of libtorch. When a library is
profiled whose forms llvmlite made, they stand in for these: that library cannot be instrumented,
since the pass runs inside clang, but the watch library can be shipped.
"""

from __future__ import annotations

import ctypes
import functools
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import NativeError
from pytest_udftorch.swap.library.symbols import C_TYPES, CPU_LEVELS, DTYPES, FUNCTIONS, forms
from pytest_udftorch.swap.native.manifest import entry, link_inputs, observe_source
from pytest_udftorch.swap.native.runtime import load_built
from pytest_udftorch.swap.toolchain import cache
from pytest_udftorch.swap.toolchain.compiler import FLAGS, LINK_FLAGS, Compiler, find_compiler
from pytest_udftorch.swap.toolchain.job import Job, Step, obtain
from pytest_udftorch.swap.toolchain.torch_part import HEADERS_NEEDED


@dataclass(frozen=True)
class Stock:
    """A stock function that libtorch calls.

    Attributes:
        symbol: its name, followed by ``@`` and the version asked for, if any.
        function: torch's name, or ``sincos``.
        dtype: ``float32`` or ``float64``.
        form: ``scalar``, ``v<lanes>`` or ``array``.
        address: of the function itself.
    """

    symbol: str
    function: str
    dtype: str
    form: str
    address: int


@dataclass(frozen=True)
class Watch:
    """The watch library: symbol -> address of the function that watches it."""

    build_id: str
    addresses: dict[str, int]


def watch(stock: Sequence[Stock], level: str) -> Watch:
    """Return functions that call the stock ones and count what goes in and out.

    Args:
        stock: the functions; vector forms wider than ``level`` are left out.
        level: CPU level to compile for.

    Raises:
        NativeError: it does not compile.
        CompilerNotFoundError: there is no usable clang, and no finished build.
        CacheError: the cache folder cannot be written.
    """
    have = dict.fromkeys(_kinds(level), _COPIES)
    numbers: Counter[tuple[str, str, str]] = Counter()
    chosen: list[tuple[Stock, tuple[str, str, str, int]]] = []
    for s in stock:
        kind = (s.function, s.dtype, s.form)
        if kind in have:
            chosen.append((s, (*kind, numbers[kind])))
            numbers[kind] += 1
            have[kind] = max(have[kind], numbers[kind])
    entries = [(*kind, i) for kind, count in have.items() for i in range(count)]
    made = obtain(functools.partial(_watch_job, entries, level, STOCK), find_compiler)
    watchers = _pointed(made.path, entries, {e: s.address for s, e in chosen})
    return Watch(made.build_id, {s.symbol: watchers[e] for s, e in chosen})


def watch_forms(
    addresses: Mapping[tuple[str, str, str], int], level: str, name: str
) -> tuple[str, dict[tuple[str, str, str], int]]:
    """Return functions that call the forms of a library and count what goes in and out.

    Args:
        addresses: function, dtype and form -> address.
        level: CPU level to compile for.
        name: tells the library from all others; each gets a copy of the watch library.

    Returns:
        The id of the watch library, and function, dtype and form -> address.

    Raises:
        As :func:`watch`.
    """
    made = obtain_for_forms(level)
    folder = cache.cache_folder() / f"watching-{made.build_id}-{name}"

    def copy(scratch: Path) -> Mapping[str, Any]:
        # The pointers lie in the library, so that two libraries cannot share one.
        shutil.copyfile(made.path, scratch / _OUTPUT)
        return {}

    cache.fill(folder, copy)
    wanted = {(*key, 0): address for key, address in addresses.items()}
    found = _pointed(folder / _OUTPUT, _one_of_each(level), wanted)
    return made.build_id, {(f, d, form): found[f, d, form, 0] for f, d, form in addresses}


def obtain_for_forms(level: str) -> Any:
    """Return the watch library for :func:`watch_forms`, which is made if it is missing."""
    return obtain(functools.partial(_watch_job, _one_of_each(level), level, OWN), find_compiler)


def _one_of_each(level: str) -> list[Entry]:
    return [(*kind, 0) for kind in _kinds(level)]


def _pointed(
    path: Path, entries: Sequence[Entry], addresses: Mapping[Entry, int]
) -> dict[Entry, int]:
    """Load a watch library, let it call some functions, and return the addresses that do so."""
    library = load_built(path)
    table = (ctypes.c_void_p * len(entries)).in_dll(library, "__udf_stock")
    found = {}
    for i, e in enumerate(entries):
        if e in addresses:
            table[i] = addresses[e]
            found[e] = ctypes.cast(getattr(library, _name(i)), ctypes.c_void_p).value or 0
    return found


_OUTPUT: Final = "watch.so"

#: What is watched: functions that are as ``manifest.ORDINARY`` says, or any.
STOCK: Final = "the functions that watch the stock ones"
OWN: Final = "the functions that watch those without clang"

#: How many symbols of one function, dtype and form the watch library has room for; more if a torch
#: calls more. The C library has two versions of some scalars, and SLEEF and VML two of others.
_COPIES: Final = 2

#: Function, dtype and form of a symbol, and which one of several it is.
Entry = tuple[str, str, str, int]


def _kinds(level: str) -> Iterator[tuple[str, str, str]]:
    """Yield every function, dtype and form that a CPU level has; what libtorch calls is less."""
    for dtype in DTYPES:
        for function in FUNCTIONS:
            yield from ((function, dtype, form) for form in forms(dtype, level))
        yield "sincos", dtype, "scalar"


def _watch_job(entries: Sequence[Entry], level: str, what: str, compiler: Compiler) -> Job:
    manifest = {
        # A stock function may give different bits at another position in an array, so it gets
        # whole arrays, as it does when nothing watches it.
        "watch": [
            entry(_name(i), function, dtype, form, 0, ordinary=what == STOCK)
            for i, (function, dtype, form, _) in enumerate(entries)
        ]
    }
    flags = (*FLAGS, *CPU_LEVELS[level][0])
    text, observe = Path("watch.c"), observe_source()
    counted = (
        *flags, *compiler.plugin_flags, "-mllvm", "-udf-instrument-manifest=watch.json",
        "-c", str(text), "-o", "watch.o",
    )  # fmt: skip
    linked = (*flags, str(observe[0]), "watch.o", *link_inputs(), *LINK_FLAGS, "-o", _OUTPUT)
    return Job(
        kind="watch-",
        compiler=compiler,
        stages=(
            (Step(compiler.path, counted, text),),
            (Step(compiler.path, linked, observe[0]),),
        ),
        output=_OUTPUT,
        failed=_failed,
        texts={"watch.c": _watch_source(entries), "watch.json": json.dumps(manifest)},
        inputs=observe,
        facts={"compiler": compiler.version, "cpu_level": level},
        what=what,
    )


def _failed(_: Step, said: str) -> NativeError:
    return NativeError(
        "The library that watches functions cannot be compiled, so nothing can be profiled. The "
        f"compiler says:\n{said[-4000:]}\n{HEADERS_NEEDED}"
    )


def _name(index: int) -> str:
    return f"__udf_watch_{index}"


def _watch_source(entries: Sequence[Entry]) -> str:
    lines = [
        "#include <stdint.h>",
        '#define SHOWN __attribute__((visibility("default")))',
        # Reached without a detour: nothing else may take its place.
        f'__attribute__((visibility("protected"))) void *__udf_stock[{len(entries)}];',
    ]
    for i, (function, dtype, form, _) in enumerate(entries):
        real = C_TYPES[dtype]
        arity = FUNCTIONS[function].arity if function in FUNCTIONS else 1
        if function == "sincos":
            given = [f"{real} x", f"{real} *s", f"{real} *c"]
            result = "void"
        elif form == "array":
            pointers = [f"const {real} *{n}" for n in ("a", "b")[:arity]]
            given = ["int64_t n", *pointers, f"{real} *out", "int64_t mode"]
            result = "void"
        else:
            result = real
            if form != "scalar":
                result = f"t{i}"
                size = f"{form[1:]} * sizeof({real})"
                lines.append(f"typedef {real} t{i} __attribute__((vector_size({size})));")
            given = [f"{result} {n}" for n in ("x", "y")[:arity]]
        names = ", ".join(g.replace("*", " ").split()[-1] for g in given)
        types = ", ".join(given)
        call = f"(({result} (*)({types}))__udf_stock[{i}])({names})"
        lines.append(f"SHOWN {result} {_name(i)}({types})")
        lines.append("{ " + ("" if result == "void" else "return ") + call + "; }")
    return "\n".join(lines) + "\n"
