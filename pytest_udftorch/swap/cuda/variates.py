# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: random variates that are functions of uniform numbers.

The stock kernel runs first: it checks the call, and leaves the generator as it always does. The
kernels of ``philox`` then draw the same words again and apply the session's functions. That torch
draws as these kernels do is no promise of its documentation, so the first call of a process
compares the two. Where they differ, and while a CUDA graph is captured, whose draws only the graph
knows, the variates are composed of uniform numbers and operators.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, on_device, stock_kernel
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.operators.tensors import alignment

_Kernels = dict[str, Callable[..., Any]]
#: The two numbers that a kernel takes, from an operator's.
_Numbers = Callable[..., tuple[float, float]]

_THREADS: Final = 256
_DRAWN: Final = 4
_BLOCK: Final = 256
#: Counters of Philox that a program takes, of which each gives four numbers.
_QUADS: Final = 512
_WARPS: Final = 4


def _logarithm(p: float) -> tuple[float, float]:
    import torch

    return float(torch.log1p(torch.tensor(-p, dtype=torch.float32))), 0.0


_NUMBERS: Final[dict[str, _Numbers]] = {
    "normal_": lambda mean=0.0, std=1.0: (mean, std),
    "log_normal_": lambda mean=1.0, std=2.0: (mean, std),
    "exponential_": lambda rate=1.0: (-1.0 / rate, 0.0),
    "geometric_": _logarithm,
    "cauchy_": lambda median=0.0, sigma=1.0: (median, sigma),
}


def _composed(name: str, shape: Any, device: Any, generator: Any, a: float, b: float) -> Any:
    """Return variates made of uniform numbers by operators."""
    import torch

    u = 1.0 - torch.rand(shape, device=device, generator=generator, dtype=torch.float32)
    match name:
        case "normal_" | "log_normal_":
            v = torch.rand(shape, device=device, generator=generator, dtype=torch.float32)
            made = a + b * (torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * math.pi * v))
            return made if name == "normal_" else torch.exp(made)
        case "exponential_":
            return a * torch.log(u).clamp(max=-(2.0**-24))
        case "geometric_":
            return torch.ceil(torch.log(u) / a).clamp_(min=1.0)
    return a + b * torch.tan(math.pi * (u - 0.5))


@functools.cache
def _threads_at_most(device: int) -> int:
    import torch

    known: Any = torch.cuda.get_device_properties(device)
    blocks = known.max_threads_per_multi_processor // _THREADS
    return int(known.multi_processor_count * blocks * _THREADS)


def _fill(launcher: Launcher, name: str, y: Any, seed: int, offset: int, a: float,
          b: float) -> None:  # fmt: skip
    """Fill a contiguous tensor with the words that the generator gives from an offset on."""
    index, n = y.get_device(), y.numel()
    if index != launcher.current_device():
        with on_device(y.device):
            _fill(launcher, name, y, seed, offset, a, b)
        return
    seed -= 1 << 64 if seed >> 63 else 0
    offset //= _DRAWN
    threads = min(-(-n // _THREADS) * _THREADS, _threads_at_most(index))
    draws = -(-n // (threads * _DRAWN))
    rest = n - (draws - 1) * threads * _DRAWN
    pairs = (draws - 1) * threads * 2 + min(rest, threads)
    pairs += min(max(rest - 2 * threads, 0), threads)
    normal = name in ("normal_", "log_normal_")
    function = f"{name}variates"
    row = None if name == "uniform_" else launcher.row(index, function, name)
    kernel = "normal_variates" if normal else "variates_of_uniform"
    constants = {"LOG": name == "log_normal_"} if normal else {"F": function}
    launcher.launch(
        (function, y.dtype, alignment((y,)), index, row is None,
         *(not -(2**31) <= k < 2**31 for k in (n, pairs, seed, offset, threads))),
        kernel, draws * threads // _BLOCK,
        (y, n, pairs, seed, offset, threads, float(a), float(b), row),
        {**constants, "BLOCK": _BLOCK}, _WARPS,
    )  # fmt: skip


#: What normal variates are made of.
_OF_NORMALS: Final = frozenset(("log", "sin", "cos"))


def normals_of_places(launcher: Launcher, y: Any, key: int, mean: float, std: float) -> bool:
    """Fill a dense float32 tensor with the normal variates that a key gives to places.

    Args:
        launcher: of the open session.
        y: the tensor.
        key: of Philox, as an int64.
        mean: is added to each variate.
        std: each variate is multiplied by it before.

    Returns:
        whether it did. It does not where a function is not the session's, or not correctly rounded,
        or is counted: the kernel has functions of its own for the few arguments that there are.
    """
    if launcher.counted or _OF_NORMALS - launcher.correct:
        return False
    index, n = y.get_device(), y.numel()
    if index != launcher.current_device():
        with on_device(y.device):
            return normals_of_places(launcher, y, key, mean, std)
    steps = {"SCALED": std != 1, "SHIFTED": mean != 0, "WHOLE": n % _DRAWN == 0}
    launcher.launch(
        ("normals_of_places", alignment((y,)), index, *steps.values(),
         *(not -(2**31) <= k < 2**31 for k in (n, key))),
        "normals_of_places", -(-n // (_DRAWN * _QUADS)), (y, n, key, float(mean), float(std)),
        {**steps, "BLOCK": _QUADS}, _WARPS,
    )  # fmt: skip
    return True


class _Draws:
    """Draws what the generators of torch draw."""

    #: GPU -> whether torch draws there as the kernels here do.
    alike: ClassVar[dict[int, bool]] = {}

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.stock_uniform = stock_kernel("uniform_")

    def as_here(self, device: Any) -> bool:
        """Tell whether this torch draws as the kernels here do."""
        import torch

        index = device.index
        if index not in self.alike:
            generator = torch.Generator(device=device).manual_seed(5)
            alike = True
            # A draw for each thread, and several.
            for n in (1000, 5 * _threads_at_most(index) + 777):
                offset = generator.get_offset()
                theirs = torch.empty(n, dtype=torch.float32, device=device)
                self.stock_uniform(theirs, 0.0, 1.0, generator=generator)
                ours = torch.empty_like(theirs)
                _fill(self.launcher, "uniform_", ours, 5, offset, 0.0, 0.0)
                alike = alike and bool((ours == theirs).all())
            self.alike[index] = alike
        return self.alike[index]

    def kernel(self, name: str) -> Callable[..., Any]:
        """Return the kernel of a distribution."""
        import torch

        numbers, stock = _NUMBERS[name], stock_kernel(name)

        def kernel(x: Any, *args: float, generator: Any = None) -> Any:
            source = generator or torch.cuda.default_generators[x.get_device()]
            captured = torch.cuda.is_current_stream_capturing()
            offset = 0 if captured else source.get_offset()
            stock(x, *args, generator=generator)
            n = x.numel()
            if x.dtype not in handled() or n == 0 or n >= 2**31:
                return x
            a, b = numbers(*args)
            if captured or not self.as_here(x.device):
                return x.copy_(_composed(name, x.shape, x.device, generator, a, b))
            # torch goes through memory.
            order = sorted(range(x.dim()), key=x.stride, reverse=True)
            inside = x.permute(order)
            direct = inside.is_contiguous()
            y = inside if direct else torch.empty(inside.shape, dtype=x.dtype, device=x.device)
            _fill(self.launcher, name, y, source.initial_seed(), offset, a, b)
            if not direct:
                inside.copy_(y)
            return x

        return kernel


def _device(tensors: Sequence[Any]) -> int:
    """Return the GPU of a call: a tensor of one number may be the CPU's."""
    return next(int(t.get_device()) for t in tensors if t.is_cuda)


def _of_tensors(name: str) -> Callable[..., Any]:
    """Return the kernel of a normal distribution whose mean or deviation is a tensor."""
    import torch

    stock = stock_kernel(name)

    def kernel(mean: Any, std: Any = 1.0, *, generator: Any = None, **given: Any) -> Any:
        tensors = [t for t in (mean, std) if isinstance(t, torch.Tensor)]
        source = generator or torch.cuda.default_generators[_device(tensors)]
        captured = torch.cuda.is_current_stream_capturing()
        offset = 0 if captured else source.get_offset()
        if given:  # the result may be one of them
            mean, std = (t.clone() if isinstance(t, torch.Tensor) else t for t in (mean, std))
        y = stock(mean, std, generator=generator, **given)
        if y.dtype not in handled() or not y.numel():
            return y
        if not captured:
            source.set_offset(offset)
        made = torch.empty_like(y).normal_(generator=generator)
        return y.copy_(made.mul_(std).add_(mean))

    return kernel


def variate_kernels(launcher: Launcher, op: Operator) -> _Kernels:
    """Return overload -> kernel of a distribution."""
    name, *others = op.overloads
    return {
        name: _Draws(launcher).kernel(name),
        **{other: _of_tensors(other) for other in others},
    }
