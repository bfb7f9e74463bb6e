# SPDX-License-Identifier: Apache-2.0
"""Data of the benches: digits, photographs, text, models and libraries."""
