# SPDX-License-Identifier: Apache-2.0
"""Time inside a model.

See docs/compile.md.
"""

from __future__ import annotations

from pytest_udftorch.timing.layers import (
    INSTRUMENTS,
    Layer,
    LayerReport,
    LayerRow,
    NoLayerError,
    ProfileRow,
    find_layers,
    instrument_overhead,
    layer_profile,
    layer_subtraction,
    layer_times,
)

__all__ = [
    "INSTRUMENTS",
    "Layer",
    "LayerReport",
    "LayerRow",
    "NoLayerError",
    "ProfileRow",
    "find_layers",
    "instrument_overhead",
    "layer_profile",
    "layer_subtraction",
    "layer_times",
]
