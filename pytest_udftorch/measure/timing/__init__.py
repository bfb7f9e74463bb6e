# SPDX-License-Identifier: Apache-2.0
"""Synchronised timing: timers, layers, and what the machine is."""
