# SPDX-License-Identifier: Apache-2.0
"""A dictionary that forgets its oldest entries."""

from pytest_udftorch.base.newest import Newest


def test_the_oldest_entries_go():
    kept = Newest(2)
    for key in "abc":
        kept[key] = key.upper()
    assert dict(kept) == {"b": "B", "c": "C"}
    kept["b"] = "again"  # it keeps its place
    kept["d"] = "D"
    assert dict(kept) == {"c": "C", "d": "D"}
