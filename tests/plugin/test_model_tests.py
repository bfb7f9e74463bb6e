# SPDX-License-Identifier: Apache-2.0
"""``--udf-model`` tests a model without a test file, and ``udf_same`` asserts in one."""

MODEL = '''
    import torch
    from torch import nn

    class Model(nn.Sequential):
        """By rows; batches of two rows get other logits."""

        def forward(self, x):
            found = super().forward(x)
            return found * 1.0000001 if self.fault and len(x) == 2 else found

    def made(fault):
        torch.manual_seed(0)
        model = Model(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
        model.fault = fault
        return model, torch.randn(4, 64)

    def clean():
        return made(False)

    def faulty():
        return made(True)
'''


def test_a_model_is_tested_without_a_file(suite):
    suite.write(models=MODEL, test_beside="def test_not_collected(): assert False")
    result = suite.run("--udf-lib=repro", "--udf-model=models.py:clean", "-v")
    assert result.ret == 0, result.stdout.str()
    text = result.stdout.str()
    assert "models.py:clean::permuted batch PASSED" in text
    assert "test_not_collected" not in text


def test_a_way_that_differs_fails_with_the_operator(suite):
    suite.write(models=MODEL)
    result = suite.run("--udf-lib=repro", "--udf-model=models.py:faulty")
    text = result.stdout.str()
    assert "FAILED models.py:faulty::batch 2" in text
    assert "repro parts first by aten::mul.Tensor in Model: batch 2" in text
    assert "Traceback" not in text
    assert "1 failed" in text


def test_models_run_under_each_library_and_beside_files_that_are_named(suite):
    suite.write(models=MODEL, test_beside="def test_beside(): pass")
    result = suite.run(
        "--udf-lib=canary,repro", "--udf-model=models.py:clean", "-v", "test_beside.py"
    )
    text = result.stdout.str()
    for library in ("canary", "repro"):
        assert f"models.py:clean::batch 2[{library}] " in text
        assert f"test_beside.py::test_beside[{library}] PASSED" in text


def test_a_model_that_is_not_there_ends_the_run(suite):
    result = suite.run("--udf-model=models.py:clean")
    assert "--udf-model=models.py:clean: There is no Python file models.py" in (
        result.stderr.str() + result.stdout.str()
    )
    assert result.ret == 4


def test_the_fixture_asserts_under_the_library_of_the_test(suite):
    suite.write(
        models=MODEL,
        test_it="""
        import pytest
        from models import clean, faulty

        def test_clean(udf_same):
            assert udf_same(*clean()).libraries == ("repro",)

        def test_faulty(udf_same):
            with pytest.raises(AssertionError, match="batch 2"):
                udf_same(*faulty())
            udf_same(*faulty(), ways=["batch 1"])
    """,
    )
    suite.run("--udf-lib=repro").assert_outcomes(passed=2)
