# SPDX-License-Identifier: Apache-2.0
"""The two libraries of a profiled session besides the UDF library, built when first needed.

The *observer* (llvm/observer/observer.cpp) tells the runtime which operator and module a
thread is in. It uses classes of libtorch and Python's C interface, so it is compiled against
the headers of the installed torch and of the running Python.
The *watch library* stands in for the stock functions when ``std`` is profiled: for each
symbol a function that calls the stock one, instrumented by ``udf-instrument``.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.build.job import Job, Step, obtain
from pytest_udftorch.build.toolchain import FLAGS, LINK_FLAGS, Compiler, find_compiler
from pytest_udftorch.build.torch_part import HEADERS_NEEDED, TorchPart
from pytest_udftorch.errors import ObserverBuildError
from pytest_udftorch.library.symbols import C_TYPES, CPU_LEVELS, DTYPES, FUNCTIONS, forms
from pytest_udftorch.native.manifest import entry, link_inputs, observe_source
from pytest_udftorch.native.runtime import load_built


def _failed(what: str, message: str) -> ObserverBuildError:
    return ObserverBuildError(
        f"{what} cannot be compiled, so nothing can be profiled. The compiler says:\n"
        f"{message}\n"
        f"{HEADERS_NEEDED}"
    )


# The observer ------------------------------------------------------------------------


class Observer:
    """Typed access to the compiled observer's functions.

    A profile and the search for what a session misses may use it at once. The first to start it
    and to watch modules says how, and the last to leave puts everything back.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._started = self._watching = 0
        # The interpreter's lock is held in a PYFUNCTYPE: these functions touch Python's objects.
        self._start = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(("udfobserver_start", library))
        self._watch_modules = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(
            ("udfobserver_watch_modules", library)
        )
        self._stop = ctypes.CFUNCTYPE(None)(("udfobserver_stop", library))
        self._leave_modules = ctypes.PYFUNCTYPE(None)(("udfobserver_leave_modules", library))
        #: Takes the ``id()`` of a module, whose name is then asked for again.
        self.forget = ctypes.PYFUNCTYPE(None, ctypes.c_uint64)(("udfobserver_forget", library))

    def start(self, *, all_operators: bool) -> bool:
        """Follow operators and optimizers; return False if torch refuses.

        Args:
            all_operators: also those that are not known to call a function.
        """
        if not self._started and self._start(all_operators):
            return False
        self._started += 1
        return True

    def stop(self) -> None:
        """Put back what :meth:`start` changed, unless somebody else still uses it."""
        self._started -= 1
        if not self._started:
            self._stop()

    def watch_modules(self, function: Callable[..., Any], find: Callable[[Any, int], int]) -> bool:
        """Report from now on which module is being called; return False if impossible.

        Args:
            function: ``torch.nn.Module.__call__``, a function written in Python.
            find: takes a module and the id of the name of its caller, and returns the id of the
                module's name; called once for each module.
        """
        if not self._watching and self._watch_modules(function, find):
            return False
        self._watching += 1
        return True

    def leave_modules(self) -> None:
        """End what :meth:`watch_modules` began, unless somebody else still uses it."""
        self._watching -= 1
        if not self._watching:
            self._leave_modules()


#: The observer as it is compiled.
OBSERVER: Final = TorchPart(
    source="observer.cpp",
    headers=("glibc.h", "udfprof.h"),
    what="the observer",
    failed=lambda version, said: _failed(f"The observer of torch {version}", said),
    lost="Nothing can be profiled",
)


@functools.cache
def load_observer() -> Observer:
    """Return the observer of the installed torch, compiled on first use if none was shipped.

    Raises:
        ObserverBuildError: it does not compile; the message quotes the compiler.
        CompilerNotFoundError, CompilerTooOldError: there is no usable clang.
        CacheError: the cache folder cannot be written.
    """
    return Observer(load_built(OBSERVER.obtain()))


# The watch library -------------------------------------------------------------------


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
        As :func:`load_observer`.
    """
    have = {key: _COPIES for key in _kinds(level)}
    numbers: Counter[tuple[str, str, str]] = Counter()
    chosen: list[tuple[Stock, tuple[str, str, str, int]]] = []
    for s in stock:
        kind = (s.function, s.dtype, s.form)
        if kind in have:
            chosen.append((s, (*kind, numbers[kind])))
            numbers[kind] += 1
            have[kind] = max(have[kind], numbers[kind])
    entries = [(*kind, i) for kind, count in have.items() for i in range(count)]
    made = obtain(functools.partial(_watch_job, entries, level), find_compiler)
    library = load_built(made.path)
    table = (ctypes.c_void_p * len(entries)).in_dll(library, "__udf_stock")
    places = {e: i for i, e in enumerate(entries)}
    addresses = {}
    for s, e in chosen:
        i = places[e]
        table[i] = s.address
        addresses[s.symbol] = ctypes.cast(getattr(library, _name(i)), ctypes.c_void_p).value or 0
    return Watch(made.build_id, addresses)


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


def _watch_job(entries: Sequence[Entry], level: str, compiler: Compiler) -> Job:
    manifest = {
        # A stock function may give different bits at another position in an array, so it gets
        # whole arrays, as it does when nothing watches it.
        "watch": [
            entry(_name(i), function, dtype, form, 0, ordinary=True)
            for i, (function, dtype, form, _) in enumerate(entries)
        ]
    }
    flags = (*FLAGS, *CPU_LEVELS[level][0])
    text, observe = Path("watch.c"), observe_source()
    counted = (
        *flags, *compiler.plugin_flags, "-mllvm", "-udf-instrument-manifest=watch.json",
        "-c", str(text), "-o", "watch.o",
    )  # fmt: skip
    linked = (*flags, str(observe[0]), "watch.o", *link_inputs(), *LINK_FLAGS, "-o", "watch.so")
    return Job(
        kind="watch-",
        compiler=compiler,
        stages=(
            (Step(compiler.path, counted, text),),
            (Step(compiler.path, linked, observe[0]),),
        ),
        output="watch.so",
        failed=lambda _, said: _failed(
            "The library that watches the stock functions", said[-4000:]
        ),
        texts={"watch.c": _watch_source(entries), "watch.json": json.dumps(manifest)},
        inputs=observe,
        facts={"compiler": compiler.version, "cpu_level": level},
        what="the functions that watch the stock ones",
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
