# SPDX-License-Identifier: Apache-2.0
"""Serves tests and benches: pytest's own tester, and the options and records of the benches."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest_plugins = ["pytester"]


def pytest_configure() -> None:
    """Hide from runs of pytest inside a test that a worker of pytest-xdist started them."""
    # Such a run would take itself for a worker of the outer run.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the benches."""
    group = parser.getgroup("benches")
    group.addoption(
        "--bench-scale",
        choices=("small", "full"),
        default="small",
        help="small: all benches end within minutes; full: the published sizes, for a GPU",
    )
    group.addoption(
        "--bench-device",
        choices=("cpu", "cuda", "all"),
        default="all",
        help="where the experiments on torch.compile run; all: the CPU, and a GPU if there is one",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    """Add CPU, versions and flags to a record of pytest-benchmark; remove the host's name."""
    from pytest_udftorch.swap.toolchain.environment import describe

    machine_info.pop("node", None)
    machine_info["environment"] = describe()


@pytest.fixture
def bench_scale(pytestconfig: pytest.Config) -> str:
    """``small`` or ``full``."""
    scale: str = pytestconfig.getoption("--bench-scale")
    return scale
