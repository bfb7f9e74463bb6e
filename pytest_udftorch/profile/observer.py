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
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.build.job import Job, Step, compile_job
from pytest_udftorch.build.toolchain import FLAGS, LINK_FLAGS, Compiler, find_compiler, torch_flags
from pytest_udftorch.errors import ObserverBuildError
from pytest_udftorch.library.symbols import CPU_LEVELS, FUNCTIONS
from pytest_udftorch.native.manifest import entry, link_inputs, observe_source
from pytest_udftorch.native.runtime import load_built, native_file

_OBSERVER_FLAGS: Final = (
    "--driver-mode=g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
)  # fmt: skip


def _failed(what: str, step: Step, message: str) -> ObserverBuildError:
    return ObserverBuildError(
        f"{what} cannot be compiled, so nothing can be profiled. The compiler says:\n"
        f"{message[-4000:]}\n"
        "It needs the headers of the C++ standard library (on Debian: libstdc++-13-dev or "
        "another version), those of Python (python3-dev), and those that torch's wheels "
        "bring."
    )


# The observer ------------------------------------------------------------------------


class Observer:
    """Typed access to the compiled observer's functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        # The interpreter's lock is held in a PYFUNCTYPE: these functions touch Python's objects.
        self._start = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(("udfobserver_start", library))
        self._watch_modules = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(
            ("udfobserver_watch_modules", library)
        )
        #: Puts back what :meth:`start` changed.
        self.stop = ctypes.CFUNCTYPE(None)(("udfobserver_stop", library))
        #: Ends what :meth:`watch_modules` began.
        self.leave_modules = ctypes.PYFUNCTYPE(None)(("udfobserver_leave_modules", library))
        #: Takes the ``id()`` of a module, whose name is then asked for again.
        self.forget = ctypes.PYFUNCTYPE(None, ctypes.c_uint64)(("udfobserver_forget", library))

    def start(self, *, all_operators: bool) -> bool:
        """Follow operators and optimizers; return False if torch refuses.

        Args:
            all_operators: also those that are not known to call a function.
        """
        return not self._start(all_operators)

    def watch_modules(self, function: Callable[..., Any], find: Callable[[Any, int], int]) -> bool:
        """Report from now on which module is being called; return False if impossible.

        Args:
            function: ``torch.nn.Module.__call__``, a function written in Python.
            find: takes a module and the id of the name of its caller, and returns the id of the
                module's name; called once for each module.
        """
        return not self._watch_modules(function, find)


@functools.cache
def load_observer() -> Observer:
    """Return the observer of the installed torch, compiled on first use.

    Raises:
        ObserverBuildError: it does not compile; the message quotes the compiler.
        CompilerNotFoundError, CompilerTooOldError: there is no usable clang.
        CacheError: the cache folder cannot be written.
    """
    return Observer(load_built(_build_observer(find_compiler())))


def _build_observer(compiler: Compiler) -> Path:
    import torch

    source, header = native_file("observer.cpp"), native_file("udfprof.h")
    flags, libraries = torch_flags()
    arguments = (*_OBSERVER_FLAGS, *flags, str(source), "-o", "observer.so", *libraries)
    job = Job(
        kind="observer-",
        compiler=compiler,
        stages=((Step(compiler.path, arguments, source),),),
        output="observer.so",
        failed=functools.partial(_failed, f"The observer of torch {torch.__version__}"),
        inputs=(source, header),
        covers=[torch.__version__, torch.version.git_version, sys.version],
        facts={"torch": torch.__version__, "compiler": compiler.version},
    )
    return compile_job(job).path


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
    bits = CPU_LEVELS[level][2]
    chosen = [
        s for s in stock if not s.form.startswith("v") or int(s.form[1:]) * int(s.dtype[5:]) <= bits
    ]
    compiler = find_compiler()
    manifest = {
        # A stock function may give different bits at another position in an array, so it gets
        # whole arrays, as it does when nothing watches it.
        "watch": [
            entry(_name(i), s.function, s.dtype, s.form, 0, ordinary=True)
            for i, s in enumerate(chosen)
        ]
    }
    flags = (*FLAGS, *CPU_LEVELS[level][0])
    text, observe = Path("watch.c"), observe_source()
    counted = (
        *flags, *compiler.plugin_flags, "-mllvm", "-udf-instrument-manifest=watch.json",
        "-c", str(text), "-o", "watch.o",
    )  # fmt: skip
    linked = (*flags, str(observe[0]), "watch.o", *link_inputs(), *LINK_FLAGS, "-o", "watch.so")
    job = Job(
        kind="watch-",
        compiler=compiler,
        stages=(
            (Step(compiler.path, counted, text),),
            (Step(compiler.path, linked, observe[0]),),
        ),
        output="watch.so",
        failed=functools.partial(_failed, "The library that watches the stock functions"),
        texts={"watch.c": _watch_source(chosen), "watch.json": json.dumps(manifest)},
        inputs=observe,
        facts={"compiler": compiler.version, "cpu_level": level},
    )
    made = compile_job(job)
    library = load_built(made.path)
    table = (ctypes.c_void_p * len(chosen)).in_dll(library, "__udf_stock")
    addresses = {}
    for i, s in enumerate(chosen):
        table[i] = s.address
        addresses[s.symbol] = ctypes.cast(getattr(library, _name(i)), ctypes.c_void_p).value or 0
    return Watch(made.build_id, addresses)


def _name(index: int) -> str:
    return f"__udf_watch_{index}"


def _watch_source(stock: Sequence[Stock]) -> str:
    lines = [
        "#include <stdint.h>",
        '#define SHOWN __attribute__((visibility("default")))',
        # Reached without a detour: nothing else may take its place.
        f'__attribute__((visibility("protected"))) void *__udf_stock[{max(1, len(stock))}];',
    ]
    for i, s in enumerate(stock):
        real = {"float32": "float", "float64": "double"}[s.dtype]
        arity = FUNCTIONS[s.function].arity if s.function in FUNCTIONS else 1
        if s.function == "sincos":
            given = [f"{real} x", f"{real} *s", f"{real} *c"]
            result = "void"
        elif s.form == "array":
            pointers = [f"const {real} *{n}" for n in ("a", "b")[:arity]]
            given = ["int64_t n", *pointers, f"{real} *out", "int64_t mode"]
            result = "void"
        else:
            result = real
            if s.form != "scalar":
                result = f"t{i}"
                size = f"{s.form[1:]} * sizeof({real})"
                lines.append(f"typedef {real} t{i} __attribute__((vector_size({size})));")
            given = [f"{result} {n}" for n in ("x", "y")[:arity]]
        names = ", ".join(g.replace("*", " ").split()[-1] for g in given)
        types = ", ".join(given)
        call = f"(({result} (*)({types}))__udf_stock[{i}])({names})"
        lines.append(f"SHOWN {result} {_name(i)}({types})")
        lines.append("{ " + ("" if result == "void" else "return ") + call + "; }")
    return "\n".join(lines) + "\n"
