# SPDX-License-Identifier: Apache-2.0
"""Beside other plugins: a rerun and a timeout leave each test the library that it chose.

These run in new processes. Plugins that the processes of the other tests share must not have them.
"""

import pytest


@pytest.fixture
def run(suite):
    """Run a suite under ``one`` and return the outcomes of the run."""

    def call(*args, **files):
        suite.write(**files)
        return suite.run("--udf-lib=./one", *args, torch_loaded=False)

    return call


def test_a_test_that_is_run_again_has_the_library_again(suite, run):
    pytest.importorskip("pytest_rerunfailures")
    result = run(
        "--reruns=1",
        "-p", "no:randomly",
        test_it="""
        from pathlib import Path
        import pytest
        from witness import note
        def test_under_the_runs_library(udf_session):
            note(udf_session.library.name)
            assert Path("seen").exists() or Path("seen").touch()
        @pytest.mark.udf_lib("./two")
        def test_under_its_own(udf_session):
            note(udf_session.library.name)
            assert Path("seen-too").exists() or Path("seen-too").touch()
        """,
    )  # fmt: skip
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["rerun"]) == (2, 2)
    assert suite.log == ["one:one", "one:one", "two:two", "two:two"]


def test_a_test_that_runs_out_of_time_leaves_the_next_one_its_library(suite, run):
    pytest.importorskip("pytest_timeout")
    result = run(
        "-p", "no:randomly",
        test_it="""
        import pytest
        import torch
        from witness import note
        @pytest.mark.udf_lib("./two")
        @pytest.mark.timeout(0.5, method="signal")
        def test_without_end(udf_session):
            note(udf_session.library.name)
            while True:
                torch.exp(torch.zeros(1000))
        def test_after(udf_session):
            note(udf_session.library.name)
        """,
    )  # fmt: skip
    result.assert_outcomes(failed=1, passed=1)
    assert suite.log == ["two:two", "one:one"]
