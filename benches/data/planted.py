# SPDX-License-Identifier: Apache-2.0
"""Models, and faults that can be planted into their operators through torch's dispatcher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import models as vision

from benches.data.models import small
from benches.data.models.lenet import LeNet
from benches.data.models.transformer import Transformer

ATEN = torch.ops.aten


# Models ------------------------------------------------------------------------------


def _images(size: int, rows: int = 4, channels: int = 3) -> torch.Tensor:
    return torch.randn(rows, channels, size, size)


#: Name -> what makes a model and its inputs; the faults of these guided the development.
SEEN: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "LeNet": lambda: (LeNet(), _images(28, 8, 1)),
    "ResNet-18": lambda: (vision.resnet18(num_classes=10), _images(64)),
    "MobileNet v3": lambda: (vision.mobilenet_v3_small(num_classes=10), _images(64)),
    "ViT, 3 layers": lambda: (
        vision.VisionTransformer(32, 8, 3, 4, 64, 128, num_classes=10), _images(32)
    ),
    "Swin, 2 stages": lambda: (
        vision.SwinTransformer([4, 4], 32, [1, 1], [2, 4], [4, 4], num_classes=10), _images(32)
    ),
    "decoder": lambda: (Transformer(40, 32, 64), torch.randint(40, (4, 32))),
    "encoder": lambda: (small.Encoder(), torch.randn(4, 16, 48)),
    "LSTM": lambda: (small.Recurrent(), torch.randn(4, 12, 24)),
}  # fmt: skip

#: Likewise; these were held out until the figures were measured.
HELD_OUT: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "perceptron": lambda: (small.perceptron(), torch.randn(16, 20)),
    "U-Net": lambda: (small.UNet(), _images(16)),
    "variational": lambda: (small.Variational(), torch.randn(8, 32)),
    "temporal": lambda: (small.Temporal(), torch.randn(4, 8, 32)),
    "mixer": lambda: (small.Mixer(), _images(32)),
    "graph": lambda: (small.Graph(), torch.randn(24, 16)),
    "translator": lambda: (
        small.Translator(), (torch.randint(30, (4, 12)), torch.randint(30, (4, 8)))
    ),
    "recommender": lambda: (
        small.Recommender(), (torch.randn(6, 5), torch.randint(20, (6, 3, 4)))
    ),
    "gated": lambda: (small.Gated(), torch.randint(40, (4, 12))),
    "GRU": lambda: (small.Recurrent(nn.GRU), torch.randn(4, 12, 24)),
    "DenseNet": lambda: (vision.DenseNet(8, (2, 2), 16, num_classes=10), _images(32)),
    "ShuffleNet v2": lambda: (vision.shufflenet_v2_x0_5(num_classes=10), _images(64)),
}  # fmt: skip

MODELS = {**SEEN, **HELD_OUT}


def make(name: str) -> tuple[nn.Module, Any]:
    """Return a model in training mode, whose modules know their paths, and its inputs."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    for path, module in model.named_modules():
        module.planted_path = path or type(model).__name__
    return model.train(), inputs


# Faults ------------------------------------------------------------------------------


def _first(result: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change the first tensor of a result; the gradient of a model's inputs may be missing."""
    if isinstance(result, tuple):
        at = _first_tensor(result)
        return (*result[:at], change(result[at]), *result[at + 1 :])
    return change(result)


def _first_tensor(result: tuple[Any, ...]) -> int:
    return next(i for i, part in enumerate(result) if part is not None)


def _next_number(value: torch.Tensor) -> torch.Tensor:
    changed = value.clone(memory_format=torch.contiguous_format)
    flat = changed.view(-1)
    at = int(flat.abs().argmax())
    flat[at] = torch.nextafter(flat[at], torch.full((), float("inf"), dtype=flat.dtype))
    return changed


def one_ulp(func: Any, args: Any, kwargs: Any) -> Any:
    """Give the largest element's upper neighbour."""
    return _first(func(*args, **kwargs), _next_number)


def _epsilon(func: Any, args: Any, kwargs: Any) -> Any:
    names = [a.name for a in func._schema.arguments]
    changed = list(args)
    changed[names.index("eps")] *= 10
    return func(*changed, **kwargs)


def _in_double(func: Any, args: Any, kwargs: Any) -> Any:
    wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
    return func(*wide, **kwargs).float()


def _split_product(func: Any, args: Any, kwargs: Any) -> Any:
    """Add the parts of a product up in half precision."""
    if func is ATEN.convolution.default:
        x, weight, bias, *rest = args
        parts = [
            func(x[:, i : i + 1], weight[:, i : i + 1], None, *rest) for i in range(x.shape[1])
        ]
        total = _half_sum(parts)
        return total if bias is None else total + bias.view(1, -1, *[1] * (total.dim() - 2))
    *addend, a, b = args
    size = max(1, a.shape[-1] // 8)
    parts = [a[..., i : i + size] @ b[..., i : i + size, :] for i in range(0, a.shape[-1], size)]
    return _half_sum(parts) + (addend[0] if addend else 0.0)


def _half_sum(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].half()
    for part in parts[1:]:
        total = total + part.half()
    return total.float()


def _tile_edge(func: Any, args: Any, kwargs: Any) -> Any:
    def transposed(value: torch.Tensor) -> torch.Tensor:
        changed = value.clone()
        edge = changed[..., -4:, -4:]
        edge.copy_(edge.mT.clone())
        return changed

    return _first(func(*args, **kwargs), transposed)


def _lost_mask(func: Any, args: Any, kwargs: Any) -> Any:
    if func is ATEN.add.Tensor:  # an additive mask
        return args[0].clone()
    if func is ATEN.native_dropout.default:
        return args[0] / (1 - args[1]), torch.ones_like(args[0], dtype=torch.bool)
    if "attention" in func.name():
        return func(*args, **{**kwargs, "attn_mask": None})

    def unmasked(value: torch.Tensor) -> torch.Tensor:
        changed = value.clone(memory_format=torch.contiguous_format)
        count = max(1, changed.numel() // 16)
        source = args[0].expand_as(changed).contiguous().view(-1)
        changed.view(-1)[-count:] = source[-count:]
        return changed

    return unmasked(func(*args, **kwargs))


def _decomposition(func: Any, args: Any, kwargs: Any) -> Any:
    x = args[0]
    if func is ATEN.gelu.default:
        other = "none" if kwargs.get("approximate") == "tanh" else "tanh"
        return func(x, approximate=other)
    if func is ATEN.native_layer_norm.default:
        weight, bias, eps = args[2:]
        mean, scale = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + eps).rsqrt()
        return (x - mean) * scale * weight + bias, mean, scale
    if func in (ATEN.hardswish_.default, ATEN.hardswish.default):
        return (
            x.copy_(x * (x + 3).clamp(0, 6) * 0.1666)
            if "_." in f"{func.name()}."
            else (x * (x + 3).clamp(0, 6) * 0.1666)
        )
    if func is ATEN._log_softmax.default:
        return (x - x.max(args[1], keepdim=True).values).softmax(args[1]).add(1e-6).log()
    return x.clamp(-8, 8).softmax(args[1]).half().float()  # softmax


def _other_order(func: Any, args: Any, kwargs: Any) -> Any:
    if func is ATEN.convolution.default:
        return func(args[0].flip(1), args[1].flip(1), *args[2:])
    *addend, a, b = args
    return func(*addend, a.flip(-1), b.flip(-2))


def _is_mask(func: Any, args: Any, kwargs: Any) -> bool:
    if func is ATEN.add.Tensor:
        other = args[1]
        return isinstance(other, torch.Tensor) and bool((other == float("-inf")).any())
    if "attention" in func.name():
        return kwargs.get("attn_mask") is not None
    return True


def _is_product(func: Any, args: Any, kwargs: Any) -> bool:
    if func is not ATEN.convolution.default:
        return True
    return bool(args[8] == 1 and args[0].shape[1] > 1 and not args[6])


def _has_tile(func: Any, args: Any, kwargs: Any) -> bool:
    shape = args[-1].shape if func in _MATRICES else args[0].shape
    rows = args[-2].shape if func in _MATRICES else args[0].shape
    return len(shape) > 1 and shape[-1] >= 4 and rows[-2] >= 4


def _always(func: Any, args: Any, kwargs: Any) -> bool:
    return True


_MATRICES = (ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default)
_PRODUCTS = (*_MATRICES, ATEN.convolution.default)
_NORMS = (ATEN.native_layer_norm.default, ATEN.native_batch_norm.default)
_GRADIENTS = (
    ATEN.convolution_backward.default, ATEN.gelu_backward.default,
    ATEN.native_layer_norm_backward.default, ATEN.native_batch_norm_backward.default,
    ATEN.threshold_backward.default, ATEN._softmax_backward_data.default,
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A way in which an operator can be wrong.

    Attributes:
        operators: in which it can be planted.
        call: computes the operator wrongly.
        fits: whether it can be planted into a call.
        excused: whether rounding may explain what it does.
    """

    operators: tuple[Any, ...]
    call: Callable[[Any, Any, Any], Any]
    fits: Callable[[Any, Any, Any], bool] = _always
    excused: bool = False


FAULTS: dict[str, Fault] = {
    "one ULP off": Fault(
        (
            *_PRODUCTS, *_NORMS, ATEN.add.Tensor, ATEN.mul.Tensor, ATEN.gelu.default,
            ATEN.tanh.default, ATEN._softmax.default, ATEN._log_softmax.default, ATEN.elu.default,
        ),
        one_ulp,
        excused=True,
    ),
    "one ULP off, backward": Fault(_GRADIENTS, one_ulp, excused=True),
    "wrong epsilon": Fault(_NORMS, _epsilon),
    "dropped rounding": Fault(_PRODUCTS, _in_double, excused=True),
    "lost mask": Fault(
        (
            ATEN.add.Tensor, ATEN.threshold_backward.default, ATEN.native_dropout.default,
            ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        ),
        _lost_mask,
        _is_mask,
    ),
    "half-precision accumulation": Fault(_PRODUCTS, _split_product, _is_product),
    "transposed tile edge": Fault(_PRODUCTS, _tile_edge, _has_tile),
    "wrong decomposition": Fault(
        (
            ATEN.gelu.default, ATEN.native_layer_norm.default, ATEN._softmax.default,
            ATEN.hardswish_.default, ATEN._log_softmax.default,
        ),
        _decomposition,
    ),
    "another order": Fault(_PRODUCTS, _other_order, _is_product, excused=True),
}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A call into which a fault can be planted.

    Attributes:
        operator: the overload's name.
        layer: the path of its module; empty in a backward pass.
        number: which call of an operator of the fault it is.
    """

    operator: str
    layer: str
    number: int


@dataclass
class Plant:
    """Plants a fault at one call while its context is entered; at none, it lists the sites.

    Attributes:
        fault: what is planted.
        number: which of the calls that fit, or None.
        sites: the calls that fit.
        changed: whether the planted call gave other bits.
    """

    fault: Fault
    number: int | None = None
    sites: list[Site] = field(default_factory=list)
    changed: bool = False

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Return the context."""
        stack: list[str] = []

        def enter(module: Any, *_: Any) -> None:
            stack.append(module.planted_path)

        def leave(*_: Any) -> None:
            stack.pop()

        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        self.sites.clear()
        try:
            with self._mode(stack):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _mode(self, stack: list[str]) -> TorchDispatchMode:
        plant = self

        class Planting(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                kwargs = kwargs or {}
                fault = plant.fault
                if func not in fault.operators or not fault.fits(func, args, kwargs):
                    return func(*args, **kwargs)
                here = Site(func.name(), stack[-1] if stack else "", len(plant.sites))
                plant.sites.append(here)
                if plant.number != here.number:
                    return func(*args, **kwargs)
                before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
                right = func(*before, **kwargs)
                wrong = fault.call(func, args, kwargs)
                pair = [r[_first_tensor(r)] if isinstance(r, tuple) else r for r in (right, wrong)]
                plant.changed = not torch.equal(*pair)
                return wrong

        return Planting()
