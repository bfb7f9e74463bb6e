# SPDX-License-Identifier: Apache-2.0
"""Compilers inside this process that follow the open sessions."""
