# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes down how each test of a foreign suite ended.

``benches.experiments.foreign_suites`` puts the folder of this file on ``PYTHONPATH`` and loads it
with ``-p suite_recorder``. It imports nothing of this project, so a suite on a patched libtorch
runs without the package. The file that ``SUITE_RECORD`` names gets a line of JSON for each phase of
each test, and two that show whose mathematics the process had.

Every test starts with the same seeds, so that two runs differ by their library and not by chance.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from typing import Any, TextIO

import pytest

_FILE = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    """Open the record."""
    config.stash[_FILE] = open(os.environ["SUITE_RECORD"], "w", encoding="utf-8")  # noqa: SIM115


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed the generators of Python, NumPy and torch."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Write the outcome of a phase."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    line = {
        "id": item.nodeid,
        "phase": report.when,
        "outcome": report.outcome,
        "xfail": hasattr(report, "wasxfail"),
        "message": crash.message if crash is not None else "",
    }
    _write(item.config, line)
    return report


def _write(config: pytest.Config, line: dict[str, Any]) -> None:
    # A suite that brings the process down leaves all that came before.
    print(json.dumps(line), file=config.stash[_FILE], flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Any:
    """Write a digest of three functions before the first test, and after the last."""
    _write_mathematics(session.config)
    result = yield
    _write_mathematics(session.config)
    return result


def _write_mathematics(config: pytest.Config) -> None:
    import torch

    x = torch.linspace(0.1, 9.0, 1009)
    bits = b"".join(f(x).numpy().tobytes() for f in (torch.exp, torch.log, torch.tanh))
    _write(config, {"mathematics": hashlib.sha256(bits).hexdigest()})


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the record."""
    config.stash[_FILE].close()
