# SPDX-License-Identifier: Apache-2.0
"""The fixtures ``udf_session`` and ``patched_libtorch``."""


def test_udf_session_without_a_library_tells_how_to_choose_one(suite):
    suite.write(
        test_it="""
        import pytest
        from witness import note

        def test_unmarked(udf_session):
            note("not reached")

        @pytest.mark.udf_lib("./one")
        def test_marked(udf_session):
            assert udf_session.is_open
            assert udf_session.library.name == "one"
            note("marked")

        def test_unmarked_again(udf_session):
            note("not reached")

        @pytest.mark.parametrize("udf_session", ["std"], indirect=True)
        def test_parametrized(udf_session):
            note("not reached")
    """
    )
    result = suite.run()
    result.assert_outcomes(passed=1, errors=3)
    assert suite.log == ["marked:one"]
    text = result.stdout.str()
    how = "Choose one for the whole run with --udf-lib=NAME_OR_PATH (or udf_lib in the ini file)"
    assert text.count(how) == 2
    assert (
        "Libraries: canary, canary-composites, canary-d, corem, corem-composites, corem-d, "
        "corem-ff, format-bfloat16, format-e4m3, format-e5m2, format-half, format-posit16, "
        "ladder-10, ladder-12, ladder-16, ladder-20, ladder-8, repro, std, stochastic." in text
    )
    assert "udf_session cannot be parametrized (here with 'std')" in text
    assert "Traceback" not in text


def test_patched_libtorch_opens_sessions_until_the_end_of_the_test(suite):
    suite.write(
        test_it="""
        import pytest
        from pytest_udftorch import UdfError
        from pytest_udftorch.errors import UnknownFunctionError, UnknownLibraryError
        from witness import note, which

        SESSIONS = []

        @pytest.fixture
        def after(patched_libtorch):
            yield
            # The factory's fixture is older than this one, so its sessions are still open.
            note("teardown of a fixture that depends on it")

        def test_several(patched_libtorch, after):
            note("before")
            one = patched_libtorch("./one")
            note("one")
            two = patched_libtorch("./two", functions=("exp",))
            note("two over one")
            note("cos", "cos")
            two.close()
            note("two closed by the test")
            SESSIONS.extend([one, two, patched_libtorch("std", functions=["exp"])])
            assert SESSIONS[-1].functions == ("exp",)
            note("std over one")

        def test_all_are_closed():
            assert [s.is_open for s in SESSIONS] == [False] * 3
            note("after")

        def test_closed_after_a_failure(patched_libtorch):
            patched_libtorch("./one")
            patched_libtorch("./two")
            note("failing")
            raise RuntimeError("of the test")

        def test_errors_reach_the_test(patched_libtorch):
            note("next")
            with pytest.raises(UnknownLibraryError):
                patched_libtorch("corm")
            with pytest.raises(UnknownFunctionError):
                patched_libtorch("./two", ("cos",))
            with pytest.raises(UdfError, match="Unknown CPU level"):
                patched_libtorch("./one", cpu_level="avx1024")
            note("nothing was opened")

        @pytest.fixture(scope="module")
        def module_wide():
            return 1

        def test_together(udf_session, patched_libtorch, module_wide):
            session = patched_libtorch("./two")
            note("innermost")
            assert session is not udf_session
            session.close()
            assert which() == udf_session.library.name
    """
    )
    log = """before:BASE
one:one
two over one:two
cos:one
two closed by the test:one
std over one:stock
teardown of a fixture that depends on it:stock
after:BASE
failing:two
next:BASE
nothing was opened:BASE"""
    result = suite.run("-k", "not together")
    result.assert_outcomes(passed=3, failed=1, deselected=1)
    assert "\n".join(suite.log) == log.replace("BASE", "stock")

    result = suite.run("--udf-lib=./one", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, failed=1)
    assert "\n".join(suite.log) == log.replace("BASE", "one") + "\ninnermost:two"


def test_fixtures_are_documented(suite):
    result = suite.run("--fixtures", "--udf-lib=./one")
    result.stdout.fnmatch_lines(
        [
            "udf_session [[]session scope[]] -- *hooks.py:*",
            "patched_libtorch -- *hooks.py:*",
            "udf_coverage [[]session scope[]] -- *hooks.py:*",
            "udf_diff [[]session scope[]] -- *hooks.py:*",
            "udf_sensitivity [[]session scope[]] -- *hooks.py:*",
            "udf_golden -- *hooks.py:*",
            "assert_equivalent [[]session scope[]] -- *hooks.py:*",
            "sync_timer [[]session scope[]] -- *hooks.py:*",
            "model_pair [[]session scope[]] -- *hooks.py:*",
            "oracle [[]session scope[]] -- *hooks.py:*",
        ]
    )
    # No test runs, so nothing is built.
    result.stdout.fnmatch_lines(["udftorch: one 1.5 *; not built, as no test is run; *"])


def test_timer_pair_and_oracle_are_there_for_any_suite(suite):
    suite.write(
        test_it="""
        import sys

        def test_before():
            assert "torch" not in sys.modules

        def test_timer(sync_timer):
            timed = sync_timer(runs=6, rounds=1).compare(
                {"few": lambda: sum(range(10)), "many": lambda: sum(range(100_000))}
            )
            assert {n: len(t.runs_ns) for n, t in timed.timings.items()} == {"few": 6, "many": 6}
            assert timed["many"].median_ns > 0

        def test_pair_and_plan(model_pair, oracle):
            import torch

            model, x = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval(), torch.ones(2, 4)
            pair = model_pair(model, x, ["fx"])
            pair.check()
            assert pair.working == ["eager", "fx"]
            plan = oracle(model, x, executors=["eager", "fx"], runs=6, rounds=1)
            assert torch.equal(plan.apply(model, (x,))(x), model(x))
    """
    )
    suite.run(torch_loaded=False).assert_outcomes(passed=3)


def test_cuda_asked_for_and_absent_skips_with_the_reason(suite, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    suite.write(
        test_it="""
        import pytest
        from pytest_udftorch import UdfError

        MODEL = lambda: __import__("torch").nn.Linear(2, 2).eval()
        X = lambda: __import__("torch").ones(1, 2)

        def test_timer(sync_timer): sync_timer("cuda")
        def test_pair(model_pair): model_pair(MODEL(), X(), device="cuda")
        def test_oracle(oracle): oracle(MODEL(), X(), device="cuda")

        def test_mistakes_are_no_skips(sync_timer):
            with pytest.raises(UdfError, match="is not a device"):
                sync_timer("cude")
            with pytest.raises(UdfError, match="no option 'round'"):
                sync_timer(round=3)
    """
    )
    result = suite.run("-rs")
    result.assert_outcomes(skipped=3, passed=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]3[]] *: CUDA was asked for, but torch *"])


def test_without_torch_the_fixtures_say_what_is_missing(suite):
    suite.write(
        conftest="""
        import sys

        # What an import finds when torch is not installed.
        sys.modules["torch"] = None
    """,
        test_it="""
        def test_timer(sync_timer): pass
        def test_pair(model_pair): pass
        def test_plan(oracle): pass
    """,
    )
    result = suite.run(torch_loaded=False)
    result.assert_outcomes(errors=3)
    for name in ("sync_timer", "model_pair", "oracle"):
        assert f"The fixture {name} needs torch, which is not installed" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_a_test_that_leaves_a_session_open_is_named_and_it_is_closed(suite):
    suite.write(
        conftest="""
        import pytest
        import pytest_udftorch

        @pytest.fixture(scope="module")
        def wide():
            with pytest_udftorch.patched("./two"):
                yield
        """,
        test_it="""
        from pytest_udftorch import patched
        from witness import which

        def test_leaves(): patched("./one").__enter__()
        def test_after(): assert which() == "stock"
        def test_fails():
            patched("./one").__enter__()
            assert which() == "stock"
        def test_of_a_fixture(patched_libtorch): patched_libtorch("./one")
        def test_module(wide): assert which() == "two"
        def test_same_module(wide): assert which() == "two"
        """,
    )
    result = suite.run("-rA", "-p", "no:randomly")
    result.assert_outcomes(passed=5, failed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_leaves left a session of one open, under which the tests after it *",
            "test_it.py::test_fails left a session of one open, *",
        ]
    )
    # Under a library the summary counts that one's functions alone.
    result = suite.run("--udf-lib=./two", "-p", "no:randomly", "-k", "leaves or module")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["udftorch: two's functions ran in 2 of 3 tests: exp in 2"])
