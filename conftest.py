# SPDX-License-Identifier: Apache-2.0
"""What tests and benches share: pytest's own tester, and the options and records of the benches."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest_plugins = ["pytester"]


def pytest_configure() -> None:
    """Let runs of pytest within a test be nobody's workers."""
    # They would take themselves for workers of the run that tests them.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the benches of torch.compile."""
    group = parser.getgroup("benches")
    group.addoption(
        "--bench-scale",
        choices=("small", "full"),
        default="small",
        help="small: all of them end within minutes; full: the thesis's sizes, for a GPU",
    )
    group.addoption(
        "--bench-device",
        choices=("cpu", "cuda", "all"),
        default="all",
        help="where the experiments on torch.compile run; all: cpu, and cuda where there is one",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    """Add CPU, versions and flags; leave out the host's name."""
    from pytest_udftorch.timing.environment import describe

    machine_info.pop("node", None)
    machine_info["environment"] = describe()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a bench of an experiment one test for each device, or for each device and case."""
    experiment = getattr(metafunc.module, "EXPERIMENT", None)
    if experiment is None or "bench_device" not in metafunc.fixturenames:
        return
    from pytest_udftorch.timing.timers import DeviceMissingError, require_device

    asked = metafunc.config.getoption("--bench-device")
    scale = metafunc.config.getoption("--bench-scale")
    by_case = "case" in metafunc.fixturenames
    found = []
    for device in ("cpu", "cuda") if asked == "all" else (asked,):
        try:
            require_device(device)
        except DeviceMissingError as error:
            values = (device, None) if by_case else (device,)
            found.append(pytest.param(*values, id=device, marks=pytest.mark.skip(str(error))))
            continue
        if not by_case:
            found.append(pytest.param(device, id=device))
            continue
        for case in experiment.cases(device, scale):
            found.append(pytest.param(device, case, id=f"{device}-{_label(case)}"))
    metafunc.parametrize(["bench_device", "case"] if by_case else ["bench_device"], found)


def _label(case: dict[str, Any]) -> str:
    return "-".join(str(v) for v in case.values() if isinstance(v, str | int | bool))


@pytest.fixture
def bench_scale(pytestconfig: pytest.Config) -> str:
    """``small`` or ``full``."""
    scale: str = pytestconfig.getoption("--bench-scale")
    return scale
