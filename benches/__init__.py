# SPDX-License-Identifier: Apache-2.0
"""Benches, each of which reproduces one named table or figure, and the demo."""
