# SPDX-License-Identifier: Apache-2.0
"""Ways to run a model: see docs/compile.md."""

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
    "CapturedShapeError",
    "Executor",
    "ExecutorUnavailableError",
    "LostBranchError",
    "UnknownExecutorError",
    "capture",
    "make",
    "register",
    "registered",
    "resolve",
    "unregister",
]
