# SPDX-License-Identifier: Apache-2.0
"""Which layers to compile: executors, pairs, and plans."""
