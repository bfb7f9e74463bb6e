# SPDX-License-Identifier: Apache-2.0
"""A lower bound on a model's time that no choice of executors goes below.

The bound is the roofline (Williams, Waterman and Patterson, CACM 52 (2009)) of the whole model as
one piece: the multiplications that it must do over the highest rate measured on this device, or
the bytes that it must fetch over the highest bandwidth, whichever takes longer.

It holds for executors that multiply as the definition of convolution and matrix product does
(Winograd's and FFT's convolutions need fewer multiplications), in the model's dtypes and under
torch's present precision flags. Weights that the last-level cache can hold count as free, and so
does everything between layers, since an ideal fusion would keep it on the chip.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.tensor_contents import contents
from pytest_udftorch.measure.timing.timers import SyncTimer, require_device

pytree: Any = compat.pytree()

_CACHES: Final = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Work:
    """What a model must do on given inputs.

    Attributes:
        convolution_flops: of convolutions; a multiplication and an addition count as two.
        product_flops: of matrix products.
        bytes: weights of two or more dimensions that are read, inputs and outputs. Vectors are
            left out, since a compiler can fold them away.
    """

    convolution_flops: int
    product_flops: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Ceilings(Result):
    """The highest rates measured on a device.

    Attributes:
        convolution_flops_per_s: of large convolutions, and of matrix products in the precision
            that convolutions may use.
        product_flops_per_s: of a large matrix product.
        bytes_per_s: of a copy (bytes read and written) and of a reduction.
        cache_bytes: size of the last-level cache; infinite where the system does not tell it.
    """

    convolution_flops_per_s: float
    product_flops_per_s: float
    bytes_per_s: float
    cache_bytes: float

    def _shown(self) -> Shown:
        rates = {
            "FLOP/s of convolutions": self.convolution_flops_per_s,
            "FLOP/s of products": self.product_flops_per_s,
            "bytes/s": self.bytes_per_s,
        }
        cache = f"{self.cache_bytes:.3g} bytes of cache"
        return Shown(", ".join([*(f"{rate:.3g} {unit}" for unit, rate in rates.items()), cache]))

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = asdict(self)
        return {k: round(v) if math.isfinite(v) else None for k, v in found.items()}


class _Counter(OperatorWatch):
    """Counts multiplications, and notes which storages are read as a whole."""

    def __init__(self) -> None:
        self.convolutions = self.products = 0
        self.read: set[int] = set()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator, and count it."""
        result = func(*args, **kwargs)
        packet = compat.packet(func)
        if packet in flop_registry:
            flops = int(flop_registry[packet](*args, **kwargs, out_val=result))
            if "convolution" in str(packet):
                self.convolutions += flops
            else:
                self.products += flops
        # An embedding reads only some rows of its table.
        given = args[1:] if packet is torch.ops.aten.embedding else args
        for value in pytree.tree_leaves((given, kwargs)):
            if isinstance(value, torch.Tensor):
                self.read |= _memory(value)
        return result


def _memory(tensor: Any) -> set[int]:
    """Return where the numbers of a tensor lie."""
    return {part.untyped_storage().data_ptr() for part in contents(tensor) or ()}


def _bytes(tensors: Sequence[Any]) -> int:
    parts = [p for t in tensors if isinstance(t, torch.Tensor) for p in contents(t) or ()]
    once = {p.untyped_storage().data_ptr(): p for p in parts}
    return sum(t.numel() * t.element_size() for t in once.values())


def work(model: nn.Module, inputs: Sequence[Any]) -> Work:
    """Run ``model(*inputs)`` once and return what any executor must do."""
    counter = _Counter()
    with torch.no_grad(), counter:
        output = model(*inputs)
    weights = [
        t
        for t in (*model.parameters(), *model.buffers())
        if t.dim() > 1 and _memory(t) <= counter.read
    ]
    ends = pytree.tree_leaves((list(inputs), output))
    return Work(counter.convolutions, counter.products, _bytes([*weights, *ends]))


def _cache_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes: dict[str, int] = {}
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    for folder in _CACHES.glob("cpu[0-9]*/cache/index3"):
        try:
            text = (folder / "size").read_text(encoding="ascii").strip()
            shared = (folder / "shared_cpu_list").read_text(encoding="ascii")
            sizes[shared] = int(text[:-1]) * units[text[-1]]
        except (OSError, ValueError, KeyError):
            return math.inf
    return float(sum(sizes.values())) or math.inf


def _best_s(device: torch.device, call: Callable[[], object]) -> float:
    timer = SyncTimer(device, runs=5, rounds=3, warmup=3, gpu_state=False)
    timing = timer.compare({"call": call}).complete()["call"]
    return min(timing.runs_ns) / 1e9


@functools.cache
def _ceilings(name: str, flags: tuple[Any, ...]) -> Ceilings:
    device = torch.device(name)
    big = device.type == "cuda"
    side, channels, batch, count = (8192, 256, 32, 2**28) if big else (1024, 64, 4, 2**25)
    with torch.no_grad():
        a = torch.randn(side, side, device=device)
        flops = 2.0 * side**3
        product = flops / _best_s(device, lambda: a @ a)
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(device)
        x = torch.randn(batch, channels, 56, 56, device=device)
        conv_flops = 2.0 * batch * 56**2 * channels**2 * 9
        rates = [product, conv_flops / _best_s(device, lambda: conv(x))]
        conv = conv.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
        rates.append(conv_flops / _best_s(device, lambda: conv(x)))
        if big and torch.backends.cudnn.allow_tf32:
            precision = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high")
            try:
                rates.append(flops / _best_s(device, lambda: a @ a))
            finally:
                torch.set_float32_matmul_precision(precision)
        source = torch.randn(count, device=device)
        target = torch.empty_like(source)
        bandwidth = max(
            8.0 * count / _best_s(device, lambda: target.copy_(source)),
            4.0 * count / _best_s(device, source.amax),
        )
    return Ceilings(max(rates), product, bandwidth, _cache_bytes(device))


def ceilings(device: str | torch.device) -> Ceilings:
    """Return the device's highest rates in float32, measured once in a process.

    Raises:
        DeviceMissingError: CUDA was asked for and is absent.
    """
    found = require_device(device)
    flags = (
        torch.get_num_threads(),
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )
    return _ceilings(str(found), flags)


def bound_ns(work: Work, ceilings: Ceilings) -> float:
    """Return the least time, in ns, in which the work can be done."""
    computing = (
        work.convolution_flops / ceilings.convolution_flops_per_s
        + work.product_flops / ceilings.product_flops_per_s
    )
    fetched = max(0.0, work.bytes - ceilings.cache_bytes)
    return 1e9 * max(computing, fetched / ceilings.bytes_per_s)
