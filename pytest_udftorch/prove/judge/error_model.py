# SPDX-License-Identifier: Apache-2.0
"""How far from the float64 result rounding alone may bring a model: a stated error model.

One run of a model is one sample of a random error, which says little about what another layout,
another number of threads or another kernel may give. The model here runs in float64 while every
operator's result gets the error that float32 (or the model's own precision) would have given it
in a plain order of computation:

* a sum of n products that is added up one after the other: an error with standard deviation
  ``u * sqrt(n / 2) * sqrt(sum of squared products)``, for u half the machine epsilon. This is
  the random walk of Higham and Mary (A New Approach to Probabilistic Rounding Error Analysis,
  SIAM J. Sci. Comput. 41(5), 2019), whose bounds grow with ``sqrt(n) u`` as well. Blocked and
  pairwise sums have smaller errors;
* where the settings let float32 products round their factors to TF32 or bfloat16
  (``fp32_precision``), also the error of these factors: ``v * sqrt(sum of squared products)``, for
  v the unit roundoff of that precision;
* a reduction of n numbers to one: relative, ``2 u * sqrt(n / 2)``;
* any other operator that computes: relative, ``2 u``, for kernels within an ULP or two;
* an operator that moves or selects numbers: none.

Perturbing each operation at random is Monte Carlo arithmetic (Parker, UCLA CSD-970002, 1997).
What matters is the scale: the caller allows a multiple of it.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import watching_eagerly
from pytest_udftorch.base.tensor_contents import contents, is_plain, is_real, kind
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.prove.judge.double_precision import DoublePrecision
from pytest_udftorch.swap.operators.overload import is_exact
from pytest_udftorch.swap.operators.rows import find

pytree = compat.pytree()

#: Runs with different errors; the limit comes from their mean square.
DRAWS: Final = 3

#: Unit roundoff of float32.
FLOAT32_UNIT: Final = 2.0**-24

#: A setting of ``fp32_precision`` -> the unit roundoff of the factors.
_FACTORS: Final = {"tf32": 2.0**-11, "bf16": 2.0**-8}


@functools.cache
def _returns(name: str) -> list[Any]:
    """Return what the schema of an overload (``aten::add_.Tensor``) says of its results."""
    base, _, overload = name.partition(".")
    returned: list[Any] = compat.schema(base, overload).returns
    return returned


def perturbing(
    unit: float, generators: dict[torch.device, torch.Generator], *, cancelling: bool = False
) -> Any:
    """Return a mode that gives each operator's result a rounding error of ``unit``.

    Args:
        unit: unit roundoff.
        generators: device -> what the errors are drawn from.
        cancelling: whether the error of a sum or a mean is relative to that of the magnitudes,
            which may be larger. Where a whole model counts, few sums cancel.
    """

    def noise(like: torch.Tensor) -> torch.Tensor:
        """Return uniform numbers of variance 1; float32 is enough for them, and quicker."""
        own = generators[like.device]
        drawn = torch.rand(like.shape, device=like.device, dtype=torch.float32, generator=own)
        return drawn.sub_(0.5).mul_(math.sqrt(12))

    def spread(
        name: str,
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        result: torch.Tensor,
        output: int,
    ) -> Any:
        """Return the standard deviation of the error of each element of one output."""
        row = find(name)
        if row is not None and row.factors is not None:
            (first, second), addend = row.factors, row.addend
            squared = list(args)
            for at in (first, second, addend):
                if at is not None and isinstance(squared[at], torch.Tensor):
                    squared[at] = squared[at].square()
            a, b = args[first], args[second]
            terms = b[0].numel() if name == "convolution" else a.shape[-1]
            if name == "convolution" and args[6]:  # transposed: each output sums over channels
                terms = b.shape[0] * b[0, 0].numel()
            share = math.hypot(unit * math.sqrt(max(1, terms / 2)), factors(name, result.device))
            return share * call(*squared).clamp_min(0).sqrt()
        given = max((a.numel() for a in args if isinstance(a, torch.Tensor)), default=1)
        terms = given / max(1, result.numel())
        if row is not None and row.along_rows:
            terms = args[0].shape[-1] if args[0].dim() else 1
        if "attention" in name:
            terms = args[1].shape[-2]
        share = 2 * unit * math.sqrt(max(1, terms / 2))
        if cancelling and name in ("mean", "sum") and isinstance(args[0], torch.Tensor):
            return share * call(args[0].abs(), *args[1:])
        if cancelling and name == "var_mean" and output == 1:
            return share * call(args[0].abs(), *args[1:], **kwargs)[1]
        if "rnn" in name or "attention" in name:
            share = math.hypot(share, factors(name, result.device))
        return share * result.abs()

    def factors(name: str, device: torch.device) -> float:
        return factor_unit(name, device) if unit == FLOAT32_UNIT else 0.0

    def perturbed(func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        name = compat.packet(func).__name__
        returned = _returns(func.name())
        # A view has the errors of what it views, also one that is written into.
        if is_exact(func, args, kwargs) or any(
            r.alias_info is not None and not r.alias_info.is_write for r in returned
        ):
            return result

        def disturbed(value: Any, made: bool, at: int = 0) -> Any:
            if isinstance(value, torch.Tensor) and kind(value):
                for part in contents(value) or ():  # each element of the result rounded once
                    if part.is_floating_point() and part.device in generators:
                        error = 2 * unit * part.abs() * noise(part)
                        part.add_(error.where(error.isfinite(), 0))
                return value
            if not is_real(value) or value.device not in generators:
                return value
            tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            known = all(map(is_plain, tensors))
            far = spread(name, func, args, kwargs, value, at) if known else 2 * unit * value.abs()
            error = far * noise(value)
            error = error.where(error.isfinite(), 0)
            return value + error if made else value.add_(error)

        if isinstance(result, tuple):
            return tuple(
                disturbed(value, one.alias_info is None, at)
                for at, (value, one) in enumerate(zip(result, returned, strict=True))
            )
        if isinstance(result, list):
            return [disturbed(value, returned[0].alias_info is None) for value in result]
        return disturbed(result, not returned or returned[0].alias_info is None)

    return watching_eagerly(perturbed)


def factor_unit(name: str, device: torch.device) -> float:
    """Return the unit roundoff of the factors of float32 products, 0 if they are not rounded."""
    kind = "conv" if name == "convolution" else "rnn" if "rnn" in name else "matmul"
    backends: Any = torch.backends
    if device.type == "cuda":
        levels = [backends.cuda.matmul] if kind == "matmul" else [getattr(backends.cudnn, kind)]
        levels.append(backends.cudnn)
    else:
        levels = [getattr(backends.mkldnn, kind), backends.mkldnn]
    chosen = (level.fp32_precision for level in (*levels, backends))
    return _FACTORS.get(next((p for p in chosen if p != "none"), "ieee"), 0.0)


def unit_roundoff(model: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Return the unit roundoff of the lowest precision among parameters and inputs."""
    given = [*model.parameters(), *model.buffers(), *tensors_in(inputs)]
    kinds = {t.dtype for t in given if t.is_floating_point()}
    return max((torch.finfo(kind).eps / 2 for kind in kinds), default=0.0)


def rounding_distances(
    model: nn.Module,
    inputs: tuple[Any, ...],
    exact: Sequence[Any],
    unit: float,
    draws: int = DRAWS,
) -> list[tuple[float, ...]]:
    """Return how far rounding may bring each output from its float64 value.

    Args:
        model: in float64; left as it is. Shorter types that it names compute in float64, too.
        inputs: in float64.
        exact: what the model gives in its first calls with these inputs.
        unit: unit roundoff of the precision that counts.
        draws: runs with different errors.

    Returns:
        For each call, for each output of floating-point numbers, the relative distance (norm of
        the difference over the norm of the output), the root of its mean square over the draws.
        The tuples are empty where the model does not run under a ``TorchDispatchMode``.
    """
    devices = {t.device for t in (*model.parameters(), *model.buffers(), *tensors_in(inputs))}
    generators = {d: torch.Generator(d).manual_seed(0) for d in devices}
    found: list[list[tuple[float, ...]]] = [[] for _ in exact]
    try:
        with torch.no_grad():
            for _ in range(draws):
                perturbed = copy.deepcopy(model)
                for call, wanted in enumerate(exact):
                    with perturbing(unit, generators), DoublePrecision():
                        result = perturbed(*convert(inputs, torch.clone))
                    found[call].append(_distances(result, wanted))
    except Exception:
        return [() for _ in exact]
    return [tuple(map(_mean, zip(*rows, strict=True))) for rows in found]


def _mean(distances: tuple[float, ...]) -> float:
    """Return the root of the mean square."""
    return math.hypot(*distances) / math.sqrt(len(distances))


def _distances(result: Any, exact: Any) -> tuple[float, ...]:
    far = []
    for mine, wanted in zip(pytree.tree_leaves(result), pytree.tree_leaves(exact), strict=True):
        if not isinstance(wanted, torch.Tensor) or not wanted.is_floating_point():
            continue
        finite = wanted.isfinite() & mine.isfinite()
        total = float(wanted[finite].square().sum())
        apart = float((mine[finite] - wanted[finite]).square().sum())
        far.append(math.sqrt(apart / total) if total else 0.0)
    return tuple(far)
