# SPDX-License-Identifier: Apache-2.0
"""profiled.bin under random cuts and flipped bits: an error or the truth, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from counts import META, Recorder, net
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_udftorch.errors import ProfileFileError, UdfError
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records.file import ProfileWriter, read

# Of a failing case, which would hide it.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A file with every type of record, and what it holds."""
    path = tmp_path_factory.mktemp("fuzz") / "p.bin"
    recorder = Recorder()
    net(recorder, steps=1)
    with ProfileWriter(path, recorder.strings, META) as writer:
        writer.cells(recorder.cells[:3])
        writer.events(recorder.events[:4])
        recorder.strings.id("written late")
        writer.cells(recorder.cells)
        writer.cells(recorder.cells[:1], "test_a")
        writer.operators(recorder.operators)
        writer.mark(test="test_a", at="end")
        writer.events(recorder.events[4:])
        writer.lost_events(2)
    with pytest.raises(AssertionError):
        true_prefix(read(path), read(path), changed=True)
    return path.read_bytes(), read(path)


def true_prefix(file, whole, changed):
    """Assert that a file says nothing that the whole one does not, and less, and says so."""
    assert file.meta == whole.meta
    assert file.strings.items() <= whole.strings.items()
    assert np.array_equal(file.events, whole.events[: len(file.events)])
    assert file.marks == whole.marks[: len(file.marks)]
    for name in ("cells", "operators"):
        for scope, rows in getattr(file, name).items():
            full = getattr(whole, name)[scope]
            assert np.array_equal(rows, full[: len(rows)])
    assert not (file.ended and changed), "a changed file passed for a whole one"


def reading(folder: Path, data: bytes, **options: bool):
    path = folder / "f.bin"
    path.write_bytes(data)
    try:
        return read(path, **options)
    except UdfError:
        return None


relaxed = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@relaxed
@given(share=st.floats(0, 1, exclude_max=True))
def test_cuts(original, tmp_path, share):
    data, whole = original
    size = int(share * len(data))
    file = reading(tmp_path, data[:size])
    header = record._HEADER.unpack_from(data)[4]
    assert (file is None) == (size < header)
    if file is not None:
        true_prefix(file, whole, changed=True)


@relaxed
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1),
    st.booleans(),
)
def test_flipped_bits(original, tmp_path, flips, until_damage):
    data, whole = original
    changed = bytearray(data)
    for share, mask in flips:
        changed[int(share * len(data))] ^= mask
    file = reading(tmp_path, bytes(changed), until_damage=until_damage)
    if bytes(changed) == data:
        true_prefix(file, whole, changed=False)
    elif file is not None:
        true_prefix(file, whole, changed=True)


@relaxed
@given(share=st.floats(0, 1, exclude_max=True), new=st.binary(min_size=0, max_size=40))
def test_a_stretch_replaced_inserted_or_taken_out(original, tmp_path, share, new):
    data, whole = original
    at = int(share * len(data))
    for rest in (at, at + 7, at + len(new)):
        changed = data[:at] + new + data[rest:]
        file = reading(tmp_path, changed)
        if file is not None:
            true_prefix(file, whole, changed=changed != data)


@pytest.mark.parametrize("more", [b"\x94", bytes(4), bytes(40), b"\x94" * 40])
def test_bytes_behind_the_end_are_damage(original, tmp_path, more):
    data, _ = original
    path = tmp_path / "f.bin"
    path.write_bytes(data + more)
    with pytest.raises(ProfileFileError, match="damaged at byte"):
        read(path)
    assert read(path, until_damage=True).truncated
    path.write_bytes(data)
    assert read(path).ended
    assert not read(path).truncated


@relaxed
@given(st.binary(max_size=200))
def test_arbitrary_bytes(tmp_path, data):
    assert reading(tmp_path, data) is None
    assert reading(tmp_path, record.MAGIC + data) is None
