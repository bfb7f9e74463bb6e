# SPDX-License-Identifier: Apache-2.0
"""Stored figures as tables, pages and pictures."""
