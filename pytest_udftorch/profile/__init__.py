# SPDX-License-Identifier: Apache-2.0
"""Profiles: counting, aggregation, export and reports."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.profile.aggregate import First, Profile, Row, by_library, load_all, merge
    from pytest_udftorch.profile.text import time_text

__all__ = ["First", "Profile", "Row", "by_library", "load_all", "merge", "time_text"]
__getattr__ = names_from(__name__, dict.fromkeys(__all__, "aggregate") | {"time_text": "text"})
