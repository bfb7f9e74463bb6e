# SPDX-License-Identifier: Apache-2.0
"""``udftorch new``: the library that it makes builds, passes its tests, and keeps its claim."""

import subprocess
import sys

import pytest

from pytest_udftorch import cli


def test_a_new_library_passes_its_tests_as_made(tmp_path, capsys):
    folder = tmp_path / "my-math"
    assert cli.main(["new", str(folder)]) == 0
    said = capsys.readouterr().out
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["README.md", "exp.c", "test_library.py", "udf.toml"]
    assert all(str(folder / name) in said for name in files)
    assert not any("@LIBRARY@" in path.read_text() for path in folder.iterdir())

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout
    # Nothing that clang could warn of, and a claim that holds.
    assert "warning" not in done.stderr
    assert cli.main(["verify", str(folder), "--quick"]) == 0
    assert "claim 0.5001 ULP" in capsys.readouterr().out


def test_its_tests_see_a_wrong_function(tmp_path):
    folder = tmp_path / "wrong"
    assert cli.main(["new", str(folder)]) == 0
    source = folder / "exp.c"
    text = source.read_text()
    assert text.count("1.0 / 24;") == 1
    source.write_text(text.replace("1.0 / 24;", "1.0 / 25;"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "right"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "test_results_are_right" in done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("2fast", "is not a name for a library"),
        ("full", "is there already"),
        ("full/x/y", "Cannot"),
    ],
)
def test_where_no_library_can_be_made(name, says, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("something")
    assert cli.main(["new", str(tmp_path / name)]) == cli.MISUSE
    assert says in capsys.readouterr().err
    assert (tmp_path / "full" / "x").read_text() == "something"
