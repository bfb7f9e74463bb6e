"""What every bench's record shall say and not say."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_udftorch.environment import describe


@pytest.hookimpl
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    """Add CPU, versions and flags; leave out the host's name."""
    machine_info.pop("node", None)
    machine_info["environment"] = describe()
