# SPDX-License-Identifier: Apache-2.0
"""Is a result the same everywhere?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.errors import OutsideContractError
    from pytest_udftorch.reproduce.order.invariance import (
        Invariance,
        assert_batch_invariant,
        assert_position_invariant,
    )
    from pytest_udftorch.reproduce.order.masking import summation_tree
    from pytest_udftorch.reproduce.order.tree import SummationTree
    from pytest_udftorch.swap.contract.outside import Outside, within_contract
    from pytest_udftorch.swap.contract.replicas import GradientTree, tree_hook

__all__ = [
    "GradientTree",
    "Invariance",
    "Outside",
    "OutsideContractError",
    "SummationTree",
    "assert_batch_invariant",
    "assert_position_invariant",
    "summation_tree",
    "tree_hook",
    "within_contract",
]
__getattr__ = names_from(
    __name__,
    {
        "GradientTree": "swap.contract.replicas",
        "Invariance": "reproduce.order.invariance",
        "Outside": "swap.contract.outside",
        "OutsideContractError": "errors",
        "SummationTree": "reproduce.order.tree",
        "assert_batch_invariant": "reproduce.order.invariance",
        "assert_position_invariant": "reproduce.order.invariance",
        "summation_tree": "reproduce.order.masking",
        "tree_hook": "swap.contract.replicas",
        "within_contract": "swap.contract.outside",
    },
)
