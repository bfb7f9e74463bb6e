# SPDX-License-Identifier: Apache-2.0
"""The machine that this process runs on."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_model() -> str:
    """Return the CPU's name as the kernel states it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
