# SPDX-License-Identifier: Apache-2.0
"""--udf-save and --udf-compare: baselines of a suite, with xdist, and what fails a run."""

import json

import pytest

TESTS = """
    import os
    import pytest
    import torch

    TOP = float(os.environ.get("TOP", 1))

    def test_range():
        torch.exp(torch.linspace(0, TOP, 1000))

    @pytest.mark.parametrize("n", [1, 2])
    def test_calls(n):
        for _ in range(n):
            torch.cos(torch.zeros(100))

    def test_of_nothing():
        pass
"""

LIMITS = "--udf-compare-fail=count:0,range:0,ulp:0,nan:0,inf:0"


@pytest.fixture
def saved(suite):
    """A suite whose figures under the library ``one`` are the baseline ``main``."""
    suite.write(test_it=TESTS)
    result = suite.run("--udf-lib=./one", "--udf-save=main", "--udf-profile=timed")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["saved the figures of 4 tests: *.udftorch/main.json"])
    return suite


def assert_range_fails(result):
    assert result.ret == 1
    assert "4 passed" in result.outlines[-1]
    failed = [line for line in result.outlines if line.startswith("FAILED:")]
    assert len(failed) == 2
    assert "test_it.py::test_range, exp: range in: 0 … 1 in main, 0 … 4 in this run" in failed[0]


def test_a_baseline_is_the_same_again_and_a_change_fails(saved, monkeypatch):
    path = saved.path / ".udftorch" / "main.json"
    first = json.loads(path.read_text())
    assert first["tests"]["test_it.py::test_calls[2]"]["one cos float32"]["elements"] == 200
    assert first["tests"]["test_it.py::test_of_nothing"] == {}
    again = ["--udf-lib=./one", "--udf-profile=timed", "--udf-compare=main", LIMITS]
    result = saved.run(*again, "--udf-save=again")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["udftorch: baseline: compared with main, saved as *again.json"])
    second = json.loads(path.with_name("again.json").read_text())
    for document in (first, second):
        for rows in document["tests"].values():
            for row in rows.values():
                del row["time_ns"]
    assert first == second
    # Part of a suite is compared with its part of the baseline.
    assert saved.run(*again, "-k", "test_calls").ret == 0

    monkeypatch.setenv("TOP", "4")
    assert_range_fails(saved.run(*again))
    assert saved.run("--udf-lib=./one", "--udf-compare=main").ret == 0


@pytest.mark.slow
def test_a_change_fails_with_workers_of_xdist(saved, monkeypatch):
    monkeypatch.setenv("TOP", "4")
    again = ["--udf-lib=./one", "--udf-profile=timed", "--udf-compare=main", LIMITS]
    assert_range_fails(saved.run(*again, "-n2"))


def test_a_library_that_gives_other_results_is_seen(saved):
    """``two`` inverts another bit of exp than ``one``, and leaves cos to the stock library."""
    args = ["-k", "test_range", "--udf-compare=main"]
    result = saved.run("--udf-lib=./two", *args, "--udf-compare-fail=ulp:3")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["library differs: one 1.5 *", "*exp: results *67 results  [123] ULP"]
    )
    result = saved.run("--udf-lib=./two", *args, "--udf-compare-fail=ulp:0")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["FAILED: (all tests), exp: results: *; the limit is ulp:0."])


def test_a_run_that_failed_or_was_broken_off_saves_nothing(suite):
    suite.write(test_it="def test(): assert 0", test_stops="def test(): raise KeyboardInterrupt")
    result = suite.run("--udf-save=main", "test_it.py")
    result.stdout.fnmatch_lines(["Tests failed: *main.json is not written."])
    result = suite.run("--udf-save=main", "test_stops.py")
    result.stdout.fnmatch_lines(["The run did not end as usual: nothing is saved or compared."])
    assert not (suite.path / ".udftorch").exists()


def test_mistakes_are_told_before_the_first_test(suite):
    suite.write(test_it="def test(): print('ran')")
    (suite.path / "base").mkdir()
    (suite.path / "base" / "bad.json").write_text("{}")
    (suite.path / "pytest.ini").write_text("[pytest]\nudf_storage = base\n")
    for args, says in (
        (["--udf-compare=none"], "*Cannot read the baseline *base/none.json*There: bad.*"),
        (["--udf-compare=bad"], "*bad.json is not a baseline: the file lacks *"),
        (["--udf-compare=bad", "--udf-storage=."], "*Cannot read the baseline *"),
        (["--udf-save=a/b"], "*'a/b' is not a name of a baseline*"),
        (["--udf-compare-fail=ulp:1"], "*there is nothing to compare with*"),
        (["--udf-compare=bad", "--udf-compare-fail=ulp"], "*'ulp' is not a limit*"),
    ):
        result = suite.run(*args, "-s")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([says])
        assert "ran" not in result.stdout.str()


def test_a_limit_on_times_that_were_not_taken_is_told_before_the_first_test(suite):
    suite.write(test_it="import torch\ndef test(): print('ran', torch.exp(torch.ones(3)))")
    assert suite.run("--udf-save=main").ret == 0
    limited = ("--udf-compare=main", "--udf-compare-fail=ulp:1,time:10%", "-s")
    for more, says in (
        ([], "*The limit time:10% needs times, and this run takes none. Add --udf-profile=timed."),
        (
            ["--udf-profile=timed"],
            "*times, and the baseline main was saved without. Save *",
        ),
    ):
        result = suite.run(*limited, *more)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([says])
        assert "ran" not in result.stdout.str()


def test_a_missing_numpy_is_told_before_the_first_test(suite):
    suite.write(test_it="def test(): print('ran')")
    (suite.path / "hide.py").write_text("import sys; sys.modules['numpy'] = None")
    result = suite.run("-p", "hide", "--udf-save=main", "-s", torch_loaded=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*A profile (--udf-profile) needs the package numpy, *"])
    assert "ran" not in result.stdout.str()
