# SPDX-License-Identifier: Apache-2.0
"""pytest --udf-profile-coverage: what share of the evaluations in tests is swapped."""

import re

import pytest

FILES = {
    "test_it": """
        import torch

        def test_exp():
            torch.exp(torch.linspace(0, 1, 60))

        def test_log():
            torch.log(torch.linspace(1, 2, 30))
            torch.exp(torch.linspace(0, 1, 10))
            torch.linspace(0, 1, 10) + 1
    """,
}


def lines(result):
    return [line for line in result.outlines if "evaluations are swapped" in line]


def test_the_summary_has_the_share(suite):
    """The library has no log, so the logarithms are stock's."""
    suite.write(**FILES)
    run = suite.run("--udf-lib=./one", "--udf-profile-coverage")
    run.assert_outcomes(passed=2)
    assert lines(run) == ["one: 70.00 % of 100 evaluations are swapped; not: 30 of aten::log."]


@pytest.mark.slow
def test_each_library_has_a_share_also_with_workers(suite):
    suite.write(**FILES)
    run = suite.run("--udf-lib=./one", "--udf-lib=./two", "--udf-profile-coverage", "-n", "2")
    run.assert_outcomes(passed=4)
    assert lines(run) == [
        f"{name}: 70.00 % of 100 evaluations are swapped; not: 30 of aten::log."
        for name in ("one", "two")
    ]


def test_without_the_option_nothing_is_said(suite):
    suite.write(**FILES)
    run = suite.run("--udf-lib=./one", "--udf-profile")
    run.assert_outcomes(passed=2)
    assert not lines(run)
    assert re.search("udftorch profile", "\n".join(run.outlines))


@pytest.mark.slow
def test_the_ini_file_may_ask_for_it(suite):
    suite.write(test_it="import torch\n\ndef test(): torch.cos(torch.ones(20))\n")
    run = suite.run("-o", "udf_profile_coverage=true", "--udf-lib=./one")
    assert lines(run) == ["one: 100 % of 20 evaluations are swapped."]
