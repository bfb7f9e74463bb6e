# SPDX-License-Identifier: Apache-2.0
"""profiled.bin: what is written is read, whatever is lost is told, nothing wrong is believed."""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import subprocess
import sys
import threading
import warnings
import zlib

import numpy as np
import pytest
from counts import META, Recorder, net

from pytest_udftorch.errors import ProfileFileError, ProfileLossWarning
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.file import ProfileWriter, read
from pytest_udftorch.swap.records.layout import StringTable


@pytest.fixture
def recorder():
    recorder = Recorder()
    net(recorder)
    return recorder


@pytest.fixture
def path(recorder, tmp_path):
    where = tmp_path / "profiled.bin"
    recorder.write(where)
    return where


def test_structs_have_the_layout_that_c_gives_them():
    assert (layout.CELL.itemsize, layout.OPERATOR.itemsize, layout.EVENT.itemsize) == (
        10432, 32, 80,
    )  # fmt: skip
    for dtype in (layout.CELL, layout.OPERATOR, layout.EVENT):
        end = 0
        for name, (kind, offset, *_) in dtype.fields.items():
            assert offset == end, name
            assert offset % kind.base.alignment == 0, f"C would move {name}"
            end = offset + kind.itemsize
        assert end == dtype.itemsize
        assert end % 8 == 0


def test_what_is_written_is_read(recorder, path):
    file = read(path)
    assert file.ended
    assert not file.truncated
    assert np.array_equal(file.cells[""], recorder.cells)
    assert np.array_equal(file.operators[""], recorder.operators)
    assert np.array_equal(file.events, recorder.events)
    assert file.strings == recorder.strings.as_dict()
    assert file.meta.items() >= META.items()
    assert file.meta["pid"] == os.getpid()


def test_a_snapshot_replaces_an_earlier_one_of_its_scope(recorder, tmp_path):
    half = recorder.cells[:2]
    with ProfileWriter(tmp_path / "p.bin", recorder.strings, META) as writer:
        writer.cells(half)
        writer.cells(half, "test_a")
        writer.cells(recorder.cells)
        writer.mark(test="test_a", at="end")
    file = read(tmp_path / "p.bin")
    assert np.array_equal(file.cells[""], recorder.cells)
    assert np.array_equal(file.cells["test_a"], half)
    assert file.marks == ({"test": "test_a", "at": "end"},)


def test_strings_may_be_anything(tmp_path):
    strings = StringTable()
    texts = ["<b>&amp;", "a\x00b", "schön", "\udc80", "x" * 100_000]
    ids = [strings.id(t) for t in texts]
    assert [strings.id(t) for t in texts] == ids
    with ProfileWriter(tmp_path / "p.bin", strings, META):
        pass
    read_back = read(tmp_path / "p.bin").strings
    assert [read_back[i] for i in ids] == [*texts[:3], "\\udc80", texts[4]]


def test_ids_given_by_many_threads_are_one_per_string():
    strings = StringTable()
    found = [{} for _ in range(8)]

    def work(mine):
        for i in range(2000):
            mine[f"m{i}"] = strings.id(f"m{i}")

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == found[0] for mine in found)
    assert len(set(found[0].values())) == 2000


def test_every_cut_reads_up_to_the_last_whole_record(recorder, tmp_path):
    with ProfileWriter(tmp_path / "p.bin", recorder.strings, META) as writer:
        ends = [writer._end]
        for count in range(3):
            writer.events(recorder.events[: count + 1])
            ends.append(writer._end)
    data = (tmp_path / "p.bin").read_bytes()
    header = record._HEADER.unpack_from(data)[4]
    cut = tmp_path / "cut.bin"
    for size in range(header, len(data)):
        cut.write_bytes(data[:size])
        file = read(cut)
        whole = sum(end <= size for end in ends[1:])
        assert len(file.events) == (0, 1, 3, 6)[whole]
        assert not file.ended
        # A cut between two records leaves nothing half; only the missing END tells.
        assert file.truncated == (size not in (header, *ends))
    for size in range(header):
        cut.write_bytes(data[:size])
        with pytest.raises(ProfileFileError, match=r"ends within its header"):
            read(cut)


def test_zeros_that_a_loss_of_power_leaves_count_as_cut(path):
    data = path.read_bytes()
    path.write_bytes(data[:-16] + bytes(5000))
    file = read(path)
    assert file.truncated
    assert len(file.events)
    path.write_bytes(data[:-16] + bytes(5000) + b"x")
    with pytest.raises(ProfileFileError, match="zeros in the place of a record"):
        read(path)


def test_a_damaged_record_is_an_error_and_what_precedes_can_be_had(path, recorder):
    data = bytearray(path.read_bytes())
    data[-100] ^= 1  # in the last event
    path.write_bytes(data)
    with pytest.raises(ProfileFileError, match=r"at byte \d+: a record does not have its check"):
        read(path)
    file = read(path, until_damage=True)
    assert file.truncated
    assert np.array_equal(file.cells[""], recorder.cells)
    assert len(file.events) == 0


def test_a_wrong_length_is_damage_and_not_a_cut(path):
    data = bytearray(path.read_bytes())
    at = record._HEADER.unpack_from(data)[4] + 4
    struct.pack_into("<I", data, at, 2**31)
    path.write_bytes(data)
    with pytest.raises(ProfileFileError, match="the start of a record"):
        read(path)


@pytest.mark.parametrize("at", [8, 12, 14, 16, 20, 24, 60])
def test_a_damaged_header(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(ProfileFileError, match="header"):
        read(path)


def with_header(data, **changes):
    """Return a file's bytes with other header fields and a checksum that fits."""
    names = ("magic", "order", "version", "zero", "size", "crc")
    fields = dict(zip(names, record._HEADER.unpack_from(data), strict=True))
    text = data[24 : fields["size"]]
    fields.update(changes)
    bare = record._HEADER.pack(*fields.values())[:-4]
    return bare + struct.pack("<I", zlib.crc32(text, zlib.crc32(bare))) + data[24:]


def test_a_newer_version(path):
    path.write_bytes(with_header(path.read_bytes(), version=record.VERSION + 1))
    with pytest.raises(ProfileFileError, match=r"has version 2 .* reads up to version 1"):
        read(path)


@pytest.mark.parametrize(
    "content", [b"hello, world", b"\x89PNG\r\n\x1a\n", b"\x89UDFPRF\r\n" + bytes(40)]
)
def test_something_else(tmp_path, content):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(ProfileFileError, match="is not a profile"):
        read(tmp_path / "x.bin")


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(ProfileFileError, match="No such file"):
        read(tmp_path / "none.bin")
    with pytest.raises(ProfileFileError, match="directory"):
        read(tmp_path)


def appended(path, kind, payload, flags=0):
    data = path.read_bytes()[:-16]  # without END
    path.write_bytes(data + record._frame(kind, payload, flags))


BAD_EVENT = np.zeros(1, layout.EVENT)
BAD_EVENT["operator"] = 54321
BAD_STAGE = np.zeros(1, layout.EVENT)
BAD_STAGE["stage"] = 4


@pytest.mark.parametrize(
    ("kind", "payload", "flags", "message"),
    [
        (99, b"", 0, "unknown type 99"),
        (record.EVENTS, b"x" * 81, 0, "not a multiple of 80"),
        (record.EVENTS, BAD_EVENT.tobytes(), 0, "names string 54321"),
        (record.EVENTS, BAD_STAGE.tobytes(), 0, "stage 4 is unknown"),
        (record.EVENTS, b"", 2, "unknown flags 0x2"),
        (record.EVENTS, b"no zlib", 1, "cannot be decompressed"),
        (record.CELLS, b"1234567", 0, "without its scope"),
        (record.CELLS, struct.pack("<II", 54321, 0), 0, "names string 54321"),
        (record.MARK, b"[1", 0, "not JSON"),
        (record.MARK, b"[1]", 0, "not a JSON object"),
        (record.STRINGS, b"1234567", 0, "string is not whole"),
        (record.STRINGS, struct.pack("<II", 900, 5) + b"abc", 0, "string is not whole"),
        (record.STRINGS, struct.pack("<II", 900, 1) + b"\xff", 0, "not UTF-8"),
        (record.STRINGS, struct.pack("<II", 0, 1) + b"a", 0, "two strings have the id 0"),
    ],
)
def test_a_record_that_says_nothing_sensible(path, kind, payload, flags, message):
    appended(path, kind, payload, flags)
    with pytest.raises(ProfileFileError, match=message):
        read(path)


def test_a_record_after_the_end(path):
    path.write_bytes(path.read_bytes() + record._frame(record.END, b""))
    with pytest.raises(ProfileFileError, match="a record after the end"):
        read(path)


# Writing -----------------------------------------------------------------------------


def test_two_writers_of_one_file(tmp_path):
    strings = StringTable()
    path = tmp_path / "new" / "folder" / "p.bin"
    with ProfileWriter(path, strings, META):
        with pytest.raises(ProfileFileError, match="Another session is writing"):
            ProfileWriter(path, strings, META)
        other = (
            "import sys; from pathlib import Path\n"
            "from pytest_udftorch.swap.records import file as r\n"
            "try: r.ProfileWriter(Path(sys.argv[1]), r.StringTable(), {})\n"
            "except r.ProfileFileError as e: print('busy' if 'Another session' in str(e) else e)"
        )
        run = subprocess.run(
            [sys.executable, "-c", other, path], capture_output=True, text=True, check=True
        )
        assert run.stdout == "busy\n"
    assert read(path).ended
    with pytest.raises(ProfileFileError, match="holds an earlier profile"):
        ProfileWriter(path, strings, META)


def test_new_paths_step_aside(tmp_path):
    first = record.new_path(tmp_path)
    first.touch()
    second = record.new_path(tmp_path)
    assert second != first
    assert second.name.endswith(f"-{os.getpid()}-1.bin")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ProfileFileError, match=r"Cannot write .*Choose another folder"):
        ProfileWriter(tmp_path / "file" / "p.bin", StringTable(), META)


@contextlib.contextmanager
def full_disk(size: int):
    """Files of this process may not grow beyond ``size`` bytes, as on a disk that is full.

    For a few calls at a time: pytest's own output may be a file, and longer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_records_and_says_so(recorder, tmp_path):
    path = tmp_path / "p.bin"
    many = np.resize(recorder.events, 200)  # 16,000 bytes
    with full_disk(20_000):
        writer = ProfileWriter(path, recorder.strings, META)
        writer.events(many)
        writer.events(many)
        writer.strings.id("named in a lost record")
        writer.cells(np.resize(recorder.cells, 100))  # lost too, most likely, or small enough
    assert writer.loss.records >= 1
    assert path.stat().st_size == writer._end <= 20_000
    writer.events(many[:7])  # space again: later records are there, with all strings they need
    with pytest.warns(ProfileLossWarning, match=r"File too large; lost: [12] of \d+ records, 200"):
        writer.close()
    file = read(path)
    assert file.ended
    assert len(file.events) == 207
    assert "named in a lost record" in file.strings.values()


def test_a_disk_that_is_full_from_the_start(recorder, tmp_path):
    with full_disk(10):
        writer = ProfileWriter(tmp_path / "p.bin", recorder.strings, META)
        writer.events(recorder.events)
        with pytest.warns(ProfileLossWarning, match="lost: 2 of 2 records"):
            writer.close()
    assert (tmp_path / "p.bin").read_bytes() == b""


def test_a_deleted_folder(recorder, tmp_path):
    path = tmp_path / "d" / "p.bin"
    writer = ProfileWriter(path, recorder.strings, META)
    writer.events(recorder.events)
    path.unlink()
    path.parent.rmdir()
    writer.events(recorder.events)
    with pytest.warns(ProfileLossWarning, match="deleted during the run; lost: 3 of 3"):
        writer.close()


def test_the_warning_is_no_exception_where_warnings_are_errors(recorder, tmp_path, capsys):
    writer = ProfileWriter(tmp_path / "p.bin", recorder.strings, META)
    writer.lost_events(12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer.close()
    assert "lost: 0 of 2 records, 12 events" in capsys.readouterr().err
    assert read(tmp_path / "p.bin").marks == ({"lost_events": 12},)


def test_nothing_lost_no_warning(recorder, tmp_path):
    recorder.write(tmp_path / "p.bin")  # a warning would be an error here


def test_a_forked_child_writes_a_file_of_its_own(recorder, tmp_path):
    path = tmp_path / "p.bin"
    writer = ProfileWriter(path, recorder.strings, META)
    writer.events(recorder.events)
    child = os.fork()
    if child == 0:
        try:
            writer.events(recorder.events[:3])
            writer.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    # The child did not take the lock along.
    with pytest.raises(ProfileFileError, match="Another session is writing"):
        ProfileWriter(path, recorder.strings, META)
    writer.close()
    (other,) = set(tmp_path.iterdir()) - {path}
    assert len(read(path).events) == len(recorder.events)
    theirs = read(other)
    assert len(theirs.events) == 3
    assert theirs.meta["parent_pid"] == os.getpid()
    assert theirs.meta["pid"] == child


def test_a_process_that_is_killed_leaves_all_it_wrote(tmp_path):
    path = tmp_path / "p.bin"
    code = (
        "import os, signal, sys; import numpy as np; from pathlib import Path\n"
        "from pytest_udftorch.swap.records import file as r\n"
        "w = r.ProfileWriter(Path(sys.argv[1]), r.StringTable(), {})\n"
        "w.events(np.zeros(9, r.EVENT)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=False)
    file = read(path)
    assert len(file.events) == 9
    assert not file.ended


def test_clocks_belong_together():
    import time

    pair = record.clocks()
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    again = record.clocks()
    assert pair["monotonic_ns"] <= now <= again["monotonic_ns"]
    offsets = [c["realtime_ns"] - c["monotonic_ns"] for c in (pair, again)]
    assert abs(offsets[0] - offsets[1]) < 1_000_000
