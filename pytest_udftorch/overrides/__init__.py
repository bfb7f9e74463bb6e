# SPDX-License-Identifier: Apache-2.0
"""Operators of torch overridden through the dispatcher."""
