# SPDX-License-Identifier: Apache-2.0
"""Ways to run a model.

See docs/compile.md.
"""

from __future__ import annotations

from pytest_udftorch.planning.executors import (
    VARIATIONS,
    CapturedShapeError,
    Executor,
    ExecutorUnavailableError,
    LostBranchError,
    UnknownExecutorError,
    capture,
    make,
    register,
    registered,
    resolve,
    unregister,
)

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
