# SPDX-License-Identifier: Apache-2.0
"""The record of finished chunks: what a crash may and may not leave behind."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pytest_udftorch.errors import JournalError
from pytest_udftorch.prove.verify.certificate import ChunkResult, Example, Tally
from pytest_udftorch.prove.verify.journal import Journal

NAME = {"function": "exp", "build_id": "0123"}


def result(index):
    tally = Tally(
        inputs=256,
        wrong=index,
        hard=None,
        histogram={3: 200, 64: 56},
        examples=(Example((index,), 5, 6),),
        worst_ulp=0.1 * index,
        worst_index=index,
    )
    name = hashlib.sha256(bytes([index])).hexdigest()
    return ChunkResult(index, name, name[::-1], tally)


@pytest.fixture
def path(tmp_path):
    """A journal with chunks 0, 1 and 5."""
    where = tmp_path / "exp.journal"
    journal = Journal(where, NAME, resume=False)
    for index in (0, 1, 5):
        journal.record(result(index))
    return where


def test_a_resumed_run_finds_all_it_recorded(path):
    journal = Journal(path, NAME, resume=True)
    assert journal.finished == {i: result(i) for i in (0, 1, 5)}
    journal.record(result(2))
    assert sorted(Journal(path, NAME, resume=True).finished) == [0, 1, 2, 5]


def test_a_chunk_is_on_the_disk_when_it_counts(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(fd))
    journal = Journal(tmp_path / "j", NAME, resume=False)
    before = len(synced)
    journal.record(result(0))
    assert len(synced) == before + 1
    # The process could die here: read the file as another process would.
    assert sorted(Journal(tmp_path / "j", NAME, resume=True).finished) == [0]


@pytest.mark.parametrize("lost", [1, 20, 100])
def test_a_line_that_was_being_written_is_cut_off(path, lost):
    content = path.read_bytes()
    path.write_bytes(content[:-lost])
    journal = Journal(path, NAME, resume=True)
    assert sorted(journal.finished) == [0, 1]
    journal.record(result(5))
    assert path.read_bytes() == content


def test_an_unfinished_run_is_not_thrown_away_silently(path):
    with pytest.raises(JournalError, match=r"3 chunks.*--resume"):
        Journal(path, NAME, resume=False)


def test_another_build_does_not_continue_it(path):
    with pytest.raises(JournalError, match="build_id"):
        Journal(path, {**NAME, "build_id": "4567"}, resume=True)


def test_a_damaged_line_is_an_error(path):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"wrong":1', b'"wrong":0')
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match=r"Line 3 .*damaged"):
        Journal(path, NAME, resume=True)


def test_a_journal_that_was_cut_to_nothing_starts_again(path):
    path.write_bytes(b"")
    journal = Journal(path, NAME, resume=True)
    assert journal.finished == {}
    journal.record(result(0))
    assert sorted(Journal(path, NAME, resume=True).finished) == [0]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="--out"):
        Journal(tmp_path / "file" / "j", NAME, resume=False)


def test_a_full_disk_is_an_error_and_says_what_stays():
    journal = Journal.__new__(Journal)
    journal.path, journal.finished = Path("/dev/full"), {}
    with pytest.raises(JournalError, match="continue with --resume"):
        journal.record(result(0))
    assert journal.finished == {}


def test_removing_it_leaves_nothing(path):
    journal = Journal(path, NAME, resume=True)
    journal.remove()
    assert not path.exists()
