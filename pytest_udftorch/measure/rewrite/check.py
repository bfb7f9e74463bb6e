# SPDX-License-Identifier: Apache-2.0
"""Whether a rewritten graph gives what the graph gave, on the inputs of the call.

Rewriting that keeps the order of operations must keep every bit. Other rewriting is judged as the
members of a model pair are: no output farther from the float64 result than twice the distance of
the original graph, or twice what rounding explains. It is tried on the inputs of the first call and
on a second set, in which the elements of each input are in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from pytest_udftorch.base import compat
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline
from pytest_udftorch.prove.judge.accuracy import TOLERANCE, accuracy
from pytest_udftorch.prove.judge.double_precision import DoublePrecision
from pytest_udftorch.prove.judge.error_model import rounding_distances

pytree: Any = compat.pytree()


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def _run(call: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    with graphs.own_numbers(inputs), torch.no_grad():
        # Both graphs draw the same random numbers.
        torch.manual_seed(0)
        return list(pytree.tree_leaves(call(*inputs)))


def shuffled(inputs: Sequence[Any], held: Collection[int]) -> list[Any]:
    """Return inputs whose floating-point elements are in another order; weights stay."""
    generator = torch.Generator().manual_seed(0)

    def mixed(tensor: Any) -> Any:
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        found = torch.empty_like(tensor)
        return found.copy_(tensor.reshape(-1)[order].reshape(tensor.shape))

    return [
        mixed(t) if n not in held and isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for n, t in enumerate(inputs)
    ]


def _layout(mine: Any, theirs: Any) -> str | None:
    if isinstance(mine, torch.Tensor) != isinstance(theirs, torch.Tensor):
        return "returns another kind of value"
    if not isinstance(mine, torch.Tensor):
        return None if mine == theirs else "returns another value"
    for what in ("shape", "dtype", "device"):
        if getattr(mine, what) != getattr(theirs, what):
            return f"has another {what}: {getattr(mine, what)}, not {getattr(theirs, what)}"
    if mine.stride() != theirs.stride():
        return f"has other strides: {mine.stride()}, not {theirs.stride()}"
    return None


def _shared(results: Sequence[Any], inputs: Sequence[Any]) -> list[int]:
    """Return for each result that lies in no input the first one that lies in its memory."""
    given, places = (
        [t.untyped_storage().data_ptr() if isinstance(t, torch.Tensor) and t.numel() else -n
         for n, t in enumerate(tensors, 1)]
        for tensors in (inputs, results)
    )  # fmt: skip
    return [places.index(place) for place in places if place not in given]


def _bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0:
        return True
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def why_wrong(
    original: fx.GraphModule,
    candidate: Callable[..., Any],
    inputs: Sequence[Any],
    held: Collection[int],
    exact: bool,
    deadline: Deadline = NEVER,
) -> tuple[str | None, str]:
    """Judge a candidate.

    Args:
        original: the graph as it was.
        candidate: takes the same inputs.
        inputs: of the call.
        held: the numbers of the inputs that are weights.
        exact: whether every bit has to be the same.
        deadline: after which no run is begun.

    Returns:
        Why it does not pass, or None; and how it was judged.

    Raises:
        OutOfTime: the deadline has passed before it was judged.
    """
    worst = 0.0
    for given in (list(inputs), shuffled(inputs, held)):
        deadline.check("the check")
        wanted, found = _run(original, given), _run(candidate, given)
        if len(wanted) != len(found):
            return "it returns another number of results", "structure"
        pairs = list(zip(found, wanted, strict=True))
        for number, (mine, theirs) in enumerate(pairs):
            problem = _layout(mine, theirs)
            if problem is not None:
                return f"output {number} {problem}", "layout"
        if _shared(found, given) != _shared(wanted, given):
            return "its results share memory otherwise", "layout"
        tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor)]
        if all(_bits(a, b) for a, b in tensors):
            continue
        if exact:
            return "its bits are others, and its rules keep bits", "bits"
        reason, far = _judged(original, given, wanted, found, deadline)
        if reason is not None:
            return reason, "distance to float64"
        worst = max(worst, far)
    how = "the same bits" if worst == 0 else f"at most {worst:.2g} of the allowed distance"
    return None, how


def _judged(
    original: fx.GraphModule,
    inputs: Sequence[Any],
    wanted: list[Any],
    found: list[Any],
    deadline: Deadline,
) -> tuple[str | None, float]:
    """Return why a result is too far from float64, or None; and what share of it is used."""
    given = tuple(map(_wide, inputs))
    deadline.check("the check")
    mode = DoublePrecision()
    try:
        with mode:
            truth = _run(original, given)
    except Exception as error:
        return f"the graph does not run in float64 ({type(error).__name__}: {error})", 0.0
    if mode.left:
        return f"the graph has no truth: {mode.left} leaves float64", 0.0
    truth = [
        w if isinstance(w, torch.Tensor) and not w.is_floating_point() else t
        for w, t in zip(wanted, truth, strict=True)
    ]
    eager, mine = accuracy(wanted, truth), accuracy(found, truth)
    if mine.problem is not None and eager.problem is None:
        return f"an output is wrong: {mine.problem}", 0.0
    if not mine.within(TOLERANCE, eager):
        formats = {t.dtype for t in inputs if isinstance(t, torch.Tensor) and t.is_floating_point()}
        deadline.check("the check")
        unit = max((torch.finfo(kind).eps / 2 for kind in formats), default=0.0)
        (earned,) = rounding_distances(original, given, [truth], unit)
        if len(earned) == len(eager.distances):
            eager = replace(eager, distances=tuple(map(max, eager.distances, earned)))
        if not mine.within(TOLERANCE, eager):
            return (
                f"an output lies {mine.distance:.3g} from the float64 result, the original "
                f"{eager.distance:.3g}"
            ), 0.0
    limits = [
        max(TOLERANCE * far, 4 * epsilon)
        for far, epsilon in zip(eager.distances, eager.precisions, strict=True)
    ]
    shares = (
        far / most
        for far, most in zip(mine.distances, limits, strict=True)
        if 0 < most < float("inf")
    )
    return None, max(shares, default=0.0)
