# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: normal variates.

libtorch makes them from uniform ones by the method of Box and Muller (A note on the generation of
random normal deviates, 1958), 16 at a time, with logarithm, sine and cosine inlined. Here the
uniform variates come from the same generator in the same order, and the functions are those of
the session. Fewer than 16 variates, and those of tensors with gaps, are made by stock in double
precision and stay so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.swap.cpu import direct
from pytest_udftorch.swap.cpu.loops import Loops
from pytest_udftorch.swap.cpu.pointwise import numbers, stock_kernel
from pytest_udftorch.swap.native.runtime import address

#: In the order in which the kernel takes them.
_ORDER: Final = ("log", "cos", "sin")
FUNCTIONS: Final = frozenset(_ORDER)

#: Variates that libtorch makes together: two of each eight pairs of uniform ones.
_BLOCK: Final = 16
_KERNEL: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_float, *(ctypes.c_void_p,) * 2
)

IN_PLACE: Final = "normal_"
#: Overloads whose mean or deviation is a tensor, and how they name their result.
OF_TENSORS: Final = ("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
OVERLOADS: Final = (IN_PLACE, *OF_TENSORS, *(f"{name}_out" for name in OF_TENSORS))


class _BoxMuller:
    """Turns uniform variates into normal ones with the functions of a session."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.ready: Any = None

    def __call__(self, uniform: Any, mean: float, std: float) -> None:
        """Turn whole blocks of float32 in place."""
        if self.ready is None:
            kernel = _KERNEL(address(self.loops.library(), "normal_variates"))
            self.ready = kernel, self.loops.addresses(_ORDER)
        kernel, functions = self.ready
        where = self.loops.threads(IN_PLACE, _ORDER)
        first = uniform.data_ptr()
        kernel(first, uniform.numel(), mean, std, functions, ctypes.byref(where))
        self.loops.publish(first, kernel, functions, _ORDER, where, kind=direct.VARIATES)


def _as_here(stock: Callable[..., Any]) -> bool:
    """Tell whether this libtorch draws 16-bit variates as the kernel below does.

    The order of the draws is no promise of torch's, and another one leaves the generator in
    another state (torch 2.11).
    """
    import torch

    theirs, ours = torch.Generator(), torch.Generator()
    for generator in (theirs, ours):
        generator.manual_seed(0)
    stock(torch.empty(_BLOCK + 4, dtype=torch.float16), 0.0, 1.0, generator=theirs)
    for _ in range(2):
        torch.empty(_BLOCK, dtype=torch.float32).uniform_(generator=ours)
    return bool(torch.equal(theirs.get_state(), ours.get_state()))


def _in_place(turn: _BoxMuller, stock: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    narrow: bool | None = None

    def takes(dtype: Any) -> bool:
        nonlocal narrow
        if dtype is torch.float32:
            return True
        if narrow is None:
            narrow = _as_here(stock)
        return narrow

    def kernel(x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
        if (
            x.dtype not in numbers()
            or x.numel() < _BLOCK
            or not x.is_contiguous()
            or not std >= 0.0
            or not takes(x.dtype)
        ):
            return stock(x, mean, std, generator=generator)
        # bfloat16 and half are rounded once, in the end.
        flat = x.view(-1) if x.dtype is torch.float32 else torch.empty(x.numel())
        whole = flat.numel() // _BLOCK * _BLOCK
        # Only in float32 libtorch draws for the rest, too, what it then draws again.
        (flat if x.dtype is torch.float32 else flat[:whole]).uniform_(generator=generator)
        turn(flat[:whole], mean, std)
        if whole < flat.numel():  # the last 16 are drawn again
            turn(flat[-_BLOCK:].uniform_(generator=generator), mean, std)
        return x if x.dtype is torch.float32 else x.copy_(flat.view(x.shape))

    return kernel


def _empty(*given: Any) -> Any:
    """Return a tensor for the result; None if the arguments do not fit, or are of another dtype."""
    import torch

    broadcast: Any = torch.broadcast_tensors
    try:
        some = broadcast(*(t for t in given if isinstance(t, torch.Tensor)))  # views
    except RuntimeError:
        return None
    dtype = some[0].dtype
    fits = dtype in numbers() and all(t.dtype is dtype for t in some)
    return torch.empty(some[0].shape, dtype=dtype) if fits else None


def _of_tensors(stock: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def kernel(mean: Any, std: Any = 1.0, *, generator: Any = None, out: Any = None) -> Any:
        made = _empty(mean, std)
        if (
            made is None
            or (out is not None and (out.dtype, out.shape) != (made.dtype, made.shape))
            or bool(torch.as_tensor(std).lt(0.0).any())
        ):
            given = {} if out is None else {"out": out}
            return stock(mean, std, generator=generator, **given)
        made.normal_(generator=generator).mul_(std).add_(mean)
        return made if out is None else out.copy_(made)

    return kernel


def kernels(loops: Loops) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel."""
    found = {IN_PLACE: _in_place(_BoxMuller(loops), stock_kernel(IN_PLACE))}
    return found | {name: _of_tensors(stock_kernel(name)) for name in OVERLOADS[1:]}
