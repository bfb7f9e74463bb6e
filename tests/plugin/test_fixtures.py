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
    assert "Libraries: canary, corem, corem-ff, std." in text
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
            "udf_session [[]session scope[]] -- *plugin.py:*",
            "patched_libtorch -- *plugin.py:*",
        ]
    )
    # No test runs, so nothing is built.
    result.stdout.fnmatch_lines(["udftorch: one 1.5 *; not built, as no test is run; *"])
