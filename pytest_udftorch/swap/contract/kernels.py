# SPDX-License-Identifier: Apache-2.0
"""The kernels in C++ above functions of the contract on the CPU (``native/kernels``).

They take most calls in float32, with the bits of the functions in Python, which get the others.
They call the compiled contract, and the functions of the open sessions.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import NativeError
from pytest_udftorch.swap.contract import native
from pytest_udftorch.swap.contract.native import Contract
from pytest_udftorch.swap.contract.rows import FUNCTIONS
from pytest_udftorch.swap.cpu import direct, loops
from pytest_udftorch.swap.cpu.direct import kept
from pytest_udftorch.swap.cpu.loops import Loops, torch_threads
from pytest_udftorch.swap.cpu.operators import cpu_operators
from pytest_udftorch.swap.native.runtime import address, load_built
from pytest_udftorch.swap.overrides.switchboard import Target, switchboard
from pytest_udftorch.swap.overrides.tape import recorded
from pytest_udftorch.swap.toolchain.torch_part import HEADERS_NEEDED, TorchPart


def _failed(version: str, message: str) -> NativeError:
    return NativeError(
        f"The contract's kernels for torch {version} cannot be compiled. The compiler says:\n"
        f"{message}\n{HEADERS_NEEDED}"
    )


#: The kernels as they are compiled.
KERNELS: Final = TorchPart(
    source="contract_kernels.cpp",
    headers=(
        "glibc.h", "kernel_attention.h", "kernel_call.h", "kernel_norms.h", "kernel_products.h",
        "kernel_sums.h", "kernel_windows.h", "libstdcxx.h",
    ),
    what="the contract's kernels for the CPU",
    failed=_failed,
    lost="The operators of repro cannot be overridden",
)  # fmt: skip


class Kernels:
    """Typed access to the kernels; a process has one, ``kernels()``."""

    def __init__(self, library: Path) -> None:
        lib = self._lib = load_built(library)
        pointer = ctypes.c_void_p

        def call(name: str, result: Any, *arguments: Any) -> Any:
            return ctypes.PYFUNCTYPE(result, *arguments)((f"udfcontract_{name}", lib))

        self._make = call(
            "make", pointer, ctypes.c_char_p, ctypes.c_char_p, pointer, pointer, ctypes.c_uint64
        )
        self._drop = call("drop", None, pointer)
        self._use = call("use", None, pointer)
        self._functions = call("functions", None, pointer)
        self._called = call("called", ctypes.c_int)
        self._to_python = call("to_python", ctypes.c_int, ctypes.c_int)
        #: How many calls were computed without Python so far.
        self.taken = call("taken", ctypes.c_uint64)
        self._names = tuple(call("names", ctypes.c_char_p)().decode().split())

    def use(self, contract: Contract | None) -> None:
        """Let calls take a compiled contract from now on; None sends all calls to Python."""
        if contract is None:
            self._use(None)
            return
        functions = (address(contract.library, name) for name in self._names)
        self._use(kept((torch_threads(), *functions)))

    def take_functions(self, of: Loops | None) -> None:
        """Let softmax call the functions of the sessions."""
        there = of is not None and of.held.issuperset(FUNCTIONS) and not of.profiled
        self._functions(of.addresses(FUNCTIONS) if of is not None and there else None)

    def called(self) -> set[str]:
        """Return the functions that were called since the last time."""
        return set(FUNCTIONS) if self._called() else set()

    def above(self, target: Target, dtypes: int) -> Target:
        """Return the target that takes calls ahead of one in Python, or that one.

        Args:
            target: calls a function of the contract.
            dtypes: those of the function as bits, by their numbers in C++; 0 for all.
        """
        name, key = target.place
        stock, below = switchboard.kernel(name, key), switchboard.kernel_of(target)
        made = self._make(name.encode(), key.encode(), stock, below, dtypes)
        if not made:
            return target
        try:
            return switchboard.foreign(target.place, made)
        finally:
            self._drop(made)

    @contextlib.contextmanager
    def through_python(self) -> Iterator[None]:
        """Send this thread's calls through the functions in Python."""
        before = self._to_python(1)
        try:
            yield
        finally:
            self._to_python(before)


@functools.cache
def kernels() -> Kernels:
    """Return the kernels.

    Raises:
        NativeError: they do not compile.
        CompilerNotFoundError: no build was shipped for the installed torch, and there is no clang.
        CacheError: the cache folder cannot be written.
    """
    made = Kernels(KERNELS.obtain())
    native.users.append(made.use)
    cpu_operators.users.append(made.take_functions)
    loops.callers.append(made.called)
    made.take_functions(cpu_operators.loops)
    return made


#: The numbers of dtypes in C++ (``c10::ScalarType``).
_NUMBERS: Final = {"float16": 5, "float32": 6, "bfloat16": 15}


def above(target: Target, dtypes: Sequence[str]) -> Target:
    """Return what a board calls for a function of the contract: the attribute ``above`` of it.

    On the CPU that is a kernel in C++, if it has one. On GPUs calls are recorded: what a function
    does depends on the kinds of its arguments alone.

    Args:
        target: calls the function.
        dtypes: names of the dtypes of the UDF; none for all.
    """
    if target.place[1] == "CUDA":
        return recorded(target)
    if target.place[1] != "CPU" or direct.load() is None:
        return target
    # Numbers of rows may have any dtype, but none of them is a first argument.
    bits = sum(1 << _NUMBERS[d] for d in dtypes if d in _NUMBERS)
    return kernels().above(target, bits)
