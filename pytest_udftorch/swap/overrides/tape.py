# SPDX-License-Identifier: Apache-2.0
"""Recording kernels in Python, and playing what they did (``native/switch/tape.h``).

A function that asks of its tensors nothing but dtypes, shapes, strides and devices calls the same
operators and launches the same kernels whenever these are equal. Two calls record that; later ones
are played in C++, without Python. What a tape cannot hold stays in Python: a number read from a
tensor, a tensor of Python's numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pytest_udftorch.swap.native.runtime import written_text
from pytest_udftorch.swap.overrides.switchboard import Target, native, switchboard

#: ``python`` runs every call in Python.
VARIABLE: Final = "UDFTORCH_CUDA_LAUNCH"

#: What a kernel of Triton can ask for at its launch, and those of this package do not.
_UNUSUAL: Final = (
    "global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl",
)  # fmt: skip


#: How many watch what kernels in Python do.
_watchers = 0


class Drawn(int):
    """A drawn number, and the how manieth of its call it is on the tape."""

    which: int

    def __new__(cls, number: int, which: int) -> Drawn:
        """Make the number."""
        made = super().__new__(cls, number)
        made.which = which
        return made


class Tapes:
    """Typed access to the tapes of the switchboard; a process has one, ``tapes()``."""

    def __init__(self) -> None:
        lib = native().lib
        pointer, number = ctypes.c_void_p, ctypes.c_uint

        def call(name: str, result: Any, *arguments: Any) -> Any:
            return ctypes.PYFUNCTYPE(result, *arguments)((f"udftape_{name}", lib))

        self._target = call("target", pointer, pointer, pointer)
        self._launch = call(
            "launch", None, ctypes.py_object, pointer, number, number, number, ctypes.c_char_p
        )
        self._refusals = call("refusals", ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
        #: Whether what this thread does now is a step that is recorded.
        self.records = call("records", ctypes.c_int)
        self._draw = call("draw", ctypes.c_uint64, ctypes.POINTER(ctypes.c_int))
        self._aside = call("aside", None, ctypes.c_int)
        self._constant = call("constant", None, ctypes.py_object)
        #: Count who watches what kernels in Python do: nothing is played meanwhile.
        self.watch = call("watch", None, ctypes.c_int)
        #: Forget all tapes: functions may do something else from now on.
        self.forget = call("forget", None)
        #: How many calls were played so far.
        self.played = call("played", ctypes.c_uint64)
        #: Compiled kernels on tapes: Triton unloads what nobody holds.
        self._kept: dict[int, Any] = {}
        self.refuse = call("refuse", None, ctypes.c_char_p)
        self.watch(_watchers)

    def above(self, target: Target) -> Target:
        """Return the target that records a target in Python."""
        return switchboard.above(target.place, target, self._target, kind="recorded")

    def draw(self) -> int:
        """Draw an int64 from torch's generator of the CPU; each call that is played draws anew."""
        which = ctypes.c_int()
        number = self._draw(ctypes.byref(which))
        # Kernels read smaller numbers as 32 bits.
        if which.value >= 0 and number < 1 << 31:
            self.refuse(b"a drawn number of 32 bits")
        return Drawn(number, which.value)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Do what is no step: make tensors that stay."""
        self._aside(1)
        try:
            yield
        finally:
            self._aside(-1)

    def constant(self, tensor: Any) -> None:
        """Tell that a tensor is the same at each call."""
        self._constant(tensor)

    def refusals(self) -> dict[str, int]:
        """Return why calls were not recorded (``aten::dot: a tensor ...``), and how often."""
        lines = written_text(self._refusals).splitlines()
        return {why: int(times) for why, _, times in (line.rpartition(": ") for line in lines)}

    def launched(self, name: str, compiled: Any, programs: int, arguments: Sequence[Any]) -> None:
        """Record the launch of a kernel of Triton, which was made.

        Args:
            name: for the launcher's list of kernels that ran.
            compiled: what Triton made of it.
            programs: how many.
            arguments: the run-time arguments, in order.
        """
        metadata = compiled.metadata
        if is_unusual(metadata):
            self.refuse(b"a launch with what a tape does not give")
            return
        kinds = compiled.src.signature.values()
        maps = iter(getattr(metadata, "tensordesc_meta", None) or ())
        given: list[Any] = []
        for a, kind in zip(arguments, kinds, strict=False):
            if kind == "constexpr":
                continue
            if str(kind).startswith("tensordesc"):
                given += described(a, next(maps, None))
            elif isinstance(a, Drawn):
                given.append((a.which,))
            else:
                given.append(word(a) if isinstance(a, int | float) else a)
        if not all(isinstance(g, int | tuple | list) or hasattr(g, "data_ptr") for g in given):
            self.refuse(b"a launch with what is no number and no tensor")
            return
        self._kept[compiled.function] = compiled
        self._launch(
            given, compiled.function, 32 * metadata.num_warps, metadata.shared, programs,
            name.encode(),
        )  # fmt: skip


def is_unusual(metadata: Any) -> bool:
    """Tell whether a compiled kernel asks for more at its launch than C++ gives."""
    return bool(
        any(getattr(metadata, n, 0) for n in _UNUSUAL) or getattr(metadata, "num_ctas", 1) != 1
    )


def described(descriptor: Any, how: Any) -> list[Any]:
    """Return what a kernel gets for a descriptor of a matrix: a map, sizes and strides.

    Args:
        descriptor: Triton's.
        how: what Triton's launcher is told of the map, a dictionary or None.

    Returns:
        what ``udftape_launch`` takes; None in place of a map that it cannot make.
    """
    shape, strides = descriptor.shape, descriptor.strides
    numbers = [*map(word, shape), *map(word, strides)]
    plain = (
        how is not None
        and (how["elem_size"], len(shape), strides[-1]) == (1, 2, 1)
        and not how["fp4_padded"]
        and not how.get("is_im2col")
        and getattr(descriptor, "padding", "zero") == "zero"
    )
    if not plain:
        return [None, *numbers]
    rows, columns = how["block_size"]
    return [
        [descriptor.base, shape[0], shape[1], strides[0], rows, columns, how["swizzle"]],
        *numbers,
    ]


def word(number: float) -> int:
    """Return a number as the 64 bits whose lower part a kernel reads."""
    if isinstance(number, float):
        return int(struct.unpack("<I", struct.pack("<f", number))[0])
    return number & 0xFFFFFFFFFFFFFFFF


@functools.cache
def tapes() -> Tapes:
    """Return the tapes of this process."""
    return Tapes()


def recording() -> Tapes | None:
    """Return the tapes if what this thread does now is a step that is recorded."""
    if not tapes.cache_info().currsize:
        return None
    found = tapes()
    return found if found.records() else None


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a function makes of its arguments, which may hold tensors: constants of tapes."""
    kept = functools.lru_cache(maxsize=1024)(functools.partial(_apart, function))

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        tapes = recording()
        if tapes is None:
            return kept(*args)
        with tapes.aside():
            found = kept(*args)
        for value in found if isinstance(found, tuple) else (found,):
            if hasattr(value, "data_ptr"):
                tapes.constant(value)
        return found

    return run


def _apart(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function where no memory belongs to a graph, and no mode to the caller.

    What is kept outlives the caller's modes. A thread that records a CUDA graph, or prepares to,
    takes memory of the graph's pool, which does not.
    """
    import torch

    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return function(*args)
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(function, *args).result()


def number(value: Any, dtype: Any) -> Any:
    """Return an argument of a call that is a number as a tensor without dimensions."""
    import torch

    tapes = recording()
    if tapes is None:
        return torch.tensor(value, dtype=dtype)
    with tapes.aside():
        made = torch.tensor(value, dtype=dtype)
    tapes.constant(made)
    return made


def _watch(more: int) -> None:
    global _watchers
    _watchers += more
    if tapes.cache_info().currsize:
        tapes().watch(more)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Run all kernels in Python while something follows what they do."""
    _watch(1)
    try:
        yield
    finally:
        _watch(-1)


def recorded(target: Target) -> Target:
    """Return the target that records one in Python, or that one if nothing is to be recorded."""
    return target if os.environ.get(VARIABLE) == "python" else tapes().above(target)
