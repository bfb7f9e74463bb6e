# SPDX-License-Identifier: Apache-2.0
"""Engines that rewrite graphs of ATen operators, and the test that two programs are equal."""
