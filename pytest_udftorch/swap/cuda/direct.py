# SPDX-License-Identifier: Apache-2.0
"""Launching the kernels of eager CUDA operators from C++ (native/switch/cuda_kernels.h).

The first call of a kind goes through the kernels in Python, which compile it with Triton. They
then tell the C++ how it was launched, and later calls of that kind do not enter Python.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, Final

from pytest_udftorch.swap.native.runtime import written_text
from pytest_udftorch.swap.overrides.switchboard import Target, native, switchboard
from pytest_udftorch.swap.overrides.tape import is_unusual, word

#: ``python`` launches every kernel from Python.
VARIABLE: Final = "UDFTORCH_CUDA_LAUNCH"

#: Where a parameter of a kernel comes from; the numbers are those of cuda_kernels.h.
_CONSTANT, _TENSOR, _COUNT, _LENGTH, _NUMBER, _BLOCKS = range(6)

#: The most parameters that the C++ has room for.
_MOST_PARAMETERS: Final = 64

#: The kernel of attention, and its numbers in the order of ``Attention::run`` of cuda_kernels.h.
_ATTENTION: Final = "attention_forward"
_NUMBERS: Final = (
    *(f"{tensor}_{what}" for tensor in "qkvo" for what in ("batch", "head", "row")),
    "b_batch", "b_head", "b_row", "b_key", "heads", "group", "queries", "keys", "lse_row", "offset",
    "scale", "dropout", "counted",
)  # fmt: skip

#: Kernel -> its parameter that counts elements or rows, and its constant that says how many of them
#: a program has. The other kernels have a program for each block of each row.
_COUNTED: Final = {
    "unary": ("n", "BLOCK"),
    "binary": ("n", "BLOCK"),
    "lookup": ("n", "BLOCK"),
    "softmax_rows": ("rows", "ROWS"),
    "log_softmax_backward_rows": ("rows", "ROWS"),
    _ATTENTION: ("queries", "QUERIES"),
}


# The library ---------------------------------------------------------------------------


class Direct:
    """Typed access to the kernels of the switchboard; a process has one, ``load()``."""

    def __init__(self) -> None:
        lib = native().lib
        self._target = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
            ("udfcuda_target", lib)
        )
        self._sizes = ctypes.PYFUNCTYPE(None, *[ctypes.c_uint64] * 2)(("udfcuda_sizes", lib))
        self._ran = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)(
            ("udfcuda_ran", lib)
        )
        self._publish = ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint,
            ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint, ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_uint64), ctypes.c_char_p,
        )(("udfcuda_publish", lib))  # fmt: skip
        #: Whether this thread is in a kernel in Python that may publish its launch.
        self.pending = ctypes.PYFUNCTYPE(ctypes.c_int)(("udfcuda_pending", lib))
        #: Take this right from it.
        self.drop = ctypes.PYFUNCTYPE(None)(("udfcuda_drop", lib))
        #: How many kernels were launched from C++ so far.
        self.launches = ctypes.PYFUNCTYPE(ctypes.c_uint64)(("udfcuda_launches", lib))
        self._count = ctypes.PYFUNCTYPE(None, ctypes.c_int)(("udfcuda_counting", lib))
        #: Compiled kernels that C++ may launch: Triton unloads what nobody holds.
        self._kept: list[Any] = []

    def sizes(self, few: int, in_registers: int) -> None:
        """Set the sizes that the kernels in Python are chosen by.

        Args:
            few: elements from which on another kernel is chosen.
            in_registers: the longest row that a program holds as a whole.
        """
        self._sizes(few, in_registers)

    def target(self, board: int, below: int) -> int | None:
        """Return the address of a target above one in Python; None if C++ has no kernel for it.

        Args:
            board: address of the board.
            below: address of the target in Python.
        """
        found: int | None = self._target(board, below)
        return found

    def counting(self, *, on: bool) -> None:
        """Set whether launches count in the rows of ``counters``, which differ by place."""
        self._count(on)

    def publish(self, name: str, kernel: str, compiled: Any,
                arguments: Sequence[Any], constants: dict[str, Any]) -> None:  # fmt: skip
        """Tell how the kernel was launched that this thread's call led to.

        Args:
            name: for :meth:`ran`.
            kernel: its name in ``kernels``.
            compiled: what Triton made of it.
            arguments: the run-time arguments, in order.
            constants: the compile-time arguments.
        """
        metadata = compiled.metadata
        if is_unusual(metadata):
            self.drop()
            return
        counted, divisor = _COUNTED.get(kernel, ("", ""))
        sources, values = bytearray(), []
        tensors = 0
        for argument, (parameter, kind) in zip(arguments, compiled.src.signature.items()):  # noqa: B905
            if kind.startswith("*") and parameter not in _ROWS:
                source, value, tensors = _TENSOR, tensors, tensors + 1
            elif kind == "constexpr":
                continue
            elif kernel == _ATTENTION and parameter in _NUMBERS:
                source, value = _NUMBER, _NUMBERS.index(parameter)
            elif kernel == _ATTENTION and parameter == "blocks":
                source, value = _BLOCKS, 0
            elif parameter == counted:
                source, value = _COUNT, 0
            elif parameter == "n" and counted:
                source, value = _LENGTH, 0
            else:
                source, value = _CONSTANT, _word(argument)
            sources.append(source)
            values.append(value)
        if len(values) > _MOST_PARAMETERS:
            self.drop()
            return
        # Tiles: a row of the outermost dimensions takes this many programs.
        factor = 1 if counted else dict(zip(compiled.src.signature, arguments))["blocks"]  # noqa: B905
        taken = self._publish(
            arguments[0].data_ptr(), compiled.function, 32 * metadata.num_warps, metadata.shared,
            constants[divisor] if counted else 1, factor, len(values), bytes(sources),
            (ctypes.c_uint64 * len(values))(*values), name.encode(),
        )  # fmt: skip
        if taken:
            self._kept.append(compiled)

    def ran(self) -> set[str]:
        """Return the names of kernels launched since the last time."""
        return set(written_text(self._ran).split())


#: The parameters that take the address of a row of ``counters``, or of tables that live on.
_ROWS: Final = ("row", "seen", "table", "wide")


def _word(argument: Any) -> int:
    """Return an argument as the 64 bits whose lower part the kernel reads."""
    return word(argument) if isinstance(argument, int | float) else int(argument.data_ptr())


_loaded: Direct | None = None
_counting = False


def loaded() -> Direct | None:
    """Return the kernels if this process has used them."""
    return _loaded


def load() -> Direct | None:
    """Return the kernels; None if ``UDFTORCH_CUDA_LAUNCH`` launches everything from Python."""
    global _loaded
    if _loaded is None and os.environ.get(VARIABLE) != "python":
        _loaded = Direct()
        _loaded.counting(on=_counting)
    return _loaded


def above(made: Target, dtypes: Sequence[str]) -> Target:
    """Return a target in C++ above one in Python, if there is one and launches may be C++'s.

    Args:
        made: calls the function in Python.
        dtypes: of the function; the target in C++ looks at them itself.
    """
    native = load()
    return made if native is None else switchboard.above(made.place, made, native.target)


def counting(*, on: bool) -> None:
    """Set whether launches count, also for a launcher that is loaded later."""
    global _counting
    _counting = on
    if _loaded is not None:
        _loaded.counting(on=on)
