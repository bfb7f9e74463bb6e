# SPDX-License-Identifier: Apache-2.0
"""Launching Triton kernels for CUDA operators, and what all of them ask of tensors."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import CompilerNotFoundError, CudaFormError
from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.operators.calls import WHOLE
from pytest_udftorch.swap.overrides.active import Active
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.overrides.tape import recording
from pytest_udftorch.swap.toolchain.libdevice import composites_for
from pytest_udftorch.swap.toolchain.selection import Part

#: Options of all kernels; see ``kernels``.
_OPTIONS: Final[dict[str, Any]] = {"enable_fp_fusion": False}


#: Kernel -> its module, where that is not ``kernels``.
_HOMES: Final = {
    **dict.fromkeys(("attention_forward", "attention_queries", "attention_keys"), "flash"),
    **dict.fromkeys(("lstm_cell", "lstm_cell_backward", "gru_cell"), "cells"),
    **dict.fromkeys(("normal_variates", "normals_of_places", "variates_of_uniform"), "philox"),
    "lookup": "single_functions",
    **dict.fromkeys(("alignments", "alignments_backward"), "alignment_kernels"),
}

#: The kernels and formulas launched from Python since somebody emptied the set.
_launched: Final[set[str]] = set()


def launched() -> set[str]:
    """Return the kernels and formulas launched since the last call, and forget them."""
    found = set(_launched)
    _launched.clear()
    if (cpp := direct.loaded()) is not None:
        found |= cpp.ran()
    return found


def wake_triton() -> None:
    """Let Triton build, at its first use on a machine, what it calls the GPU's driver with.

    Raises:
        CompilerNotFoundError: it cannot; its message says why and what to do.
    """
    from triton.runtime import driver

    try:
        _ = driver.active
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        raise CompilerNotFoundError(
            "Triton, which runs a session's functions on CUDA tensors, cannot start: "
            f"{type(error).__name__}: {str(error).rstrip('.')}. It compiles a small C file at its "
            "first use, under torch.compile too. Install a C compiler and Python's headers "
            "(apt-get install gcc libc6-dev python3-dev), or name a compiler in CC; or keep CUDA "
            "tensors out of the session."
        ) from error


def _home(kernel: str) -> Any:
    return importlib.import_module(f"pytest_udftorch.swap.cuda.{_HOMES.get(kernel, 'kernels')}")


def for_gpus(composites: Sequence[Part]) -> tuple[Part, ...]:
    """Return the activations that GPUs can have: those with two paths in C."""
    found = []
    for part in composites:
        known = part.build.library.functions
        keys = tuple(k for k in part.functions if known[k].fast and known[k].source.suffix == ".c")
        if keys:
            found.append(replace(part, functions=keys))
    return tuple(found)


class Launcher:
    """Launches the kernels of one set of functions, ``active``.

    ``check`` is called with this object before the first launch outside a CUDA graph's capture.

    Attributes:
        counted: the functions that a profiled session counts.
        current_device: returns the index of the current GPU.
    """

    def __init__(self, active: Active, check: Callable[[Launcher], None] | None = None) -> None:
        self.active = active
        self.counted = frozenset(
            name
            for part in (*active.parts, *active.composites)
            if part.build.profiled
            for name, dtype in part.functions
            if dtype == "float32"
        )
        self.current_device: Any = None
        self._stream: Any = None
        self._launchers: dict[Any, Any] = {}
        self._check = check
        self._checked = self._checking = False
        self._wanted: dict[str, frozenset[str]] = {}
        self._rows: Any = None  # the module counters, once it is needed: it imports numpy
        self._hooks: Any = None
        #: The functions of float32 that are correctly rounded.
        self.correct = frozenset(
            name
            for part in active.parts
            for name, dtype in part.functions
            if dtype == "float32" and part.build.library.functions[name, dtype].max_ulp == 0.5
        )
        right = self.correct - self.counted
        #: Which functions of ``sixteen`` kernels may use, as those of the sessions are correctly
        #: rounded and not counted: none (0), exp (1), or exp and exp2 (2).
        self.quick = 0 if "exp" not in right else 2 if "exp2" in right else 1
        #: The activations that are whole functions on GPUs, once CUDA is in use, and their bitcode.
        self.composites: frozenset[str] = frozenset()
        self._composites = ""
        #: Function -> its library, where that corrects results in 16 bits; and what is made of it.
        self.corrected = {
            name: part.build.library
            for part in (*active.parts, *active.composites)
            for name, dtype in part.functions
            if dtype == "float32" and part.build.library.sixteen is not None
        }
        self.tables: dict[Any, Any] = {}
        #: Learns here how kernels are launched; None if nothing but Python launches.
        self.direct: direct.Direct | None = None

    def prepare(self) -> None:
        """Get ready for launches, once CUDA is in use."""
        import torch

        self.current_device = compat.current_device()
        self._stream = compat.current_stream()
        if parts := for_gpus(self.active.composites):
            try:
                self._composites = str(composites_for(parts))
            except CompilerNotFoundError:
                pass  # a wheel without a compiler: activations keep their formulas
            else:
                self.composites = frozenset(n for part in parts for n, _ in part.functions)
        if self.counted:
            from pytest_udftorch.swap.cuda import counters

            self._rows = counters
            counters.counters.prepare(torch.cuda.current_device())

    def row(self, device: int, kernel: str, operator: str) -> Any:
        """Note a launch, and return the row of ``counters`` that it counts in, or None.

        Args:
            device: index of the current GPU.
            kernel: a formula of ``table``, or a kernel over rows.
            operator: ATen's name without ``aten::``.
        """
        if self._checking:
            return None
        _launched.add(kernel)
        if self._rows is None or not self._rows.counters.active:
            return None
        wanted = self._wanted.get(kernel)
        if wanted is None:
            wanted = self._wanted[kernel] = self._rows.layout(kernel, self.counted)
        if not wanted:
            return None
        row = self._rows.counters.row(device, kernel, wanted, operator)
        if row is None and self.direct is not None:
            self.direct.drop()  # a later launch may find room to count
        return row

    def launch(self, key: Any, kernel: str, grid: int, arguments: tuple[Any, ...],
               constants: dict[str, Any], warps: int, registers: int = 0,
               stages: int = 0) -> None:  # fmt: skip
        """Launch a kernel of ``kernels`` on the current device and stream.

        Args:
            key: everything that Triton specialises this kernel on.
            kernel: its name.
            grid: how many programs.
            arguments: the run-time arguments, in order.
            constants: compile-time arguments by name, in order; ``F`` is the name of a formula.
            warps: warps of a program.
            registers: the most that a thread may use; 0 sets no limit.
            stages: how many steps ahead a loop loads; 0 leaves it to Triton.
        """
        try:
            run, fixed, rest = self._launchers[key]
        except KeyError:
            if not self._checked:
                self._check_once()
            options = {"num_warps": warps, "maxnreg": registers, "num_stages": stages}
            self._compile(key, kernel, grid, arguments, constants, options)
            self._publish(key, kernel, grid, arguments, constants)
            return
        # This is how triton.runtime.jit launches a kernel that it finds in its cache.
        hooks = self._hooks
        enter = hooks.launch_enter_hook
        stream = self._stream(self.current_device())
        compiled, function, packed = fixed
        # Newer versions of Triton have a list of hooks, which may be empty.
        quiet = enter is None or not getattr(enter, "calls", True)
        metadata = (
            None if quiet else compiled.launch_metadata((grid, 1, 1), stream, *arguments, *rest)
        )
        run(grid, 1, 1, stream, function, packed, metadata, enter, hooks.launch_exit_hook,
            *arguments, *rest)  # fmt: skip
        self._publish(key, kernel, grid, arguments, constants)

    def _publish(
        self, key: Any, kernel: str, grid: int, arguments: tuple[Any, ...],
        constants: dict[str, Any],
    ) -> None:  # fmt: skip
        """Tell C++ about a launch that it could have made itself, and tapes about any."""
        if self.direct is None or self._checking:
            return
        tapes, pending = recording(), self.direct.pending()
        if not pending and tapes is None:
            return
        compiled = self._launchers[key][1][0]
        name = constants.get("F") or f"{'log_' if constants.get('LOG') else ''}{kernel}"
        if tapes is not None:
            tapes.launched(name, compiled, grid, arguments)
        if pending:
            self.direct.publish(name, kernel, compiled, arguments, constants)

    def _compile(self, key: Any, kernel: str, grid: int, arguments: tuple[Any, ...],
                 constants: dict[str, Any], options: dict[str, int]) -> None:  # fmt: skip
        try:
            import triton
        except ImportError as error:
            raise CudaFormError(
                "A session swaps functions of CUDA operators with Triton kernels, but triton "
                f"cannot be imported: {error}. Install it (pip install triton), or leave CUDA "
                "tensors out of the session."
            ) from error

        if self._hooks is None:
            wake_triton()
        home = _home(kernel)
        self._hooks = triton.knobs.runtime
        formula = str(constants.get("F", ""))
        whole = formula.startswith(WHOLE)
        where = _home("lookup") if whole else home
        rest = tuple(getattr(where, v) if k == "F" else v for k, v in constants.items())
        jit = getattr(home, kernel)
        given: dict[str, Any] = {name: number for name, number in options.items() if number}
        if whole:
            given["extern_libs"] = {"composites": self._composites}
        compiled = compat.uncompiled(jit[(grid,)])(*arguments, *rest, **given, **_OPTIONS)
        fixed = compiled, compiled.function, compiled.packed_metadata
        self._launchers[key] = compiled.run, fixed, rest

    def _check_once(self) -> None:
        """Run the check, unless a CUDA graph is being captured."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return  # A capture cannot wait for a result.
        self._checked = self._checking = True
        try:
            if self._check is not None:
                self._check(self)
        except BaseException:
            self._checked = False
            raise
        finally:
            self._checking = False


# What the kernels ask of tensors --------------------------------------------------------


def stock_kernel(name: str) -> Callable[..., Any]:
    """Return what calls ATen's CUDA kernel of an overload."""
    return switchboard.stock(f"aten::{name}", "CUDA")


def handled() -> frozenset[Any]:
    """Return the dtypes that the kernels handle."""
    import torch

    return frozenset((torch.float32, torch.bfloat16, torch.float16))


def on_device(device: Any) -> AbstractContextManager[None]:
    """Make a GPU the current one while the result is entered."""
    import torch

    return torch.cuda.device(device)
