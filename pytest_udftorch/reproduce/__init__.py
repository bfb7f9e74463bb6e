# SPDX-License-Identifier: Apache-2.0
"""Is a result the same everywhere?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.reproduce.agreement.result import Sameness as Sameness
    from pytest_udftorch.reproduce.agreement.sameness import same as same
    from pytest_udftorch.reproduce.order.invariance import Invariance as Invariance
    from pytest_udftorch.reproduce.order.invariance import (
        assert_batch_invariant as assert_batch_invariant,
    )
    from pytest_udftorch.reproduce.order.invariance import (
        assert_position_invariant as assert_position_invariant,
    )
    from pytest_udftorch.reproduce.order.masking import summation_tree as summation_tree
    from pytest_udftorch.reproduce.order.tree import SummationTree as SummationTree
    from pytest_udftorch.swap.contract.outside import Outside as Outside
    from pytest_udftorch.swap.contract.outside import within_contract as within_contract
    from pytest_udftorch.swap.contract.ranks import tree_layout as tree_layout
    from pytest_udftorch.swap.contract.replicas import GradientTree as GradientTree
    from pytest_udftorch.swap.contract.replicas import tree_hook as tree_hook
    from pytest_udftorch.swap.contract.variates import row_seeds as row_seeds
else:
    __all__, __getattr__, __dir__ = names_from(
        __name__,
        {
            "reproduce.agreement.result": ["Sameness"],
            "reproduce.agreement.sameness": ["same"],
            "reproduce.order.invariance": [
                "Invariance",
                "assert_batch_invariant",
                "assert_position_invariant",
            ],
            "reproduce.order.masking": ["summation_tree"],
            "reproduce.order.tree": ["SummationTree"],
            "swap.contract.outside": ["Outside", "within_contract"],
            "swap.contract.ranks": ["tree_layout"],
            "swap.contract.replicas": ["GradientTree", "tree_hook"],
            "swap.contract.variates": ["row_seeds"],
        },
    )
