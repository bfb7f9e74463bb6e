# SPDX-License-Identifier: Apache-2.0
"""What ``udftorch same --strict`` refuses before it runs the ways of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from pytest_udftorch.base.dispatch_mode import OperatorWatch
from pytest_udftorch.errors import OutsideContractError
from pytest_udftorch.reproduce.agreement.subject import Subject
from pytest_udftorch.reproduce.agreement.tree_nodes import cut_across
from pytest_udftorch.reproduce.agreement.ways import MICRO_BATCHES, evaluation, padded_left, step
from pytest_udftorch.swap.contract.attention import dropped
from pytest_udftorch.swap.contract.outside import within_contract
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.operators.overload import name_of

#: Operators of (x, dim, ...) that give weights.
_SOFTMAX: Final = ("_softmax", "_safe_softmax")


class _Gaps(OperatorWatch):
    """Refuses a softmax of which a hidden term lies in front of one that counts.

    Its sum, and products with its weights, have such a term in their trees. So a row behind
    padding, behind others that are packed, or in a window that slides has other bits.
    """

    def __init__(self, where: Whereabouts) -> None:
        self._where = where

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if dropped.now or name_of(func) not in _SOFTMAX:
            return result
        if _has_gap(result, args[1]):
            layer = self._where.now().layer
            raise OutsideContractError(
                f"{func.name()} in {layer or 'the model'} has weights of zero in front of others, "
                "as a mask makes them. Sums over such a row depend on where it begins: behind "
                "padding, in a packed row or in a sliding window it has other bits. Take fused "
                "attention (attn_implementation='sdpa'), whose sums begin at the first key that a "
                "row sees, or leave out --strict to see which ways differ."
            )
        return result


def _has_gap(weights: Any, dim: int) -> bool:
    seen = (weights != 0).movedim(dim, -1)
    return bool((seen[..., 1:] & ~seen[..., :-1]).any())


def refuse(one: Subject, ways: Sequence[str]) -> None:
    """Refuse a model whose ways cannot all agree, by the operator that parts them.

    It evaluates the model, also with padding on the left if it takes that, and trains it for a
    step, in the open session.

    Args:
        one: the model.
        ways: those that are wanted.

    Raises:
        OutsideContractError: an operator is outside of the contract, or adds what a mask hides;
            gradients of micro-batches are wanted, and are no nodes of the tree.
    """
    across = cut_across(one) if MICRO_BATCHES in ways else None
    if across is not None:
        raise OutsideContractError(
            f"{across}: its gradients of micro-batches are no nodes of the tree of the whole "
            "batch's, and have other bits. Name other ways, or leave out --strict."
        )
    with within_contract(strict=True):
        where = Whereabouts()
        # Rows of what is no sequence always begin at the same place.
        gaps = contextlib.nullcontext() if one.sequence is None else _Gaps(where)
        with where, gaps:
            _run(evaluation(one))
            _run(padded_left(one))
        if any(p.requires_grad for p in one.model.parameters()):
            _run(step(one))
            one.model.zero_grad(set_to_none=True)


def _run(pieces: Any) -> None:
    for _ in pieces:
        pass
