# SPDX-License-Identifier: Apache-2.0
"""The public names for the same weights on any number of ranks and micro-batches."""

from pytest_udftorch.contract.replicas import GradientTree, tree_hook
from pytest_udftorch.errors import ReplicaError

__all__ = ["GradientTree", "ReplicaError", "tree_hook"]
