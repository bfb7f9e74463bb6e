# SPDX-License-Identifier: Apache-2.0
"""Synchronised timing: see docs/compile.md."""

from pytest_udftorch.timing.environment import describe_device
from pytest_udftorch.timing.timers import (
    Comparison,
    DeviceMissingError,
    NoContenderError,
    SyncTimer,
    TimerOptionError,
    Timing,
    UnknownDeviceError,
    require_device,
    sync_timer,
)

__all__ = [
    "Comparison",
    "DeviceMissingError",
    "NoContenderError",
    "SyncTimer",
    "TimerOptionError",
    "Timing",
    "UnknownDeviceError",
    "describe_device",
    "require_device",
    "sync_timer",
]
