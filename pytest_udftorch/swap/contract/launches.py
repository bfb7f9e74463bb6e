# SPDX-License-Identifier: Apache-2.0
"""Launching the contract's kernels on GPUs, at little cost for one that was launched before."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import CudaFormError
from pytest_udftorch.swap.cuda.launcher import on_device
from pytest_udftorch.swap.overrides.tape import recording


@functools.cache
def kernels() -> Any:
    """Return the module of the kernels.

    Raises:
        CudaFormError: Triton cannot be imported.
    """
    try:
        from pytest_udftorch.swap.contract import triton_kernels
    except ImportError as error:
        raise CudaFormError(
            "The library repro adds and multiplies on GPUs with Triton kernels, but triton cannot "
            f"be imported: {error}. Install it (pip install triton), or keep tensors on the CPU."
        ) from error
    return triton_kernels


#: Modules of kernels in Gluon.
_GLUON: Final = ("gluon_exact", "gluon_products")


@functools.cache
def gluon(name: str) -> Any:
    """Return a module of kernels in Gluon, or None if this version of Triton lacks its words."""
    try:
        return importlib.import_module(f"{__package__}.{name}")
    except (ImportError, AttributeError):
        return None


@functools.cache
def _kernel(name: str) -> Any:
    """Return a kernel of a name.

    Raises:
        CudaFormError: Triton cannot be imported.
    """
    if hasattr(kernels(), name):
        return getattr(kernels(), name)
    from pytest_udftorch.swap.contract import triton_attention, triton_exact

    modules = (triton_exact, triton_attention, *map(gluon, _GLUON))
    return next(getattr(module, name) for module in modules if hasattr(module, name))


@functools.cache
def _current() -> tuple[Any, Any]:
    """Return the functions that give the current GPU, and the current stream of one."""
    return compat.current_device(), compat.current_stream()


def stream(index: int) -> int:
    """Return the current stream of a GPU."""
    found: int = _current()[1](index)
    return found


class Launch:
    """A kernel with everything that a call does not change; only tensors differ.

    Args:
        name: of the kernel.
        programs: how many.
        device: the GPU.
        numbers: the arguments behind the tensors, in order.
        constants: the compile-time arguments by name, in order.
        warps: of a program.
        stages: how many steps ahead a loop loads; 0 leaves it to Triton.
        registers: the most that a thread may have; 0 leaves it to Triton.
    """

    __slots__ = (
        "_found", "_options", "constants", "device", "name", "numbers", "programs", "warps"
    )  # fmt: skip

    def __init__(
        self, name: str, programs: int, device: Any, numbers: Sequence[Any],
        constants: Mapping[str, Any], warps: int, stages: int = 0, registers: int = 0,
    ) -> None:  # fmt: skip
        self.name, self.programs, self.device = name, programs, device
        self.numbers, self.constants = tuple(numbers), dict(constants)
        self.warps = warps
        chosen = {"num_stages": stages, "maxnreg": registers}
        self._options = {name: number for name, number in chosen.items() if number}
        self._found: dict[Any, Any] = {}

    def __call__(self, *tensors: Any) -> None:
        """Launch on the current stream of the GPU.

        Args:
            tensors: the first arguments of the kernel; each may be None, always or never.
        """
        self.run(tensors, self.numbers)

    def run(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> None:
        """Launch with other numbers, of the same types, ranges and divisors where that matters."""
        current_device, current_stream = _current()
        index = self.device.index
        if index != current_device():
            with on_device(self.device):
                self.run(tensors, numbers)
            return
        address = 0
        for t in tensors:
            if t is not None:
                address |= t.data_ptr()
        # Triton compiles a kernel for each pattern of alignment: see ``cuda.launcher``.
        key = address & 15 == 0 or tuple(t is None or t.data_ptr() & 15 == 0 for t in tensors)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._compiled(tensors, numbers)
            self._record(found[0], tensors, numbers)
            return
        # This is how triton.runtime.jit launches a kernel that it finds in its cache.
        compiled, run, function, packed, rest, hooks = found
        current, enter = current_stream(index), hooks.launch_enter_hook
        metadata = None
        # Newer versions of Triton have a list of hooks, which may be empty.
        if enter is not None and getattr(enter, "calls", True):
            grid = (self.programs, 1, 1)
            metadata = compiled.launch_metadata(grid, current, *tensors, *numbers, *rest)
        run(self.programs, 1, 1, current, function, packed, metadata, enter, hooks.launch_exit_hook,
            *tensors, *numbers, *rest)  # fmt: skip
        self._record(compiled, tensors, numbers)

    def _record(self, compiled: Any, tensors: Sequence[Any], numbers: Sequence[Any]) -> None:
        if tapes := recording():
            tapes.launched(self.name, compiled, self.programs, (*tensors, *numbers))

    def _compiled(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
        """Compile and launch; return what a further launch needs."""
        compiled = compat.uncompiled(_kernel(self.name)[(self.programs,)])(
            *tensors, *numbers, **self.constants, **self._options, num_warps=self.warps,
            enable_fp_fusion=False,
        )  # fmt: skip
        rest = tuple(self.constants.values())
        hooks = kernels().triton.knobs.runtime
        return compiled, compiled.run, compiled.function, compiled.packed_metadata, rest, hooks


@functools.lru_cache(maxsize=8192)
def _launch(
    name: str, programs: int, device: Any, numbers: tuple[Any, ...],
    constants: tuple[tuple[str, Any], ...], warps: int, stages: int, absent: tuple[bool, ...],
) -> Launch:  # fmt: skip
    return Launch(name, programs, device, numbers, dict(constants), warps, stages)


def _wide(number: int) -> bool:
    return not -(1 << 31) <= number < 1 << 31


def launch(
    name: str, programs: int, tensors: Sequence[Any], numbers: Sequence[Any],
    constants: Mapping[str, Any], warps: int, stages: int = 0, free: int = 0,
) -> None:  # fmt: skip
    """Launch a kernel on the current stream of the GPU of its first tensor.

    Args:
        name: of the kernel.
        programs: how many.
        tensors: the first arguments; each may be None.
        numbers: the arguments behind them.
        constants: the compile-time arguments by name, in order.
        warps: of a program.
        stages: how many steps ahead a loop loads; 0 leaves it to Triton.
        free: so many of the last numbers are integers that differ from call to call, and that
            the kernel is not specialised on.
    """
    absent = tuple([t is None for t in tensors])
    device = tensors[absent.index(False)].device
    cut = len(numbers) - free
    kept = tuple([0.0 if type(n) is float else n for n in numbers[:cut]])
    kept += tuple([_wide(n) for n in numbers[cut:]])
    given = tuple(constants.items())
    found = _launch(name, programs, device, kept, given, warps, stages, absent)
    found.run(tensors, numbers)
