# SPDX-License-Identifier: Apache-2.0
"""Time inside a model: see docs/compile.md."""

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
