# SPDX-License-Identifier: Apache-2.0
"""Eager float64 operators on CUDA: those that are one function of one tensor.

Their kernels go around those for float32, bfloat16 and half, which get all other calls. A profiled
session does not count them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.errors import SwapError
from pytest_udftorch.swap.cuda.launcher import Launcher, on_device, stock_kernel, wake_triton
from pytest_udftorch.swap.operators.row import Pointwise
from pytest_udftorch.swap.operators.table import POINTWISE
from pytest_udftorch.swap.operators.tensors import is_dense, may_share
from pytest_udftorch.swap.overrides import canary
from pytest_udftorch.swap.toolchain.libdevice import doubles_for_gpus

#: The functions that ``double_kernels`` has.
NAMES: Final = ("exp", "exp2", "log", "log1p", "log2", "sin", "cos", "tanh")

#: Elements of a program, and its warps.
_BLOCK: Final = 512
_WARPS: Final = 4

_Kernels = dict[str, Callable[..., Any]]


class Doubles:
    """Launches the float64 functions of one set of active functions."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.checked: set[str] = set()

    def run(self, function: str, x: Any, y: Any) -> None:
        """Compute ``y`` from a tensor of the same strides; both are float64 and dense.

        Raises:
            SwapError: the kernel does not give the UDF's bits.
        """
        if not y.numel():
            return
        if function not in self.checked:
            self.checked.add(function)
            try:
                self.check(function, y.device)
            except BaseException:
                self.checked.discard(function)
                raise
        self.launch(function, x, y)

    def launch(self, function: str, x: Any, y: Any) -> None:
        """Launch the kernel."""
        wake_triton()
        from pytest_udftorch.swap.cuda import double_kernels

        n = y.numel()
        with on_device(y.device):
            double_kernels.unary_double[(-(-n // _BLOCK),)](
                x, y, n, getattr(double_kernels, function), _BLOCK,
                num_warps=_WARPS, enable_fp_fusion=False,
            )  # fmt: skip

    def check(self, function: str, device: Any) -> None:
        """Check the canary's inputs, unless a CUDA graph is being captured."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        build = next(
            part.build
            for part in self.launcher.active.parts
            if (function, "float64") in part.functions
        )
        known = canary.case(build, function, "float64")
        x = known.layouts["contiguous"][0].to(device)
        y = torch.empty_like(x)
        self.launch(function, x, y)
        different = y.cpu().view(torch.int64) != known.encodings
        if bool(different.any()):
            at = int(different.to(torch.uint8).argmax())
            raise SwapError(
                f"The Triton kernel of float64 {function} for eager CUDA gives "
                f"{float(y[at]).hex()} for {float(x[at]).hex()} where the UDF gives "
                f"{float(known.expected[at]).hex()}: Triton did not link the library of the "
                "session, or changed its results. Report triton's version, and keep float64 "
                "tensors on CUDA out of the session."
            )


def double_kernels(launcher: Launcher, made: _Kernels) -> _Kernels:
    """Return overload -> kernel for float64 tensors, which hands other calls on to ``made``."""
    names = doubles_for_gpus(launcher.active.parts).intersection(NAMES)
    doubles = Doubles(launcher)
    found: _Kernels = {}
    for op in POINTWISE:
        if op.name in names:
            found |= _kernels(doubles, op, made)
    return found


def _kernels(doubles: Doubles, op: Pointwise, made: _Kernels) -> _Kernels:
    import torch

    inner = {name: made.get(name) or stock_kernel(name) for name in op.overloads}
    stock = {name: stock_kernel(name) for name in op.overloads}
    double = torch.float64

    def over(x: Any, y: Any) -> Any:
        """Overwrite what the stock kernel has computed, whatever its strides and dtype."""
        found = torch.empty_like(x, memory_format=torch.contiguous_format)
        doubles.run(op.name, x.contiguous(), found)
        return y.copy_(found)

    def functional(x: Any) -> Any:
        if x.dtype is not double:
            return inner[op.functional](x)
        if not is_dense(x):
            return over(x, stock[op.functional](x))
        y = torch.empty_like(x)
        doubles.run(op.name, x, y)
        return y

    def inplace(x: Any) -> Any:
        if x.dtype is not double:
            return inner[op.inplace](x)
        kept = x.clone() if not is_dense(x) else x
        if kept is not x:
            return over(kept, stock[op.inplace](x))
        doubles.run(op.name, x, x)
        return x

    found: _Kernels = {op.functional: functional, op.inplace: inplace}
    if op.out is not None:
        name = op.out[0]

        def out_kernel(x: Any, *, out: Any) -> Any:
            if x.dtype is not double:
                return inner[name](x, out=out)
            kept = x.clone() if may_share(x, out) else x
            # The stock kernel checks the call and resizes.
            return over(kept, stock[name](x, out=out))

        found[name] = out_kernel
    if op.foreach:
        found[f"_foreach_{op.name}"] = lambda tensors: [functional(t) for t in tensors]

        def several(tensors: Any) -> None:
            for tensor in tensors:
                inplace(tensor)

        found[f"_foreach_{op.name}_"] = several
    return found
