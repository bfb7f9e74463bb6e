# SPDX-License-Identifier: Apache-2.0
"""How far a result lies from a reference in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.tensor_contents import contents, kind
from pytest_udftorch.base.trees import pytree
from pytest_udftorch.prove.exact.rounding import ulp_distance

#: How many times farther from the float64 reference than the eager result a member may be.
#: Another order of summation changes the distance by a factor near 1; 2 leaves room for it.
TOLERANCE: Final = 2.0


@dataclass(frozen=True, repr=False)
class Accuracy(Result):
    """How far a result lies from the float64 reference.

    Attributes:
        distance: norm of the difference over the norm of the reference, of the output where
            that is largest; infinite where the structure, a shape or a non-finite value differs.
        worst_ulp: largest ULP distance of an element to the reference rounded to its dtype.
        problem: what differs by more than rounding, or None.
        distances: the distance of each output of floating-point numbers.
        precisions: the machine epsilon of each of these.
    """

    distance: float
    worst_ulp: int
    problem: str | None = None
    distances: tuple[float, ...] = ()
    precisions: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        """The distance and the largest ULP distance, for people."""
        return f"{self.distance:.3g}, {self.worst_ulp:,} ULP"

    def _shown(self) -> Shown:
        return Shown(self.title, notes=[self.problem] if self.problem else [])

    def document(self) -> dict[str, Any]:
        """Return the distances as plain data; infinities are text."""
        far = self.distance
        return {
            "distance_to_float64": far if math.isfinite(far) else str(far),
            "worst_ulp": self.worst_ulp,
            "problem": self.problem,
        }

    def within(self, tolerance: float, eager: Accuracy) -> bool:
        """Whether no output is farther from the reference than ``tolerance`` times eager's.

        Four units of an output's precision are always allowed.
        """
        if self.problem is not None:
            return False
        # An eager result that has infinities sets no limit.
        theirs = eager.distances or (math.inf,) * len(self.distances)
        limits = [
            max(tolerance * far, 4 * epsilon)
            for far, epsilon in zip(theirs, self.precisions, strict=True)
        ]
        return all(mine <= most for mine, most in zip(self.distances, limits, strict=True))


def _numbers(leaf: Any, dtype: torch.dtype | None = None) -> Any:
    """Return a dense tensor for a tensor, an array or a float; anything else unchanged."""
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=dtype)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub":
        return torch.from_numpy(leaf)
    if isinstance(leaf, torch.Tensor) and kind(leaf):
        if leaf.layout not in (torch.strided, torch.jagged):
            return leaf.to_dense()
        parts = contents(leaf)
        return leaf if parts is None else torch.cat([p.reshape(-1) for p in parts])
    return leaf


def accuracy(result: Any, reference: Any) -> Accuracy:
    """Compare a result with a float64 reference of the same structure.

    Args:
        result: a tensor, or tuples, lists, dicts and dataclasses of tensors that pytree knows.
            NumPy's arrays and Python's floats count as tensors.
        reference: the same structure, with floating-point tensors in float64.
    """
    leaves, shape = pytree.tree_flatten(result)
    wanted, wanted_shape = pytree.tree_flatten(reference)
    if len(leaves) != len(wanted):
        return Accuracy(math.inf, 0, f"structure {shape}, wanted {wanted_shape}")
    distances: list[float] = []
    precisions: list[float] = []
    worst = 0
    for number, (mine, theirs) in enumerate(zip(leaves, wanted, strict=True)):
        mine, theirs = _numbers(mine), _numbers(theirs, torch.float64)
        if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            try:
                same = type(mine) is type(theirs) and bool(mine == theirs)
            except Exception:
                # A class that pytree does not know, with tensors inside.
                return Accuracy(
                    math.inf,
                    0,
                    f"output {number} is a {type(mine).__name__}, whose tensors cannot be "
                    "compared: register it with torch.utils._pytree, or return a tuple or dict",
                )
            if not same:
                found = f"output {number} is {_shown(mine)}, wanted {_shown(theirs)}"
                return Accuracy(math.inf, 0, found)
            continue
        if mine.shape != theirs.shape:
            return Accuracy(
                math.inf, 0, f"output {number}: {list(mine.shape)}, wanted {list(theirs.shape)}"
            )
        if mine.is_complex() and theirs.is_complex():
            mine, theirs = (torch.view_as_real(t.resolve_conj()) for t in (mine, theirs))
        if not mine.is_floating_point():
            if not torch.equal(mine, theirs):
                return Accuracy(math.inf, 0, f"output {number}: other values of {mine.dtype}")
            continue
        mine, theirs = mine.detach(), theirs.detach()
        rounded = theirs.to(mine.dtype)
        same_special = torch.equal(mine.isnan(), rounded.isnan()) and torch.equal(
            mine.isinf() * mine.sign(), rounded.isinf() * rounded.sign()
        )
        if not same_special:
            return Accuracy(math.inf, 2**64 - 1, f"output {number}: other NaNs or infinities")
        finite = rounded.isfinite()
        apart = mine.double()[finite] - theirs[finite]
        square = float(apart.square().sum())
        total = float(theirs[finite].square().sum())
        far = math.inf if square else 0.0
        distances.append(math.sqrt(square / total) if total else far)
        precisions.append(torch.finfo(mine.dtype).eps)
        if mine.numel():
            worst = max(worst, int(ulp_distance(mine.contiguous(), rounded.contiguous()).max()))
    return Accuracy(max(distances, default=0.0), worst, None, tuple(distances), tuple(precisions))


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return repr(value)[:100]
