# SPDX-License-Identifier: Apache-2.0
"""Bad files: whatever they hold, reading ends in an error of our own, or in a right answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bad_input import KINDS, ODD, RAW, changed, documents, places, used
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_udftorch.errors import JournalError, UdfError

few = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
every_kind = pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))


def refused(kind, folder, data):
    """Return whether a file is refused; any error but ours, and any wrong answer, ends the test."""
    try:
        used(kind, folder, data)
    except UdfError:
        return True
    return False


@every_kind
def test_the_valid_document_is_read(kind, tmp_path):
    assert not refused(kind, tmp_path, kind.text(kind.document()))


@every_kind
@few
@given(data=st.data())
def test_odd_values(kind, tmp_path, data):
    """The checksums are right, as if someone had changed the file on purpose."""
    document = kind.document()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(list(places(document))))
        document = changed(document, at, data.draw(st.sampled_from(ODD)))
    refused(kind, tmp_path, kind.text(document))


@every_kind
@few
@given(share=st.floats(0, 1), skipped=st.integers(0, 9), new=st.binary(max_size=9))
def test_damaged_bytes(kind, tmp_path, share, skipped, new):
    whole = kind.text(kind.document())
    at = int(share * len(whole))
    refused(kind, tmp_path, whole[:at] + new + whole[at + skipped :])


@every_kind
@pytest.mark.parametrize("raw", RAW, ids=[str(raw[:8]) for raw in RAW])
def test_text_beyond_every_limit(kind, tmp_path, raw):
    whole = kind.text(kind.document())
    # A journal's last line without an end was being written when its process died.
    assert refused(kind, tmp_path, raw + b"\n")
    refused(kind, tmp_path, whole[: len(whole) // 2] + raw + whole[len(whole) // 2 :])


@pytest.mark.slow
@every_kind
def test_every_odd_value_in_every_place(kind, tmp_path):
    outcomes = [
        refused(kind, tmp_path, kind.text(document))
        for _, _, document in documents(kind.document())
    ]
    assert len(outcomes) > 900
    assert any(outcomes)
    assert not all(outcomes)


def test_a_reader_that_checks_nothing_is_caught(tmp_path):
    kind = replace(KINDS["plan"], use=lambda path: sum(json.loads(path.read_bytes())["bounds"]))
    texts = [kind.text(document) for _, _, document in documents(kind.document())]
    with pytest.raises(TypeError):
        any(refused(kind, tmp_path, text) for text in texts)


@pytest.mark.parametrize(
    ("bounds", "row"),
    [
        ([0, 1, 4], [1e308, 1e308]),
        ([0], []),
        ([1], []),
        ([1, 2, 4], [1.0, 2.5]),
        ([0, 4, 1], [1.0, 2.5]),
        ([0, 1, 4], [1.0]),
        ([0, 1, 4], [0.0, 2.5]),
    ],
)
def test_times_of_units_that_do_not_add_up(tmp_path, bounds, row):
    kind = KINDS["search"]
    document = [kind.document()[0], {"bounds": bounds, "unit_ns": {"eager": row}}]
    (tmp_path / kind.name).write_bytes(kind.text(document))
    with pytest.raises(JournalError, match="damaged"):
        kind.use(tmp_path / kind.name)
