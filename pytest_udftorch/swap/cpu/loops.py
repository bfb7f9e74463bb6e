# SPDX-License-Identifier: Apache-2.0
"""The compiled loops of CPU operators, and the functions that they call.

The loops are the same for every library: they call the array forms of a session's functions by
their addresses. They are compiled once for each CPU level, when an overridden operator is first
called.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import SourceError
from pytest_udftorch.swap.cpu import direct
from pytest_udftorch.swap.cpu.c_source import source
from pytest_udftorch.swap.cpu.corrections import amended
from pytest_udftorch.swap.cpu.direct import Threads, kept
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, FUNCTIONS
from pytest_udftorch.swap.native.runtime import address, load_built, native_file, runtime
from pytest_udftorch.swap.operators.calls import Applied, calls
from pytest_udftorch.swap.overrides.active import Active
from pytest_udftorch.swap.toolchain.cache import cache_folder, turn
from pytest_udftorch.swap.toolchain.compiler import LINK_FLAGS, VALUE_FLAGS, Compiler, find_compiler
from pytest_udftorch.swap.toolchain.job import Job, Step, obtain

_LIBTORCH: Final = "libtorch_cpu.so"
_HEADERS: Final = ("cpu_loops.h", "cpu_attention.h", "cpu_variates.h", "cpu_recurrent.h")
_SOURCE: Final = "cpu_loops.c"

#: Formulas of the operators that ``operators`` overrides.
FORMULAS: Final = (
    "erf", "gelu_erf", "gelu_tanh", "gelu_backward_erf", "gelu_backward_tanh", "special_log_ndtr",
    "erfinv", "lgamma_wide", "pow_by",
)  # fmt: skip

_POINTWISE: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, *(ctypes.c_void_p,) * 3, ctypes.c_int32, *(ctypes.c_float,) * 3,
    *(ctypes.c_void_p,) * 2,
)  # fmt: skip


_WHOLE: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, *(ctypes.c_void_p,) * 2, ctypes.c_int32, *(ctypes.c_void_p,) * 3
)


def _failed(step: Step, said: str) -> SourceError:
    return SourceError(
        f"The loops of CPU operators do not compile with {step.tool}. Install the clang that "
        f"pytest_udftorch was built with, or report this message:\n{said}"
    )


def loops_job(level: str, compiler: Compiler) -> Job:
    """Return how to compile the loops for a CPU level."""
    headers = [native_file(name) for name in _HEADERS]
    arguments = (
        "-std=c17", *VALUE_FLAGS, "-Wall", *CPU_LEVELS[level][0], f"-I{headers[0].parent}",
        _SOURCE, "-o", "cpu_loops.so", *LINK_FLAGS,
    )  # fmt: skip
    return Job(
        kind="cpu-",
        compiler=compiler,
        stages=((Step(compiler.path, arguments, Path(_SOURCE)),),),
        output="cpu_loops.so",
        failed=_failed,
        texts={_SOURCE: source(FORMULAS)},
        root=headers[0].parent,
        inputs=headers,
        facts={"compiler": compiler.version, "cpu_level": level},
        what="the loops of CPU operators",
    )


@functools.lru_cache(maxsize=8)
def _compiled(level: str, cache: Path) -> ctypes.CDLL:
    """Return the loops compiled for a CPU level; ``cache`` is part of the key."""
    with turn():
        return load_built(obtain(functools.partial(loops_job, level), find_compiler).path)


@functools.cache
def _libtorch() -> ctypes.CDLL:
    import torch

    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _LIBTORCH))


@functools.cache
def torch_threads() -> int:
    """Return the address of torch's slot for parallel regions, which a profile changes.

    It is 0 if this libtorch is built without OpenMP; then nothing runs in parallel.
    """
    slots = runtime().loaders(runtime().find(["GOMP_parallel"], [_LIBTORCH]))
    return slots[0].address if slots else 0


def libtorch_address(name: str) -> int:
    """Return the address of a function that libtorch exports, or 0 if there is none."""
    return address(_libtorch(), name) if hasattr(_libtorch(), name) else 0


@functools.cache
def blas() -> int:
    """Return the address of libtorch's matrix product of float32, or 0 if it exports none."""
    return libtorch_address("sgemm_")


@functools.cache
def stock_array(function: str) -> int:
    """Return the address of libtorch's own array form of a function, or 0 if it has none."""
    return libtorch_address(f"vms{FUNCTIONS[function].vml}")


#: The functions and composites that loops were called for since somebody emptied the set.
_called: Final[set[str]] = set()


#: What else knows of such calls: returns the functions, and forgets them.
callers: Final[list[Callable[[], set[str]]]] = []


def called() -> set[str]:
    """Return the functions and composites called since the last time, and forget them."""
    found = set(_called)
    _called.clear()
    if (cpp := direct.loaded()) is not None:
        found |= cpp.ran()
    for others in callers:
        found |= others()
    return found


class Loops:
    """The loops of one set of functions, ``active``.

    Attributes:
        held: the functions of the sessions.
        composites: their activations that are whole functions.
        profiled: whether a profile counts what the functions do.
    """

    def __init__(self, active: Active) -> None:
        self.held = active.functions
        self.composites = frozenset(n for part in active.composites for n, _ in part.functions)
        self._parts = {
            name: part.build
            for part in (*active.parts, *active.composites)
            for name, dtype in part.functions
            if dtype == "float32"
        }
        self._ready: dict[str, tuple[Any, Sequence[str], Any]] = {}
        self._whole: dict[str, tuple[Any, Any, Any]] = {}
        self.profiled = any(build.profiled for build in self._parts.values())
        self._threads: tuple[int, int | None] | None = None
        self._torch: Any = None
        self._described: dict[tuple[str, int], Threads] = {}

    def can(self, functions: Sequence[str] | frozenset[str]) -> bool:
        """Tell whether every function has an array form."""
        # No generator: where one is closed early, Python ignores an interrupt.
        missing = [f for f in functions if f not in self.held and not stock_array(f)]
        return not missing

    def level(self) -> str:
        """Return the CPU level that the functions were built for."""
        return next(iter(self._parts.values())).cpu_level

    def library(self) -> ctypes.CDLL:
        """Return the loops, compiled.

        Raises:
            UdfError: they cannot be compiled.
        """
        return _compiled(self.level(), cache_folder())

    def addresses(self, functions: Sequence[str]) -> Any:
        """Return the addresses of the array forms of functions as an array in C."""
        return kept(
            tuple(
                self._parts[f].forms(f, "float32")["array"] if f in self._parts else stock_array(f)
                for f in functions
            )
        )

    def threads(self, operator: str, functions: Iterable[str]) -> Any:
        """Return ``struct threads`` of ``cpu_loops.h`` for a call of an operator.

        Args:
            operator: its name, for profiles.
            functions: what the call evaluates.
        """
        _called.update(functions)
        if self._threads is None:
            import torch

            within = runtime().cells.within if self.profiled else None
            self._torch, self._threads = torch, (torch_threads(), within)
        parallel, within = self._threads
        count = self._torch.get_num_threads() if parallel else 1
        # Kernels only read it.
        made = self._described.get((operator, count))
        if made is None:
            # Profiles hold on to the name.
            made = Threads(parallel, count, kept(f"aten::{operator}"), within)
            self._described[operator, count] = made
        return made

    def fixed(self, function: str) -> tuple[Any, ...]:
        """Return what ``amended`` returns for a function of the sessions, or a composite."""
        part = self._parts.get(function)
        return (None, None, None) if part is None else amended(part.library, function)

    def publish(
        self, first: int, kernel: Any, functions: Any, names: Sequence[str], where: Threads,
        *, kind: int, scalars: Sequence[float] = (), fixed: Any = None,
    ) -> None:  # fmt: skip
        """Tell the launcher in C++ which loop a call led to, if it asks.

        Args:
            first: address of the first tensor that the loop read.
            kernel: the loop.
            functions: what ``addresses`` returns for ``names``.
            names: functions that the loop evaluates.
            where: what ``threads`` returns.
            kind: what the loop is, in ``direct``.
            scalars: of the formula.
            fixed: one of what ``fixed`` returns.
        """
        if (cpp := direct.loaded()) is None or not cpp.pending():
            return
        code = ctypes.cast(kernel, ctypes.c_void_p).value
        text = kept(" ".join(names))
        loop = direct.Loop(code, ctypes.addressof(functions), None, text, where, *scalars)
        loop.amended = fixed and ctypes.addressof(fixed.contents)
        loop.kind = kind
        cpp.publish(first, loop)

    def run_whole(self, operator: str, function: str, x: Any, y: Any, dtype: int) -> None:
        """Compute ``y`` from a dense tensor like it, by a function or one of ``composites``."""
        ready = self._whole.get(function)
        if ready is None:
            kernel = _WHOLE(address(self.library(), "pointwise_whole"))
            ready = self._whole[function] = (
                kernel, self.addresses((function,)), self.fixed(function),
            )  # fmt: skip
        kernel, functions, fixed = ready
        where = self.threads(operator, (function,))
        first = x.data_ptr()
        kernel(y.numel(), first, y.data_ptr(), dtype, functions, ctypes.byref(where), fixed[dtype])
        self.publish(
            first, kernel, functions, (function,), where, kind=direct.WHOLE, fixed=fixed[dtype]
        )

    def run(
        self, operator: str, applied: Applied, inputs: Sequence[Any], y: Any, dtype: int
    ) -> None:
        """Compute ``y`` from dense tensors of the same dtype and strides.

        Args:
            operator: its name, for profiles.
            applied: the formula and its scalars.
            inputs: one tensor or two.
            y: the result; it may be one of the inputs.
            dtype: its number in ``enum dtype`` of ``cpu_loops.h``.
        """
        formula, *scalars = applied
        ready = self._ready.get(formula)
        if ready is None:
            kernel = _POINTWISE(address(self.library(), f"pointwise_{formula}"))
            names: Sequence[str] = tuple(call.function for call in calls(formula))
            ready = self._ready[formula] = kernel, names, self.addresses(names)
        kernel, names, functions = ready
        first = inputs[0].data_ptr()
        second = inputs[1].data_ptr() if len(inputs) == 2 else None
        where = self.threads(operator, names)
        kernel(
            y.numel(), first, second, y.data_ptr(), dtype, *scalars, functions, ctypes.byref(where)
        )
        self.publish(first, kernel, functions, names, where, kind=direct.MAPPED, scalars=scalars)
