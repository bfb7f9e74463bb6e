# SPDX-License-Identifier: Apache-2.0
"""Correct rounding proved on all inputs: runs, certificates and references."""
