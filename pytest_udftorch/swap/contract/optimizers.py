# SPDX-License-Identifier: Apache-2.0
"""Fused optimizers, by the operators that ``foreach=False`` calls, so with the same bits.

The stock kernels have roots and roundings of their own: that of SGD rounds a product which the
operator fuses. In 16 bits a number is rounded before it is added, as on CPUs, and a sum with a
product once: torch rounds the factor in some places of a vector, and not in others.
"""

from __future__ import annotations

from typing import Any

from pytest_udftorch.swap.contract.sixteen import NAMES, held


def _scaled(grads: Any, grad_scale: Any, maximize: bool) -> list[Any]:
    """Divide gradients by the scale of a GradScaler, in place; turn them around to ascend."""
    if grad_scale is not None:
        for g in grads:
            g.div_(grad_scale)
    return [-g for g in grads] if maximize else list(grads)


def _skipped(found_inf: Any) -> bool:
    """Tell whether a GradScaler found a gradient that is not finite."""
    return found_inf is not None and float(found_inf) == 1.0


def _sum(x: Any, y: Any, factor: float) -> Any:
    """Return x + factor * y, rounded once."""
    if str(x.dtype) in NAMES:
        return x.float().add_(y.float(), alpha=factor).to(x.dtype)
    return x.add(y, alpha=factor)


def _add_(x: Any, y: Any, factor: float) -> None:
    """Add factor * y to x, rounded once."""
    if str(x.dtype) in NAMES:
        x.copy_(_sum(x, y, factor))
    else:
        x.add_(y, alpha=factor)


def _adam(  # noqa: PLR0913 - torch's signature
    params: Any, grads: Any, averages: Any, squares: Any, largest: Any, steps: Any, *, lr: Any,
    beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Any, found_inf: Any, decoupled: bool,
) -> None:  # fmt: skip
    import torch

    if _skipped(found_inf):
        return
    rate = float(lr)
    grads = _scaled(grads, grad_scale, maximize)
    for i, (p, g, m, v) in enumerate(zip(params, grads, averages, squares, strict=True)):
        if weight_decay != 0 and decoupled:
            p.mul_(1 - rate * weight_decay)
        elif weight_decay != 0:
            g = _sum(g, p, weight_decay)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        step = float(steps[i])
        size, correction = rate / (1 - beta1**step), (1 - beta2**step) ** 0.5
        if amsgrad:
            torch.maximum(largest[i], v, out=largest[i])
        below = (largest[i] if amsgrad else v).sqrt().div_(correction).add_(held(eps, v.dtype))
        p.addcdiv_(m, below, value=-size)


def fused_adam_(  # noqa: PLR0913 - torch's signature
    self: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any,
    state_steps: Any, *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float,
    amsgrad: bool, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    """Do a step of Adam."""
    _adam(
        self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr=lr, beta1=beta1,
        beta2=beta2, weight_decay=weight_decay, eps=eps, amsgrad=amsgrad, maximize=maximize,
        grad_scale=grad_scale, found_inf=found_inf, decoupled=False,
    )  # fmt: skip


def fused_adamw_(  # noqa: PLR0913 - torch's signature
    self: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any,
    state_steps: Any, *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float,
    amsgrad: bool, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    """Do a step of AdamW."""
    _adam(
        self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr=lr, beta1=beta1,
        beta2=beta2, weight_decay=weight_decay, eps=eps, amsgrad=amsgrad, maximize=maximize,
        grad_scale=grad_scale, found_inf=found_inf, decoupled=True,
    )  # fmt: skip


def fused_sgd_(  # noqa: PLR0913 - torch's signature
    self: Any, grads: Any, momentum_buffer_list: Any, *, weight_decay: float, momentum: float,
    lr: Any, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    """Do a step of SGD."""
    if _skipped(found_inf):
        return
    rate = float(lr)
    for i, (p, g) in enumerate(zip(self, _scaled(grads, grad_scale, maximize), strict=True)):
        if weight_decay != 0:
            g = _sum(g, p, weight_decay)
        if momentum != 0:
            buffer = momentum_buffer_list[i]
            if is_first_step:
                buffer.copy_(g)
            else:
                _add_(buffer.mul_(momentum), g, 1 - dampening)
            g = _sum(g, buffer, momentum) if nesterov else buffer
        _add_(p, g, -rate)


def fused_adagrad_(  # noqa: PLR0913 - torch's signature
    self: Any, grads: Any, state_sums: Any, state_steps: Any, *, lr: Any, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    """Do a step of Adagrad."""
    if _skipped(found_inf):
        return
    grads = _scaled(grads, grad_scale, maximize)
    for p, g, total, step in zip(self, grads, state_sums, state_steps, strict=True):
        if weight_decay != 0:
            g = _sum(g, p, weight_decay)
        rate = float(lr) / (1 + (float(step) - 1) * lr_decay)
        total.addcmul_(g, g, value=1)
        p.addcdiv_(g, total.sqrt().add_(held(eps, total.dtype)), value=-rate)
