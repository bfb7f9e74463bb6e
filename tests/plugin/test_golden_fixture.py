# SPDX-License-Identifier: Apache-2.0
"""The fixture udf_golden: stores when asked, checks otherwise, one file whatever the library."""

TESTS = """
    import os
    import pytest
    import torch

    X = torch.linspace(-3, 3, 100)

    @pytest.mark.parametrize("n", [2])
    def test_sin(udf_golden, n):
        shift = float(os.environ.get("SHIFT", 0))
        udf_golden(lambda x: torch.sin(x * n) + shift, X)
        udf_golden(torch.cos, X, name="cos")

    def test_twice(udf_golden):
        udf_golden(torch.cos, X)
        udf_golden(torch.sin, X)
"""


def test_values_are_stored_checked_and_named(suite, monkeypatch):
    suite.write(test_it=TESTS)
    missing = suite.run("-k", "sin")
    missing.assert_outcomes(failed=1, deselected=1)
    missing.stdout.fnmatch_lines(["*No golden values are stored*test_sin_2.json is missing*"])

    stored = suite.run("--udf-golden-update")
    stored.assert_outcomes(passed=1, failed=1)
    stored.stdout.fnmatch_lines(["*Two checks of this test have the name ''*"])
    folder = suite.path / "golden" / "test_it"
    names = {"test_sin_2.json", "test_sin_2-cos.json", "test_twice.json"}
    assert {path.name for path in folder.iterdir()} == names

    both = suite.run("--udf-lib=std", "--udf-lib=./one", "-k", "sin")
    both.assert_outcomes(passed=2, deselected=2)
    monkeypatch.setenv("SHIFT", "1e-3")
    wrong = suite.run("-k", "sin")
    wrong.assert_outcomes(failed=1, deselected=1)
    wrong.stdout.fnmatch_lines(["*The result is not that of test_sin_2.json.*"])


def test_a_result_in_the_place_of_what_computes_it_is_refused(suite):
    suite.write(
        test_it="""
        import torch

        def test_result(udf_golden):
            udf_golden(torch.ones(3), torch.ones(3))
        """
    )
    for options in ([], ["--udf-golden-update"]):
        wrong = suite.run(*options)
        wrong.assert_outcomes(failed=1)
        wrong.stdout.fnmatch_lines(["*GoldenError: The first argument is a Tensor, and has to be*"])
    assert not (suite.path / "golden").exists()
