# SPDX-License-Identifier: Apache-2.0
"""Kills, full disks and damage for what writes files: verifications, profiles, plans, patches.

The scenarios are in ``tests/killed_writers.py``; ``python -m benches.store faults`` runs all of
this and stores the counts. The build cache has tests of its own in ``test_build_faults.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pytest_udftorch.base import whole_file
from pytest_udftorch.swap.toolchain.cache import clean_scratch

TESTS = Path(__file__).parents[1]

#: Scenario -> the kind that docs/trust.md counts it under.
KINDS = {
    "verify": "verification",
    "plan": "plan",
    "search": "plan",
    "profile": "profile",
    "pytest": "profile",
    "patch": "patch",
}

slow = pytest.mark.slow


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "udf.toml").write_text(
        '[library]\nname = "twice"\nversion = "1"\n[functions.exp.float32]\nsource = "e.c"\n'
        'scalar = "udf_expf"\n'
    )
    (folder / "e.c").write_text("float udf_expf(float x) { return x + x; }\n")
    return folder


def counted(program: str, *arguments: object) -> dict[str, int]:
    command = [sys.executable, TESTS / program, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def killed(name: str, folder: Path, library: Path, stride: int) -> dict[str, int]:
    return counted("kills.py", name, folder, library, stride)


# Each of them costs a stride that keeps it to seconds, and minutes for every step.
@pytest.mark.parametrize(
    ("scenario", "stride", "least"),
    [
        ("verify", 13, 4),
        ("plan", 7, 8),
        # Kills of a process that is profiled are in test_collect.py, too.
        pytest.param("profile", 40, 1, marks=slow),
        pytest.param("verify", 1, 50, marks=slow),
        pytest.param("plan", 1, 50, marks=slow),
        pytest.param("profile", 2, 30, marks=slow),
        pytest.param("pytest", 2, 15, marks=slow),
        pytest.param("search", 16, 3, marks=slow),
        pytest.param("patch", 12, 4, marks=slow),
    ],
)
def test_a_kill_is_healed_by_the_next_run(tmp_path, library, faults, scenario, stride, least):
    counts = killed(scenario, tmp_path / "work", library, stride)
    faults.add(KINDS[scenario], "kill", counts["killed"], counts["healed"])
    assert counts["killed"] >= least
    assert counts["healed"] == counts["killed"]
    assert counts["left behind"] == 0


def test_a_writer_that_is_not_careful_is_caught(tmp_path, library):
    counts = killed("careless", tmp_path / "work", library, 1)
    assert counts["killed"] > counts["healed"] > 0
    assert counts["left behind"] > 0


@pytest.mark.parametrize(
    ("scenario", "stride", "fault"),
    [
        ("verify", 4, "disk full"),
        ("verify", 4, "bit flip"),
        ("plan", 4, "read-only"),
        ("plan", 4, "truncated"),
        *(
            pytest.param(scenario, stride, fault, marks=slow)
            for scenario, stride in (("verify", 1), ("plan", 1), ("profile", 2), ("patch", 8))
            for fault in ("disk full", "read-only", "truncated", "bit flip")
        ),
    ],
)
def test_a_fault_of_the_disk_is_healed_or_refused(
    tmp_path, library, faults, fault, scenario, stride
):
    counts = counted("damage.py", scenario, fault, tmp_path / "work", library, stride)
    if not counts["injected"]:
        pytest.skip("filesystems cannot be mounted here")
    faults.add(KINDS[scenario], fault, **counts)
    assert counts["healed"] + counts["errors"] == counts["injected"]


# One file -----------------------------------------------------------------------------


def test_a_block_that_raises_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    whole_file.write(path, "old")

    def fail() -> None:
        with whole_file.replaced(path) as scratch:
            scratch.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_keeps_its_rights(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    whole_file.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_to():
    readable, writable = os.pipe()
    whole_file.write(f"/proc/self/fd/{writable}", "text")
    assert os.read(readable, 10) == b"text"
    for descriptor in (readable, writable):
        os.close(descriptor)


def test_what_a_writer_that_lives_writes_is_left_alone(tmp_path):
    path = tmp_path / "a.txt"
    dead = tmp_path / ".udftorch-new-1-0-a.txt"
    dead.touch()
    mine = tmp_path / ".udftorch-new-mine-0-a.txt"
    mine.touch()
    code = (
        "import sys\nfrom pathlib import Path\nfrom pytest_udftorch.base import whole_file\n"
        "with whole_file.replaced(Path(sys.argv[1])) as scratch:\n"
        "    scratch.write_text('theirs')\n"
        "    print('written', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"written\n"
        whole_file.write(path, "mine")
        assert path.read_text() == "mine"
        assert not dead.exists()
        other.stdin.close()
    assert other.returncode == 0
    assert path.read_text() == "theirs"
    assert sorted(tmp_path.iterdir()) == [mine, path]


# What a killed patch left -------------------------------------------------------------


def test_what_a_killed_maker_left_is_removed_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    left = tmp_path / ".udftorch-out-abcdefgh"
    others = [tmp_path / f".udftorch-{name}" for name in ("out-a-abcdefgh", "outer-abcdefgh")]
    for path in (left, *others):
        (path / "new").mkdir(parents=True)
    (tmp_path / ".udftorch-out-linklink").symlink_to(others[0])
    with clean_scratch(out) as aside:
        assert not left.exists()
        left.mkdir()
        with clean_scratch(out) as second:  # another process makes the same path now
            assert left.exists()
            assert second != aside
        assert aside.is_dir()
    link = tmp_path / ".udftorch-out-linklink"
    assert sorted(tmp_path.iterdir()) == sorted([left, link, *others])
    assert (others[0] / "new").is_dir()


# A temporary folder -------------------------------------------------------------------


def test_a_folder_of_a_process_that_was_killed_is_removed_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, sys, tempfile\nfrom pytest_udftorch.base.whole_file import TemporaryFolder\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "folder = TemporaryFolder('udf-')\n"
        "(folder.path / 'file').touch()\n"
        "print(folder.path, flush=True)\n"
        "sys.stdin.read()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        theirs = Path(os.fsdecode(other.stdout.readline().strip()))
        long_ago = time.time() - 1000
        (tmp_path / "udf-file").touch()
        for path in (theirs, tmp_path / "udf-file"):
            os.utime(path, (long_ago, long_ago))
        whole_file.TemporaryFolder("udf-").remove()
        assert (theirs / "file").exists()
        other.stdin.close()
    young = tmp_path / "udf-young"
    young.mkdir()
    mine = whole_file.TemporaryFolder("udf-")
    assert not theirs.exists()
    assert young.exists()
    assert (tmp_path / "udf-file").exists()
    mine.remove()
    mine.remove()
    assert not mine.path.exists()
