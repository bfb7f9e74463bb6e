# SPDX-License-Identifier: Apache-2.0
"""The operation ratio: fma, div, mult and add for each exp or log, by stage of a training step.

    python -m benches.experiments.profile_operations [--mnist DIR] [--cifar DIR] [--store FILE]

The command counts one real training step: a dispatch mode sees every ATen operator with its real
arguments, and a table says how many arithmetic operations the operator's definition takes
for these shapes. An operator that the table does not have is an error, not a zero.

Definition of the counts, in float32 or float64 operations on single elements:

- fma: a multiplication whose product is added at once to a running sum or to a term:
  the multiply-accumulates of convolutions (padding included) and matrix products, and the
  products of element-wise formulas that are added to something (x + w * y);
- mult, add, div: those that are not part of an fma; a subtraction is an add, the division
  of a mean by its count and a reciprocal are a div, a factor of exactly 1 is nothing;
- sqrt and the elementary functions (exp, expm1, log, tanh) have columns of their own;
- maxima, comparisons, signs, integers and the moving of data are not counted.

The formulas are those of the operators' documentation, evaluated once for each element, with no
reuse across elements. The published study counted instructions in a binary instead. There, a vector
instruction counts once, and here up to 16 times; blocking and recomputation show there but not
here; and there the machine code shows whether a compiler or a library fused a product.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benches.experiments import command
from benches.experiments.training import Task, Training, lenet, resnet, transformer
from pytest_udftorch import UdfError, trace

ARITHMETIC = ("fma", "div", "mult", "add", "sqrt")
FUNCTIONS = ("exp", "expm1", "log", "tanh")
STAGES = ("forward", "backward", "optimizer")

#: The study's ratios for one exp or log, as published with UDF-LibTorch; of the forward pass
#: without the kind of operation.
PUBLISHED = {
    "forward": {"together": 130.0},
    "backward and optimizer": {"fma": 5.0, "div": 5.0, "mult": 12000.0, "add": 6700.0},
}

Counts = dict[str, int]
Rule = Callable[..., Counts]


class UnknownOperatorError(UdfError):
    """An operator ran that has no rule."""


def _per(count: int, **each: int) -> Counts:
    return {name: count * many for name, many in each.items()}


def _sum(*parts: Counts) -> Counts:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


# Rules: result and arguments of the operator -> counts -------------------------------


def _nothing(*_: Any, **__: Any) -> Counts:
    return {}


def _macs(output: torch.Tensor, weight: torch.Tensor) -> int:
    """Return the multiply-accumulates of a convolution: its weights once an output pixel."""
    return output.shape[0] * math.prod(output.shape[2:]) * weight.numel()


def _convolution(out: Any, x: Any, weight: Any, bias: Any, *_: Any) -> Counts:
    return {"fma": _macs(out, weight), "add": 0 if bias is None else out.numel()}


def _convolution_backward(out: Any, grad: Any, x: Any, weight: Any, *rest: Any) -> Counts:
    for_input, for_weight, for_bias = rest[-1]
    return {
        "fma": (for_input + for_weight) * _macs(grad, weight),
        "add": for_bias * grad.numel(),
    }


def _product(out: Any, a: Any, b: Any) -> Counts:
    return {"fma": out.numel() * a.shape[-1]}


def _addmm(out: Any, bias: Any, a: Any, b: Any) -> Counts:
    return {"fma": out.numel() * a.shape[-1], "add": out.numel()}


def _add(out: Any, a: Any, b: Any, *, alpha: float = 1) -> Counts:
    if not out.is_floating_point():
        return {}
    return {"add" if alpha == 1 else "fma": out.numel()}


def _all_of(name: str) -> Rule:
    """Return the rule of an operator that does ``name`` once an element of its result."""
    return lambda out, *_, **__: {name: out.numel()}


def _summed(out: Any, x: Any, *_: Any, **__: Any) -> Counts:
    return {"add": x.numel()}


def _mean(out: Any, x: Any, *_: Any, **__: Any) -> Counts:
    return {"add": x.numel(), "div": out.numel()}


def _elu(out: Any, x: Any, *_: Any) -> Counts:
    # alpha and the scales are 1 in these models.
    return {"expm1": x.numel()}


def _elu_backward(out: Any, grad: Any, alpha: Any, scale: Any, input_scale: Any, *_: Any) -> Counts:
    return _per(grad.numel(), exp=1, mult=1)


def _gelu(out: Any, x: Any, *, approximate: str = "none") -> Counts:
    # x/2 * (1 + tanh(b * (x + k * x^3)))
    _only_tanh(approximate)
    return _per(x.numel(), tanh=1, mult=5, fma=1, add=1)


def _gelu_backward(out: Any, grad: Any, x: Any, *, approximate: str = "none") -> Counts:
    # g * ((1 + t)/2 + x/2 * (1 - t^2) * b * (1 + 3k * x^2)), t = tanh(b * (x + k * x^3))
    _only_tanh(approximate)
    return _per(x.numel(), tanh=1, mult=9, fma=3, add=2)


def _only_tanh(approximate: str) -> None:
    if approximate != "tanh":
        raise UnknownOperatorError(
            "aten.gelu without approximate='tanh' has no rule: it needs erf. Add one to RULES."
        )


def _softmax(out: Any, x: Any, *_: Any) -> Counts:
    # exp(x - largest) / their sum
    return _per(x.numel(), exp=1, add=2, div=1)


def _softmax_backward(out: Any, grad: Any, result: Any, *_: Any) -> Counts:
    # y * (g - sum(g * y))
    return _per(grad.numel(), fma=1, add=1, mult=1)


def _log_softmax(out: Any, x: Any, dim: int, *_: Any) -> Counts:
    # x - largest - log(sum(exp(x - largest)))
    return _sum(_per(x.numel(), exp=1, add=3), {"log": x.numel() // x.shape[dim]})


def _log_softmax_backward(out: Any, grad: Any, result: Any, *_: Any) -> Counts:
    # g - exp(y) * sum(g)
    return _per(grad.numel(), exp=1, add=1, fma=1)


def _nll(out: Any, x: Any, target: Any, *_: Any) -> Counts:
    return {"add": target.numel(), "div": 1}


def _nll_backward(out: Any, grad: Any, x: Any, target: Any, *_: Any) -> Counts:
    return {"div": target.numel()}


def _batch_norm(
    out: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any
) -> Counts:
    # (x - mean) * (1 / sqrt(variance + eps)) * weight + bias
    channels = x.shape[1]
    apply = _sum(_per(x.numel(), add=1, mult=1, fma=1), _per(channels, add=1, sqrt=1, div=1))
    if not training:
        return apply
    # mean: a sum; variance: a sum of squares of x - mean; running ones: m * new + (1 - m) * old.
    return _sum(apply, _per(x.numel(), add=2, fma=1), _per(channels, div=2, mult=2, fma=2))


def _norm_backward(out: Any, grad: Any, *_: Any) -> Counts:
    # n = (x - mean) * rstd; db = sum(g), dw = sum(g * n);
    # dx = rstd * (g * w - mean(g * w) - n * mean(g * w * n))
    return _per(grad.numel(), add=4, fma=3, mult=3)


def _batch_norm_backward(out: Any, grad: Any, x: Any, *_: Any) -> Counts:
    # The weight of a channel is a factor of both means, so that they follow from db and dw.
    return _sum(_per(grad.numel(), add=3, fma=2, mult=2), _per(x.shape[1], div=2, mult=1))


def _layer_norm(out: Any, x: Any, shape: Sequence[int], *_: Any) -> Counts:
    rows = x.numel() // math.prod(shape)
    return _sum(
        _per(x.numel(), add=3, mult=1, fma=2),
        _per(rows, div=3, add=1, sqrt=1),
    )


def _layer_norm_backward(out: Any, grad: Any, x: Any, shape: Sequence[int], *_: Any) -> Counts:
    return _sum(_norm_backward(out, grad), _per(x.numel() // math.prod(shape), div=2))


def _lerp(out: Any, *_: Any) -> Counts:
    # start + w * (end - start)
    return _per(out.numel(), add=1, fma=1)


def _addcmul(out: Any, *_: Any, **__: Any) -> Counts:
    # a + value * b * c
    return _per(out.numel(), mult=1, fma=1)


def _addcdiv(out: Any, *_: Any, **__: Any) -> Counts:
    # a + value * (b / c)
    return _per(out.numel(), div=1, fma=1)


def _pool_backward(out: Any, grad: Any, *_: Any) -> Counts:
    return {"add": grad.numel()}


_aten = torch.ops.aten

#: ATen operator -> counts of one call, from its result and its arguments.
RULES: dict[Any, Rule] = {
    _aten.convolution: _convolution,
    _aten.convolution_backward: _convolution_backward,
    _aten.mm: _product,
    _aten.bmm: _product,
    _aten.addmm: _addmm,
    _aten.add: _add,
    _aten.add_: _add,
    _aten.mul: _all_of("mult"),
    _aten.mul_: _all_of("mult"),
    _aten.div: _all_of("div"),
    _aten.sqrt: _all_of("sqrt"),
    _aten.sum: _summed,
    _aten.mean: _mean,
    _aten.elu: _elu,
    _aten.elu_backward: _elu_backward,
    _aten.gelu: _gelu,
    _aten.gelu_backward: _gelu_backward,
    _aten._softmax: _softmax,
    _aten._softmax_backward_data: _softmax_backward,
    _aten._log_softmax: _log_softmax,
    _aten._log_softmax_backward_data: _log_softmax_backward,
    _aten.nll_loss_forward: _nll,
    _aten.nll_loss_backward: _nll_backward,
    _aten.native_batch_norm: _batch_norm,
    _aten.native_batch_norm_backward: _batch_norm_backward,
    _aten.native_layer_norm: _layer_norm,
    _aten.native_layer_norm_backward: _layer_norm_backward,
    _aten.lerp_: _lerp,
    _aten.addcmul_: _addcmul,
    _aten.addcdiv_: _addcdiv,
    _aten.max_pool2d_with_indices_backward: _pool_backward,
    _aten.embedding_dense_backward: _pool_backward,
}

#: Operators that move data, compare, make constants, or bracket the profiler's ranges.
MOVES = (
    _aten.index, _aten.view, _aten._unsafe_view, _aten.t, _aten.transpose, _aten.detach,
    _aten.ones_like, _aten.zeros_like, _aten.empty, _aten.expand, _aten.clone, _aten.split,
    _aten.slice, _aten.slice_backward, _aten.alias, _aten.cat, _aten.embedding,
    _aten.max_pool2d_with_indices, _aten._local_scalar_dense,
    torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_exit,
)  # fmt: skip
RULES |= dict.fromkeys(MOVES, _nothing)


class Operations(TorchDispatchMode):
    """Adds up, by stage, the operations of every operator that runs inside it.

    Attributes:
        counts: stage -> fma, div, ... -> operations.
        calls: stage -> operator -> calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stage = STAGES[0]
        self.counts: dict[str, Counter[str]] = {s: Counter() for s in STAGES}
        self.calls: dict[str, Counter[str]] = {s: Counter() for s in STAGES}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        rule = RULES.get(func.overloadpacket)
        if rule is None:
            raise UnknownOperatorError(
                f"{func} ran in the {self.stage} stage and has no rule, so the counts would be too "
                "small. Add its definition's counts to RULES in "
                "benches/experiments/profile_operations.py, or the operator "
                "to MOVES if it does no arithmetic."
            )
        result = func(*args, **named)
        self.counts[self.stage].update(rule(result, *args, **named))
        self.calls[self.stage][str(func)] += 1
        return result


@contextmanager
def _in_stage(
    mode: Operations | None, stage: str, calls: dict[str, Counter[str]]
) -> Iterator[None]:
    """Run one stage: counted by ``mode``, or, without it, its calls of symbols in ``calls``."""
    if mode is not None:
        mode.stage = stage
        yield
        return
    with trace() as symbols:
        yield
    calls[stage].update(symbols)


def _one_step(
    training: Training, batch: torch.Tensor, mode: Operations | None
) -> dict[str, Counter[str]]:
    calls: dict[str, Counter[str]] = {s: Counter() for s in STAGES}
    training.optimizer.zero_grad()
    with _in_stage(mode, "forward", calls):
        loss = training.loss(batch)
    with _in_stage(mode, "backward", calls):
        loss.backward()
    with _in_stage(mode, "optimizer", calls):
        training.optimizer.step()
    return calls


def count(task: Task, seed: int = 0) -> dict[str, Any]:
    """Count one training step of a task, the second: an optimizer makes its state in the first.

    Returns:
        ``stages``: stage -> operations, ``symbol_calls``: stage -> calls that libtorch made
        to libm, SLEEF and MKL for all elementary functions in a step of the same shapes (a
        vector of 8 or 16, or an array, is one call), ``ratios`` for one elementary function
        evaluated and for one symbol called.

    Raises:
        UnknownOperatorError: an operator without a rule ran.
    """
    training = Training(task, seed)
    batches = task.batches(seed)
    training.step(next(batches))
    mode = Operations()
    with mode:
        _one_step(training, next(batches), mode)
    calls = _one_step(training, next(batches), None)
    symbol_calls = {s: sum(c.values()) for s, c in calls.items()}
    joined = {
        "forward": ("forward",),
        "backward and optimizer": ("backward", "optimizer"),
    }
    return {
        "label": task.label,
        "data": task.samples.source,
        "stages": {s: dict(c) for s, c in mode.counts.items()},
        "operators": {s: dict(c) for s, c in mode.calls.items()},
        "symbol_calls": symbol_calls,
        "ratios": {
            name: ratios(
                _sum(*(mode.counts[s] for s in stages)), sum(symbol_calls[s] for s in stages)
            )
            for name, stages in joined.items()
        },
    }


def ratios(counts: Counts, calls: int) -> dict[str, dict[str, float]]:
    """Return each count, and their sum, over the functions evaluated and over ``calls``."""
    evaluated = sum(counts.get(name, 0) for name in FUNCTIONS)
    counted = {name: counts.get(name, 0) for name in ARITHMETIC}
    counted["together"] = sum(counted.values())
    return {
        "for one evaluated": {name: n / evaluated for name, n in counted.items()},
        "for one symbol called": {name: n / calls for name, n in counted.items()},
    }


def run(tasks: Sequence[Task]) -> dict[str, Any]:
    """Count every task and return the figures, ready for JSON."""
    models = {task.name: count(task) for task in tasks}
    for name, model in models.items():
        print(name, model["symbol_calls"])
        for stage, counts in model["stages"].items():
            print(" ", stage, counts)
        for stage, ratio in model["ratios"].items():
            for kind, values in ratio.items():
                print(" ", stage, kind, {k: round(v, 2) for k, v in values.items()})
    return {"published": PUBLISHED, "models": models}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("profile_operations", __doc__, "mnist", "cifar")
    options = parser.parse_args(arguments)
    return command.run(
        "profile_operations",
        options,
        lambda: run([lenet(options.mnist), resnet(options.cifar), transformer()]),
    )


if __name__ == "__main__":
    sys.exit(main())
