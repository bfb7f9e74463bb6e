# SPDX-License-Identifier: Apache-2.0
"""The machine that a number was measured on."""

from pytest_udftorch.timing.environment import caption, cpu_caption, describe

__all__ = ["caption", "cpu_caption", "describe"]
