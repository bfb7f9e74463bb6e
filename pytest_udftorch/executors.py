# SPDX-License-Identifier: Apache-2.0
"""Ways to run a model: see docs/compile.md."""

from pytest_udftorch.planning.by_size import BySize, Compilation, by_size
from pytest_udftorch.planning.cuda_graph import capture
from pytest_udftorch.planning.executor import (
    CapturedShapeError,
    Executor,
    ExecutorUnavailableError,
    LostBranchError,
    UnknownExecutorError,
)
from pytest_udftorch.planning.executors import make, register, registered, resolve, unregister
from pytest_udftorch.planning.executors.variations import VARIATIONS

__all__ = [
    "VARIATIONS",
    "BySize",
    "CapturedShapeError",
    "Compilation",
    "Executor",
    "ExecutorUnavailableError",
    "LostBranchError",
    "UnknownExecutorError",
    "by_size",
    "capture",
    "make",
    "register",
    "registered",
    "resolve",
    "unregister",
]
