# SPDX-License-Identifier: Apache-2.0
"""Distributed runs: the workers open the sessions, the controller builds and reports."""

import pytest

pytest.importorskip("xdist")

FILES = {
    "test_it": """
        import unittest
        import pytest
        from witness import note

        @pytest.mark.parametrize("n", range(3))
        def test_function(n, request):
            note(request.node.name)

        @pytest.mark.udf_lib("./two")
        def test_marked():
            note("marked")

        class TestCase(unittest.TestCase):
            def test_case(self):
                note("case")

        def test_fails():
            raise RuntimeError
    """,
}


@pytest.fixture
def distributed(suite):
    suite.write(**FILES)
    # A controller that opened a session would leave it open up to here.
    (suite.path / "conftest.py").write_text(
        "import pytest\nfrom witness import which\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_runtest_logreport(report):\n"
        "    import os\n"
        "    if 'PYTEST_XDIST_WORKER' not in os.environ and report.when == 'call':\n"
        "        print('\\ncontroller:', which())\n"
    )
    return suite


def test_same_ids_and_libraries_as_without_xdist(distributed):
    both = ("-rA", "--udf-lib=std", "--udf-lib=./one")
    alone = distributed.run(*both)
    alone_log = sorted(distributed.log)
    result = distributed.run(*both, "-n2")
    assert distributed.outcomes(result) == distributed.outcomes(alone)
    assert sorted(distributed.log) == alone_log
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=9, failed=2)
    result.stdout.fnmatch_lines(["udftorch [[]one[]]: one 1.5 * build *", "*CPU capability*"])
    controller = {x for x in result.outlines if x.startswith("controller:")}
    assert controller == {"controller: stock"}


@pytest.mark.slow
def test_one_library(distributed):
    result = distributed.run("-n2", "--udf-lib=./one", "-rA")
    result.assert_outcomes(passed=5, failed=1)
    assert sorted(distributed.log) == [
        "case:one", "marked:two", "test_function[0]:one", "test_function[1]:one",
        "test_function[2]:one",
    ]  # fmt: skip
    controller = {x for x in result.outlines if x.startswith("controller:")}
    assert controller == {"controller: stock"}
    result.stdout.fnmatch_lines(["udftorch: one 1.5 * build *"])


def test_a_session_that_only_workers_cannot_open_fails_their_tests(distributed, level_too_low):
    result = distributed.run("-n1", "--udf-lib=./one", f"--udf-cpu-level={level_too_low}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=6)
    assert distributed.log == []
    assert "the swap would be partial" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()
    assert "crashed" not in result.stdout.str()
