# SPDX-License-Identifier: Apache-2.0
"""The switchboard: overrides of torch's operators, registered once and switched by a pointer.

For each overload and dispatch key that a session can override, a *board* (``native/switch``) is
registered with torch's dispatcher at the first session of a process, and stays. It calls the stock
kernel, or the *target* that the table of the open sessions has for it. A switch builds a table
aside and exchanges one pointer; no thread waits for it. A thread that is inside of a target
finishes with it.

Targets are functions in Python, kernels in C++ above these, and kernels of other libraries.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.newest import Newest
from pytest_udftorch.errors import NativeError, SwapError
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.native.runtime import load_built
from pytest_udftorch.swap.operators import header
from pytest_udftorch.swap.operators.row import Pointwise
from pytest_udftorch.swap.operators.rows import ROWS
from pytest_udftorch.swap.overrides.schemas import (
    ABOVE_AUTOGRAD,
    has_overload,
    is_composed_anew,
)
from pytest_udftorch.swap.toolchain import cache
from pytest_udftorch.swap.toolchain.torch_part import HEADERS_NEEDED, TorchPart, installed_list

#: An overload (``aten::log.out``) and a dispatch key.
Place = tuple[str, str]

#: What is overridden on the CPU, too, and does not map elements there.
_ALSO_ON_CPU: Final = (
    "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward",
    "aten::log_sigmoid_forward", "aten::log_sigmoid_forward.output",
    *(f"aten::normal.{name}{out}" for name in ("Tensor_float", "float_Tensor", "Tensor_Tensor")
      for out in ("", "_out")),
)  # fmt: skip

#: What kernels of GPUs call the stock kernels of.
_CALLED_ON_CUDA: Final = ("aten::special_i0e", "aten::special_i1e")

#: Operators of the contract whose function has the type of an ``out=`` overload: it stands for all.
_IN_ALL_FORMS: Final = (
    "aten::sqrt", "aten::addcmul", "aten::addcdiv", "aten::hardsigmoid", "aten::hardswish",
)  # fmt: skip
_FORMS: Final = ("_", ".out")

#: The library whose operators are the contract's.
_CONTRACT: Final = "repro"

#: So many tables stay for the next session that asks for the same.
_TABLES: Final = 32


@functools.cache
def places() -> tuple[Place, ...]:
    """Return every overload and dispatch key that sessions of shipped libraries override, sorted.

    Operators of other libraries get their boards when they are first asked for.
    """
    udfs = [udf for those in find_library(_CONTRACT).operators.values() for udf in those]
    found = {(udf.name, key) for udf in udfs for key in udf.dispatch_keys}
    found |= {(name + form, key) for name, key in found if name in _IN_ALL_FORMS for form in _FORMS}
    found |= {(name, "CPU") for name in _ALSO_ON_CPU} | {(name, "CUDA") for name in _CALLED_ON_CUDA}
    found |= {*ABOVE_AUTOGRAD}
    for row in ROWS:
        whole = () if row.whole is None else (row.whole,)
        found |= {(f"aten::{n}", "CUDA") for op in (*row.cuda, *whole) for n in op.overloads}
        for op in (*row.cpu, *row.cuda, *whole):
            names = op.overloads if op in row.cpu or isinstance(op, Pointwise) else ()
            found |= {(f"aten::{n}", "CPU") for n in names if not n.startswith("_foreach_")}
    return tuple(sorted((name, key) for name, key in found))


def _text(path: str) -> str:
    """Return what a file holds; nothing if there is none. Hundreds are read in a first session."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _boards(package: Path) -> Mapping[str, str]:
    """Return the headers of the switchboard for a torch: its kernels, and the types of boards.

    The types are remembered while what pip lists of torch, the overloads and this file are the
    same.
    """
    names = sorted({name for name, _ in places()})
    types = functools.partial(_types, package, names)
    lists = list(installed_list(package).values())
    if not lists:
        return {"boards.h": types(), **header.kernels()}
    files = [*map(str, lists), __file__]
    state = [str(package), names, *(cache.state_of(os.stat(path)) for path in files)]
    return {"boards.h": cache.remembered("boards", state, types), **header.kernels()}


def _types(package: Path, names: Sequence[str]) -> str:
    """Return the header with the C++ types of overloads that a torch has."""
    folder = package / "include" / "ATen" / "ops"
    included, entries = set(), []
    for overload in names:
        base, _, last = overload.partition("::")[2].partition(".")
        name = f"{base}_{last}" if last else base
        for stem in (base, base.rstrip("_")):
            header_of = f"{stem}_ops.h"
            if f"struct TORCH_API {name} {{" in _text(os.path.join(folder, header_of)):
                included.add(header_of)
                entries.append(f'  BOARD("{overload}", {name})')
                break
    lines = [f"#include <ATen/ops/{name}>\n" for name in sorted(included)]
    macro = " \\\n".join(("#define UDFTORCH_BOARDS(BOARD)", *entries))
    return "".join(lines) + macro + "\n"


def _failed(version: str, message: str) -> NativeError:
    return NativeError(
        f"The switchboard for torch {version}, by which sessions override operators, cannot be "
        f"compiled. The compiler says:\n{message}\n{HEADERS_NEEDED}"
    )


#: The switchboard as it is compiled.
SWITCHBOARD: Final = TorchPart(
    source="switchboard.cpp",
    headers=(
        "board.h", "cpu_kernels.h", "cuda_kernels.h", "glibc.h", "kernel_of.h", "libstdcxx.h",
        "overload.h", "python_kernel.h", "tape.h", "udfprof.h",
    ),
    what="the switchboard of operators",
    failed=_failed,
    lost="Sessions cannot override operators",
    texts=_boards,
    libraries=("torch_python",),
)  # fmt: skip


class Board:
    """One overload at one dispatch key, whose kernel in the dispatcher is ours.

    Attributes:
        address: for the C++.
        stock: calls the stock kernel with Python's arguments.
    """

    def __init__(self, address: int, stock: Callable[..., Any]) -> None:
        self.address = address
        self.stock = stock


class Target:
    """What a table has for a board. It is freed once nobody holds it and no thread is inside."""

    def __init__(self, native: _Native, place: Place, address: int, kind: str) -> None:
        self._native = native
        self.place = place
        self.address = address
        self.kind = kind  # for people: Python, recorded, C++

    def __del__(self) -> None:
        self._native.drop(None, self.address)


class _Table:
    """A table of targets, which lives as long as somebody holds it."""

    def __init__(self, native: _Native, targets: Iterable[Target]) -> None:
        self._native = native
        self.targets = {t.place: t for t in targets}
        addresses = [t.address for t in self.targets.values()]
        self.address = native.table((ctypes.c_void_p * len(addresses))(*addresses), len(addresses))

    def __del__(self) -> None:
        self._native.drop(self.address, None)


class _Native:
    """Typed access to the compiled switchboard. No call gives Python's lock away."""

    def __init__(self, library: Path) -> None:
        lib = self.lib = load_built(library)
        pointer, text = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_size_t)

        def call(name: str, result: Any, *arguments: Any) -> Any:
            return ctypes.PYFUNCTYPE(result, *arguments)((f"udfswitch_{name}", lib))

        self.board = call("board", pointer, ctypes.c_char_p, ctypes.c_char_p, *text)
        self.typed = call("typed", ctypes.c_int, ctypes.c_char_p)
        self.python = call("python", pointer, pointer, ctypes.py_object, *text)
        self.foreign = call("foreign", pointer, pointer, pointer)
        self.stock = call("stock", pointer, pointer)
        self.kernel = call("kernel", pointer, pointer)
        self.table = call("table", pointer, pointer, ctypes.c_size_t)
        self.exchange = call("exchange", None, pointer)
        self.drop = call("drop", None, pointer, pointer)
        self.collect = call("collect", ctypes.c_size_t)
        self.mode = call("mode", ctypes.c_int, ctypes.c_int)
        self.mode_now = call("mode_now", ctypes.c_int)
        self.hits = call("hits", ctypes.c_uint64)
        # Of tape.h: what calls stock kernels from Python tells the tapes.
        self.pause = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(("udftape_pause", lib))
        self.stock_begins = ctypes.PYFUNCTYPE(
            ctypes.c_int, pointer, ctypes.py_object, ctypes.py_object
        )(("udftape_stock_begins", lib))
        self.stock_ends = ctypes.PYFUNCTYPE(None, pointer, ctypes.py_object)(
            ("udftape_stock_ends", lib)
        )


@functools.cache
def native() -> _Native:
    """Return the compiled switchboard.

    Raises:
        NativeError: it does not compile.
        CompilerNotFoundError: no build was shipped for the installed torch, and there is no clang.
        CacheError: the cache folder cannot be written.
    """
    return _Native(SWITCHBOARD.obtain())


def _recorded(stock: Any, board: int) -> Any:
    """Return what calls the stock kernel of a board, a step of the tape that is recorded."""
    kernel, begins, ends = stock.func, native().stock_begins, native().stock_ends

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not begins(board, args, kwargs):
            return kernel(keys, *args, **kwargs)
        results: Any = ()
        try:
            found = kernel(keys, *args, **kwargs)
            results = () if found is None else found if isinstance(found, tuple) else (found,)
        finally:
            ends(board, results)
        return found

    return functools.partial(call, *stock.args)


class Switchboard:
    """The boards of this process; the one instance is ``switchboard``."""

    def __init__(self) -> None:
        self._boards: dict[Place, Board] = {}
        self._active: _Table | None = None
        self._tables: Newest[object, _Table] = Newest(_TABLES)
        self._opened = False

    @property
    def is_used(self) -> bool:
        """Whether this process has boards."""
        return bool(self._boards)

    def open(self) -> None:
        """Register the boards of the shipped libraries, once.

        Raises:
            The errors of :func:`native`.
        """
        if self._opened:
            return
        for name, key in places():
            composed = is_composed_anew(name, key)
            if has_overload(name) and (composed or compat.has_own_kernel(name, key)):
                self.board(name, key)
        self._opened = True

    def board(self, name: str, key: str) -> Board:
        """Return the board of an overload, which may exist already.

        Raises:
            SwapError: torch has no such kernel to override.
            The errors of :func:`native`.
        """
        found = self._boards.get((name, key))
        if found is None:
            try:
                stock = compat.stock_kernel(name, key, ABOVE_AUTOGRAD.get((name, key), ""))
            except RuntimeError as error:
                raise SwapError(
                    f"torch has no kernel of {name} at {key}, so there is nothing to override: "
                    f"{str(error).splitlines()[0]}"
                ) from error
            message = ctypes.create_string_buffer(4096)
            address = native().board(name.encode(), key.encode(), message, len(message))
            if not address:
                raise SwapError(
                    f"torch rejects a kernel for {name} at {key}: "
                    f"{message.value.decode(errors='replace')}. Another tool may have registered "
                    "one."
                )
            found = self._boards.setdefault((name, key), Board(address, _recorded(stock, address)))
            compat.look_up_again(name)
        return found

    def stock(self, name: str, key: str) -> Callable[..., Any]:
        """Return what calls the stock kernel of an overload, whatever sessions are open."""
        return self.board(name, key).stock

    def kernel(self, name: str, key: str) -> int:
        """Return the address of the stock kernel, a ``KernelFunction``."""
        return int(native().stock(self.board(name, key).address))

    def python(self, place: Place, function: Callable[..., Any]) -> Target:
        """Return the target that calls a function in Python, as torch would."""
        message = ctypes.create_string_buffer(4096)
        board = self.board(*place)
        made = native().python(board.address, function, message, len(message))
        if not made:
            raise SwapError(
                f"A kernel for {place[0]} at {place[1]} cannot be made: "
                f"{message.value.decode(errors='replace')}."
            )
        return Target(native(), place, made, "Python")

    def foreign(self, place: Place, kernel: int) -> Target:
        """Return the target of a kernel in C++, given by the address of its ``KernelFunction``."""
        made = native().foreign(self.board(*place).address, kernel)
        return Target(native(), place, made, "C++")

    def kernel_of(self, target: Target) -> int:
        """Return the address of the kernel of a target, a ``KernelFunction``."""
        return int(native().kernel(target.address))

    def above(
        self, place: Place, below: Target, make: Callable[..., Any], *given: Any, kind: str = "C++"
    ) -> Target:
        """Return the target that ``make`` puts above another one, or that other one.

        Args:
            place: of both.
            below: a target in Python.
            make: takes the addresses of the board and of ``below``, and ``given``; returns the
                address of a target, or None.
            given: further arguments of it.
            kind: what the target is.
        """
        made = make(self.board(*place).address, below.address, *given)
        return Target(native(), place, made, kind) if made else below

    def called(self, name: str, key: str) -> str:
        """Return what the board of an overload calls: ``stock``, or the kind of a target."""
        found = self._active and self._active.targets.get((name, key))
        return found.kind if found else "stock"

    def switch(self, key: object, targets: Callable[[], Iterable[Target]]) -> None:
        """Make a table of targets the active one.

        Args:
            key: equal for equal targets, which stay as long as it; None for no targets.
            targets: returns them, unless a table of the key is still there.
        """
        if key is None:
            if self._active is not None:
                native().exchange(None)
                self._active = None
        else:
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = _Table(native(), targets())
            native().exchange(table.address)
            self._active = table
        if self._opened or self._boards:
            native().collect()

    def forget(self) -> None:
        """Drop the tables that no open session uses."""
        self._tables.clear()
        if self._boards:
            native().collect()


#: The switchboard of this process.
switchboard: Final = Switchboard()


def stock_kernel(name: str, key: str) -> Callable[..., Any]:
    """Return what calls the stock kernel of an overload, whatever sessions are open.

    Args:
        name: overload with its namespace: ``aten::log.out``.
        key: dispatch key.
    """
    return switchboard.stock(name, key)
