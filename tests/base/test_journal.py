# SPDX-License-Identifier: Apache-2.0
"""What a journal is of, and files that are none; the lines are tested with those of verify."""

from __future__ import annotations

import math

import journals
import pytest

from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.errors import JournalError


class Parts(Journal):
    kind = "parts"
    words = Words()
    finite = False

    def __init__(self, path, run, **options):
        self.found = []
        super().__init__(path, run, **options)

    def read(self, payload):
        self.found.append(payload["part"])


class Restarted(Parts):
    restarts = True


class Others(Parts):
    kind = "others"


RUN = {"model": "m", "seed": 0}


@pytest.fixture
def path(tmp_path):
    where = tmp_path / "journal"
    Parts(where, RUN).add({"part": 1.5}, {"part": math.inf})
    return where


def test_several_lines_are_added_at_once_and_read_in_order(path):
    assert Parts(path, RUN).found == [1.5, math.inf]
    assert [line.get("journal") for line in journals.payloads(path)] == ["parts", None, None]


def test_a_journal_of_another_kind_is_refused_and_stays(path):
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"Line 1 .* is damaged: it is of parts\."):
        Others(path, RUN)
    assert path.read_bytes() == before


def test_another_run_is_refused_by_what_differs_or_begins_anew(path):
    with pytest.raises(JournalError, match="differs in model, seed"):
        Parts(path, {"model": "n", "seed": 1})
    assert Restarted(path, {**RUN, "seed": 1}).found == []
    assert Parts(path, {**RUN, "seed": 1}).found == []
    with pytest.raises(JournalError, match="differs in seed"):
        Parts(path, RUN)


@pytest.mark.parametrize("text", ["{}", "[1]\n", "0123456789abcdef {"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path, text):
    mine = tmp_path / "mine.json"
    mine.write_text(text)
    with pytest.raises(JournalError, match="Line 1 of the journal"):
        Parts(mine, RUN)
    assert mine.read_text() == text


def test_a_first_line_that_was_being_written_is_written_again(path):
    whole = path.read_bytes()
    first = whole.partition(b"\n")[0] + b"\n"
    path.write_bytes(first[:-5])
    assert Parts(path, RUN).found == []
    assert path.read_bytes() == first
