# SPDX-License-Identifier: Apache-2.0
"""Read the order of additions out of an operator, by masking.

The method is FPRev's (Xie, Gao, Xue: FPRev: Revealing the Order of Floating-Point Summation by
Numerical Testing, 2024, arXiv:2411.00442). One term is a huge M, another -M, and the others are
small units. A unit that is added while M is in the sum is lost. So the result counts the units
outside of the smallest subtree that holds both; the sizes of these subtrees give the tree. Where
more than two values are added in one step, their pairs have the same subtree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pytest_udftorch.errors import SummationError
from pytest_udftorch.reproduce.order.tree import Node, SummationTree

#: dtype -> M, unit, and the most terms whose count the result holds exactly. M + terms * unit is M
#: in float32, in which 16-bit terms are added, too.
_MASKS: Final = {
    "float64": (2.0**1000, 1.0, 2**20),
    "float32": (2.0**120, 1.0, 2**20),
    "bfloat16": (2.0**120, 1.0, 2**8),
    "float16": (2.0**15, 2.0**-24, 2**10),
}


class _Operator:
    """An operator on tensors, of which one element of the result is looked at."""

    def __init__(
        self, op: Callable[..., Any], shapes: Sequence[Sequence[int]], dtype: Any, device: Any,
        element: int,
    ) -> None:  # fmt: skip
        import torch

        name = str(dtype).removeprefix("torch.")
        if name not in _MASKS:
            raise SummationError(
                f"summation_tree has no masks for {dtype}. Take one of {', '.join(_MASKS)}."
            )
        self.huge, self.unit, self.most = _MASKS[name]
        self.op, self.element = op, element
        self.inputs = [torch.ones(tuple(s), dtype=dtype, device=device) for s in shapes]
        self.terms: list[tuple[Any, int]] = []

    def result(self) -> float:
        """Call the operator, and return the element."""
        found = self.op(*self.inputs)
        found = found[0] if isinstance(found, tuple | list) else found
        flat = found.detach().reshape(-1)
        if not -flat.numel() <= self.element < flat.numel():
            raise SummationError(
                f"The result has {flat.numel()} elements; element={self.element} is none of them."
            )
        return float(flat[self.element])

    def find_terms(self) -> None:
        """Find the elements of the inputs that are added, tensor by tensor."""
        for tensor in self.inputs:
            if not tensor.numel():
                continue
            flat = tensor.view(-1)
            full = self.result()
            if full == 0.0:
                break
            if abs(full) > self.most:
                raise self._too_many(round(abs(full)))
            found = self._reaching(flat, full)
            self.terms += [(flat, i) for i in found]
            for i in found:  # what remains of the result comes from other tensors
                flat[i] = 0.0
        if self.result() != 0.0 or not self.terms:
            raise SummationError(
                "The result is not a sum of elements of the inputs, weighted by the others: with "
                "every element at zero it is not zero, or no element changes it. Wrap the "
                "operator so that the terms are its first inputs, as in "
                "summation_tree(lambda x: x.sum(0), (64, 3))."
            )
        if len(self.terms) > self.most:
            raise self._too_many(len(self.terms))

    def _too_many(self, terms: int) -> SummationError:
        return SummationError(
            f"{terms} terms are too many: a result of this dtype counts up to {self.most}. Take "
            "smaller shapes."
        )

    def _reaching(self, flat: Any, full: float) -> list[int]:
        found: list[int] = []
        waiting = [(0, flat.numel())]
        while waiting:
            start, end = waiting.pop()
            kept = flat[start:end].clone()
            flat[start:end] = 0.0
            changes = self.result() != full
            flat[start:end] = kept
            if not changes:
                continue
            if end - start == 1:
                found.append(start)
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
        return found

    def fill(self, value: float) -> None:
        for flat, i in self.terms:
            flat[i] = value

    def put(self, term: int, value: float) -> None:
        flat, i = self.terms[term]
        flat[i] = value

    def measure(self) -> None:
        """Learn the result of all units; it must be their sum, but for a factor."""
        self.fill(self.unit)
        self.all = self.result()
        self.put(0, 0.0)
        one_less = self.result()
        self.put(0, self.unit)
        n = len(self.terms)
        if not abs(one_less / self.all * n - (n - 1)) < 0.25:
            raise SummationError(
                f"The result is not a plain sum of its {n} terms: without one of them it is "
                f"{one_less:g}, with all {self.all:g}. Use assert_batch_invariant, which falls "
                "back to trials, or wrap the operator so that the weights of all terms are equal."
            )

    def below(self, i: int, j: int) -> int:
        """Return the number of terms of the smallest subtree that holds two of them."""
        self.put(i, self.huge)
        self.put(j, -self.huge)
        kept = self.result() / self.all * len(self.terms)
        self.put(i, self.unit)
        self.put(j, self.unit)
        if not (abs(kept - round(kept)) < 0.25 and -1 < kept < len(self.terms) - 1):
            raise SummationError(
                f"With +M at term {i} and -M at term {j} the result is that of {kept:g} terms. "
                "The operator does not only add: masking cannot read it."
            )
        return len(self.terms) - round(kept)


def summation_tree(
    op: Callable[..., Any],
    *shapes: Sequence[int],
    dtype: Any = None,
    device: Any = "cpu",
    element: int = 0,
) -> SummationTree:
    """Read the order of additions out of an operator that is a black box.

    >>> summation_tree(torch.mm, (1, 4), (4, 1))  # doctest: +SKIP
    SummationTree(root=(((0, 1), 2), 3), terms=4)

    The terms are the elements of the first input that reach the result; if the result does not
    vanish with them, elements of the next input follow. All other elements are 1. The operator is
    called once for each pair of terms at most, and about once a term in common orders.

    Args:
        op: takes a tensor for each shape, and returns a tensor, or a tuple that begins with one.
        shapes: the shapes of its inputs.
        dtype: float32 by default; float64, bfloat16 or float16.
        device: where the inputs lie.
        element: which element of the flattened result to look at.

    Raises:
        SummationError: the element is no sum of elements of the inputs, or masks cannot read it.
    """
    import torch

    with torch.no_grad():
        made = _Operator(op, shapes, dtype or torch.float32, device, element)
        made.find_terms()
        made.measure()
        terms = len(made.terms)
        try:
            root = _build(made.below, list(range(terms)))[0]
        except RecursionError as error:
            raise SummationError(
                f"The order of {terms} terms is too deep to read. Take smaller shapes."
            ) from error
    tree = SummationTree(root, terms)
    if tree.terms > 2 and isinstance(root, tuple) and len(root) == terms and _is_exact(made):
        raise SummationError(
            "No unit is lost beside M: the operator adds exactly, or in a wider format than the "
            "masks reach, so that there is no order to read."
        )
    return tree


def _is_exact(made: _Operator) -> bool:
    import torch

    with torch.no_grad():
        return made.below(0, 1) == 2 and made.below(0, 2) == 2


def _build(below: Callable[[int, int], int], terms: list[int]) -> tuple[Node, int]:
    """Return the tree of terms that form a subtree, or part of a fused sum, and its own size.

    The size is that of the whole node: it is larger than the number of ``terms`` where they are
    some of the values of a sum of more than two.
    """
    first, rest = terms[0], terms[1:]
    tree: Node = first
    size = 1
    groups: dict[int, list[int]] = {}
    for other in rest:
        groups.setdefault(below(first, other), []).append(other)
    for count in sorted(groups):
        part, whole = _build(below, groups[count])
        # Where the sizes are equal, they are added in the same step.
        tree = (tree, *part) if isinstance(part, tuple) and whole == count else (tree, part)
        size = count
    return tree, size
