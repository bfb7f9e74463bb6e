# SPDX-License-Identifier: Apache-2.0
"""Suites under one library and under several: what runs under which, and how it is told."""

import re
import xml.etree.ElementTree as ET

import pytest

# A suite with every kind of test and of fixture, which knows nothing of this package. Each
# piece notes which library it ran under.
EVERY_KIND = {
    "conftest": """
        import pytest
        from witness import note

        @pytest.fixture(scope="session")
        def whole():
            note("session setup")
            yield
            note("session teardown")

        class Check(pytest.Item):
            def runtest(self):
                note(self.name)

        class CheckFile(pytest.File):
            def collect(self):
                item = Check.from_parent(self, name="check")
                item.add_marker("special")
                yield item

        def pytest_collect_file(file_path, parent):
            if file_path.suffix == ".check":
                return CheckFile.from_parent(parent, path=file_path)

        def pytest_configure(config):
            config.addinivalue_line("markers", "special: any")
    """,
    "test_kinds": """
        import pytest
        from witness import note, which

        AT_IMPORT = which()
        note("collection")

        def setup_module():
            note("setup_module")

        def teardown_module():
            note("teardown_module")

        @pytest.fixture(scope="module")
        def module(whole):
            note("module setup")
            yield
            note("module teardown")

        @pytest.fixture
        def function():
            note("function setup")
            yield
            note("function teardown")

        @pytest.mark.parametrize("n", [3])
        def test_function(n, module, function, request):
            note(request.node.name)

        class TestClass:
            @classmethod
            def setup_class(cls):
                note("setup_class")

            @classmethod
            def teardown_class(cls):
                note("teardown_class")

            def test_method(self):
                note("method")

        def documented():
            '''
            >>> note("doctest")
            '''
    """,
    "test_unittest": """
        import unittest
        from witness import note

        class TestCase(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                note("setUpClass")

            @classmethod
            def tearDownClass(cls):
                note("tearDownClass")

            def setUp(self):
                note("setUp")

            def tearDown(self):
                note("tearDown")

            def test_case(self):
                assert self.id() == "test_unittest.TestCase.test_case"
                note("case")
                with self.subTest(part=1):
                    note("subtest")

            @unittest.skip("never")
            def test_skipped(self):
                note("skipped")

        class TestAsync(unittest.IsolatedAsyncioTestCase):
            async def test_async(self):
                note("async")
    """,
}
TEXT = ">>> from witness import note\n>>> note('text')\n"

# In the order of the run; NAME stands for the test's name with its id.
EVENTS = """
    session setup / setup_module / module setup / function setup / NAME / function teardown
    setup_class / method / teardown_class / module teardown / teardown_module
    setUpClass / setUp / case / subtest / tearDown / tearDownClass / async
""".replace("\n", "/").split("/")
EVENTS = [event.strip() for event in EVENTS if event.strip()]


def write_every_kind(suite):
    suite.write(**EVERY_KIND)
    suite.pytester.maketxtfile(test_text=TEXT)
    (suite.path / "it.check").write_text("")


def under(suite, library):
    return [line.rpartition(":")[0] for line in suite.log if line.endswith(f":{library}")]


def without_doctests_and_checks(events):
    return [e for e in events if e not in ("doctest", "text", "session teardown")
            and not e.startswith("check")]  # fmt: skip


def test_one_library_patches_everything_and_changes_no_id(suite):
    write_every_kind(suite)
    args = ("--doctest-modules", "-rA")
    plain = suite.run(*args)
    plain_log = suite.log
    assert plain.ret == 0
    assert {line.rpartition(":")[2] for line in plain_log} == {"stock"}

    patched = suite.run(*args, "--udf-lib=./one")
    assert patched.ret == 0
    assert suite.outcomes(patched) == suite.outcomes(plain)
    assert suite.log == [line.replace(":stock", ":one") for line in plain_log]
    assert len(suite.log) == len(EVENTS) + len(
        ["collection", "doctest", "text", "check", "session teardown"]
    )

    baseline = suite.run(*args, "--udf-lib=std")
    assert suite.outcomes(baseline) == suite.outcomes(plain)
    assert suite.log == plain_log


def test_libraries_may_be_joined_by_commas(suite):
    suite.write(test_it="from witness import which\ndef test(): assert which() in ('one', 'two')")
    suite.library("three", 1, folder="a,b")
    result = suite.run("--udf-lib=./one,./two", "--udf-lib=./a,b", "-v")
    ids = [line.split()[0] for line in result.outlines if "::test[" in line]
    assert ids == [f"test_it.py::test[{name}]" for name in ("one", "two", "three")]


def test_several_libraries_run_every_kind_of_test_under_each(suite):
    write_every_kind(suite)
    result = suite.run("--doctest-modules", "-rA", "--udf-lib=std", "--udf-lib=./one")
    assert result.ret == 0
    expected = [
        "it.check::check[{}]",
        "test_kinds.py::test_kinds.documented[{}]",
        "test_kinds.py::test_function[{}-3]",
        "test_kinds.py::TestClass::test_method[{}]",
        "test_text.txt::test_text.txt[{}]",
        "test_unittest.py::TestCase::test_case[{}]",
        "test_unittest.py::TestAsync::test_async[{}]",
    ]
    passed = [name for name, word in suite.outcomes(result).items() if word == "PASSED"]
    assert sorted(passed) == sorted(e.format(n) for n in ("std", "one") for e in expected)
    result.assert_outcomes(passed=14, skipped=2)

    # Each library has a run of its own, one after the other, with all fixtures made anew.
    names = [line.rpartition(":")[2] for line in suite.log]
    first = names.index("one")
    assert set(names[:first]) == {"stock"}
    assert set(names[first:]) == {"one"}
    for library, name in (("stock", "std"), ("one", "one")):
        events = under(suite, library)
        assert events.count("session setup") == events.count("session teardown") == 1
        assert events.count("text") == events.count("doctest") == 1
        assert events.count(f"check[{name}]") == 1
        ordered = [e.replace(f"test_function[{name}-3]", "NAME") for e in events]
        ordered = without_doctests_and_checks(ordered)
        assert [e for e in ordered if e != "collection"] == EVENTS
    # With several there is no library yet when the suite is collected.
    assert under(suite, "stock").count("collection") == 1


def test_selecting_repeated_tests(suite):
    write_every_kind(suite)
    both = ("--udf-lib=std", "--udf-lib=./one", "--doctest-modules", "-rA")

    result = suite.run(*both, "-k", "one")
    assert len(suite.outcomes(result)) == 8
    assert {line.rpartition(":")[2] for line in suite.log} == {"one", "stock"}
    assert under(suite, "stock") == ["collection"]

    result = suite.run(
        *both,
        "test_unittest.py::TestCase::test_case[one]",
        "test_kinds.py::test_function[std-3]",
        "test_text.txt::test_text.txt[one]",
    )
    assert sorted(suite.outcomes(result)) == [
        "test_kinds.py::test_function[std-3]",
        "test_text.txt::test_text.txt[one]",
        "test_unittest.py::TestCase::test_case[one]",
    ]
    # A name without an id means each.
    result = suite.run(*both, "test_unittest.py::TestCase::test_case")
    assert sorted(suite.outcomes(result)) == [
        "test_unittest.py::TestCase::test_case[one]",
        "test_unittest.py::TestCase::test_case[std]",
    ]
    result = suite.run(*both, "-m", "special")
    assert sorted(suite.outcomes(result)) == ["it.check::check[one]", "it.check::check[std]"]


FAILS_UNDER_ONE = {
    "test_fails": """
        import unittest
        from witness import which

        def test_function():
            assert which() == "stock"

        def test_passes():
            pass

        class TestCase(unittest.TestCase):
            @classmethod
            def tearDownClass(cls):
                assert which() == "stock"

            def test_a(self):
                assert which() == "stock"

            def test_b(self):
                pass

        def documented():
            '''
            >>> which()
            'stock'
            '''
    """
}


def test_failures_reports_exit_codes_and_last_failed(suite):
    suite.write(**FAILS_UNDER_ONE)
    both = ("--udf-lib=std", "--udf-lib=./one", "--doctest-modules", "-rA")
    result = suite.run(*both, "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=7, failed=3, errors=1)
    assert "INTERNALERROR" not in result.stdout.str()
    bad = {
        "test_fails.py::test_function[one]": "FAILED",
        "test_fails.py::TestCase::test_a[one]": "FAILED",
        "test_fails.py::test_fails.documented[one]": "FAILED",
        "test_fails.py::TestCase::test_b[one]": "ERROR",
    }
    assert {n: o for n, o in suite.outcomes(result).items() if o != "PASSED"} == bad
    root = ET.parse(suite.path / "junit.xml").getroot()
    cases = root.findall(".//testcase")
    assert sorted(c.get("name") for c in cases) == sorted(
        f"{name}[{library}]"
        for name in ("test_function", "test_passes", "test_a", "test_b", "test_fails.documented")
        for library in ("std", "one")
    )
    failed = {c.get("name") for c in cases if c.find("failure") is not None}
    assert failed == {"test_function[one]", "test_a[one]", "test_fails.documented[one]"}

    again = suite.run(*both, "--last-failed")
    assert set(suite.outcomes(again)) == set(bad)
    assert again.ret == pytest.ExitCode.TESTS_FAILED
    again.assert_outcomes(failed=3, errors=1, passed=1)

    first = suite.run(*both, "-x")
    first.assert_outcomes(passed=5, failed=1)
    assert first.ret == pytest.ExitCode.TESTS_FAILED
    second = suite.run(*both, "--maxfail=2")
    second.assert_outcomes(passed=5, failed=2)


def test_fixtures_of_every_scope_follow_the_session(suite):
    suite.write(
        test_it="""
        import json
        import pytest
        from witness import note, which

        @pytest.fixture(scope="session")
        def table(udf_session):
            note(f"table of {udf_session.library.name}")
            yield which()
            note(f"drop table of {udf_session.library.name}, open={udf_session.is_open}")

        @pytest.fixture(scope="module", params=["a", "b"])
        def derived(request, table):
            return request.param + table

        def test_one(derived, udf_session):
            assert derived[1:] == which()
            assert udf_session.is_open
            assert udf_session.functions == ("exp",)
            assert udf_session.build is None or len(udf_session.build.build_id) == 16

        def test_other_plugins_see_a_string(request, udf_session):
            # pytest-benchmark, for one, stores the parameters of a test as JSON.
            name = udf_session.library.name
            assert json.loads(json.dumps(request.node.callspec.params)) == {"udf_session": name}

        def test_cos_is_not_among_the_functions(table):
            assert which("cos") == "stock"
    """
    )
    result = suite.run(
        "-v", "--udf-lib=std", "--udf-lib=./one", "--udf-lib=./two", "--udf-functions=exp"
    )
    result.assert_outcomes(passed=12)
    assert suite.log == [
        "table of std:stock",
        "drop table of std, open=True:stock",
        "table of one:one",
        "drop table of one, open=True:one",
        "table of two:two",
        "drop table of two, open=True:two",
    ]
    result.stdout.fnmatch_lines(["*test_one[[]std-a[]]*", "*test_one[[]two-b[]]*"])


def test_header_states_the_mode(suite, torch_header):
    # Nothing of this shows without a library: see test_idle.py.
    suite.write(test_it="def test_it(): pass")
    build = r"build [0-9a-f]{16}, CPU level \w+"

    text = suite.run("--udf-lib=./one").stdout.str()
    one = rf"one 1\.5 \(bit 0 inverted\) from \S+/one; {build}; functions: exp, cos"
    assert re.search(rf"^udftorch: {one}$", text, re.M)
    assert torch_header in text

    text = suite.run("--udf-lib=std", "--udf-lib=./one", "--udf-functions=exp").stdout.str()
    assert re.search(
        r"^udftorch \[std\]: std \S+ \(.+\); nothing swapped; functions: exp$", text, re.M
    )
    assert re.search(
        rf"^udftorch \[one\]: one 1\.5 \(bit 0 inverted\) from \S+/one; {build}; functions: exp$",
        text,
        re.M,
    )
    assert torch_header in text


def test_equal_names_get_distinct_ids_and_the_same_folder_runs_once(suite):
    suite.library("one", 2, folder="other/one", functions=("exp",))
    suite.write(
        test_it="""
        from witness import note

        def test_it(request):
            note(request.node.name)
    """
    )
    result = suite.run("--udf-lib=./one", "--udf-lib=other/one", "--udf-lib=./other/../one")
    result.assert_outcomes(passed=2)
    assert suite.log == ["test_it[one]:one", "test_it[one.2]:two"]
    result.stdout.re_match_lines([r"udftorch \[one\].*", r"udftorch \[one\.2\].*other/one;.*"])


def test_one_library_named_twice_is_one_library(suite):
    suite.write(test_it="from witness import note\ndef test_it(request): note(request.node.name)")
    suite.run("--udf-lib=./one", "--udf-lib=one/").assert_outcomes(passed=1)
    assert suite.log == ["test_it:one"]


@pytest.mark.usefixtures("has_avx2")
def test_cpu_level_is_passed_on(suite, monkeypatch):
    # torch would otherwise call forms wider than the level has.
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    suite.write(
        test_it="""
        import pytest
        from witness import which

        def test_chosen(udf_session):
            assert (which(), udf_session.build.cpu_level) == ("one", "avx2")

        @pytest.mark.udf_lib("./two")
        def test_marked(udf_session, patched_libtorch):
            assert (which(), udf_session.build.cpu_level) == ("two", "avx2")
            assert patched_libtorch("./one").build.cpu_level == "avx2"
    """
    )
    result = suite.run("--udf-lib=./one", "--udf-cpu-level=avx2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["udftorch: one * CPU level avx2; *", "*CPU capability AVX2"])


def test_the_form_for_gpus_is_passed_on_and_told(suite):
    suite.write(
        test_it="""
        def test_chosen(udf_session, patched_libtorch):
            assert udf_session.cuda_forms() == {"exp": "float-float", "cos": "double"}
            inner = patched_libtorch("./mine", functions=("exp",))
            assert inner.cuda_forms() == {"exp": "float-float"}
            inner = patched_libtorch("./mine", functions=("exp",), cuda_form="double")
            assert inner.cuda_forms() == {"exp": "double"}
    """
    )
    suite.library("pairs", 2, functions=("exp",))
    described = suite.library("mine", 2) / "udf.toml"
    text = described.read_text()
    described.write_text(text.replace("[library]\n", '[library]\nfloat_float = "../pairs"\n'))
    options = ("--udf-lib=./mine",)
    result = suite.run(*options, "--udf-cuda-form=float-float")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["udftorch: mine *, on GPUs float-float (double: cos); *"])
    result = suite.run(*options, "--udf-cuda-form=double", "--collect-only")
    assert "on GPUs float-float" not in result.stdout.str()


def test_errors_of_fixtures_begin_with_the_fixture(suite):
    """No frame of this package stands before the user's, also where a fixture lies elsewhere."""
    suite.write(
        conftest="""
        import pytest

        @pytest.fixture
        def leaves():
            yield
            raise ValueError("teardown broke")

        @pytest.fixture(scope="session")
        def ends():
            yield
            raise ValueError("the end broke")

        @pytest.fixture
        def begins(): raise ValueError("setup broke")
        """,
        test_it="""
        def test_teardown(leaves): pass
        def test_setup(begins): pass
        def test_session(ends): pass
        """,
    )
    result = suite.run("--udf-lib=std", "--udf-lib=corem", "--udf-profile", "-p", "no:randomly")
    result.assert_outcomes(passed=4, errors=6)
    assert not [line for line in result.outlines if "plugin/" in line and ".py" in line]
    result.stdout.fnmatch_lines(["E       ValueError: teardown broke"])


def test_a_path_after_o_is_relative_to_the_folder_of_the_command(suite):
    suite.write(test_it="def test(): pass")
    (suite.path / "below").mkdir()
    (suite.path / "below" / "own.ini").write_text("[pytest]\nudf_lib = ./of_the_file\n")
    given = ("-c", "below/own.ini")
    result = suite.run(*given, "-o", "udf_lib=./mine", "test_it.py")
    result.stderr.fnmatch_lines(["ERROR: No folder '*_command0/mine'. *"])
    result = suite.run(*given, "test_it.py")
    result.stderr.fnmatch_lines(["ERROR: No folder '*_command0/below/of_the_file'. *"])
