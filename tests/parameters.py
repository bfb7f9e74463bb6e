# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a test are in the default run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(every: Iterable[Any], few: Collection[Any]) -> list[Any]:
    """Every value as a parameter; those that are not among the few are slow."""
    return [pytest.param(value, marks=() if value in few else pytest.mark.slow) for value in every]
