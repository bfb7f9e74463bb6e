# SPDX-License-Identifier: Apache-2.0
"""The marker ``udf_lib``: tests that choose their own library."""

import re

import pytest


def test_marker_chooses_per_test_class_and_module(suite):
    suite.library("beside", 2, folder="below/beside", functions=("exp",))
    below = suite.path / "below" / "test_module.py"
    below.write_text(
        "from pathlib import Path\n"
        "import pytest\n"
        "from witness import note\n"
        # A path in a marker starts at the test file; --udf-lib paths at the working folder.
        'pytestmark = pytest.mark.udf_lib("./beside")\n'
        'def test_relative(): note("relative")\n'
        '@pytest.mark.udf_lib(Path("beside"))\n'
        'def test_pathlib(): note("pathlib")\n'
        '@pytest.mark.udf_lib("../one")\n'
        'def test_closest(): note("closest")\n'
    )
    suite.write(
        test_it="""
        import unittest
        import pytest
        from witness import note

        @pytest.fixture(scope="module")
        def of_session(udf_session):
            note(f"set up for {udf_session.library.name}")
            yield udf_session.library.name
            note(f"tear down for {udf_session.library.name}")

        def test_unmarked():
            note("unmarked")

        @pytest.mark.udf_lib("./one")
        def test_marked(of_session):
            assert of_session == "one"
            note("marked")

        @pytest.mark.udf_lib("./one", functions=("cos",))
        def test_functions(udf_session, of_session):
            assert udf_session.functions == ("cos",)
            note("functions")
            note("functions, cos", "cos")

        @pytest.mark.udf_lib("./two")
        class TestClass:
            def test_method(self, of_session):
                assert of_session == "two"
                note("method")

            def test_next(self):
                note("next")

        @pytest.mark.udf_lib("./two")
        class TestCase(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                note("setUpClass")

            @classmethod
            def tearDownClass(cls):
                note("tearDownClass")

            def test_case(self):
                note("case")

        def test_last():
            note("last")
    """
    )
    log = """
        relative:two pathlib:two closest:one
        unmarked:BASE
        set up for one:one marked:one tear down for one:one
        set up for one:stock functions:stock functions, cos:one tear down for one:stock
        set up for two:two method:two next:two
        setUpClass:two case:two tearDownClass:two tear down for two:two
        last:BASE
    """.replace(" functions,", "\nfunctions,")
    log = re.sub(r":(\w+) ", r":\1\n", log)
    log = [line.strip() for line in log.splitlines() if line.strip()]

    suite.run().assert_outcomes(passed=10)
    assert suite.log == [line.replace("BASE", "stock") for line in log]

    # Over a library for the run: what the marker leaves out is stock, not that library's.
    suite.run("--udf-lib=./two").assert_outcomes(passed=10)
    # And where it says the same nothing is switched, so that fixture lasts for the module.
    log.append(log.pop(log.index("tear down for two:two")))
    assert suite.log == [line.replace("BASE", "two") for line in log]

    # Over several: a marked test runs once, under what it says.
    both = suite.run("--udf-lib=std", "--udf-lib=./two")
    both.assert_outcomes(passed=8 + 2 * 2)
    assert [x for x in suite.log if x.startswith(("unmarked", "last"))] == [
        "unmarked:stock", "last:stock", "unmarked:two", "last:two",
    ]  # fmt: skip
    assert sorted(x for x in suite.log if x.endswith(":one")) == [
        "closest:one", "functions, cos:one", "marked:one",
        "set up for one:one", "tear down for one:one",
    ]  # fmt: skip


def test_marker_with_several_libraries(suite):
    suite.write(
        test_it="""
        import unittest
        import pytest
        from witness import note

        pytestmark = pytest.mark.udf_lib("./one", "std", "./two", functions=["exp"])

        @pytest.mark.parametrize("n", [1, 2])
        def test_function(n, request):
            note(request.node.name)

        class TestCase(unittest.TestCase):
            def test_case(self):
                note("case")
    """
    )
    suite.run("-rA").assert_outcomes(passed=9)
    names = {"one": "one", "std": "stock", "two": "two"}
    assert sorted(suite.log) == sorted(
        [f"case:{bits}" for bits in names.values()]
        + [f"test_function[{name}-{n}]:{bits}" for name, bits in names.items() for n in (1, 2)]
    )
    result = suite.run("-rA", "-k", "two and not function", "--udf-lib=std")
    assert suite.outcomes(result) == {"test_it.py::TestCase::test_case[two]": "PASSED"}


def test_a_library_that_cannot_be_used_is_the_setup_error_of_its_tests(suite):
    bad = suite.library("bad", 1)
    (bad / "f.c").write_text("float udf_expf(float x) { return y; }\n")
    suite.write(
        test_it="""
        import pytest
        from witness import note

        @pytest.mark.udf_lib("./bad")
        class TestBad:
            def test_one(self):
                note("not reached")

            def test_two(self):
                note("not reached")

            @pytest.mark.skip(reason="skipped tests open no session")
            def test_skipped(self):
                note("not reached")

        @pytest.mark.udf_lib("./one")
        def test_good():
            note("good")

        def test_unmarked():
            note("unmarked")
    """
    )
    result = suite.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, errors=2, skipped=1)
    assert suite.log == ["good:one", "unmarked:stock"]
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of TestBad.test_one*",
            "UDF library 'bad' cannot be used for this test. *does not compile*",
            "*bad/f.c:1:*error: *undeclared identifier*",
        ]
    )
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.no_fnmatch_line("*Traceback*")

    suite.run("--udf-lib=./two").assert_outcomes(passed=2, errors=2, skipped=1)
    assert suite.log == ["good:one", "unmarked:two"]


MISUSE = {
    "no_argument": ("()", "It names no library."),
    "unknown_keyword": (
        '("std", function=("exp",))',
        "It has no keyword 'function'; it has 'functions' and 'composites'.",
    ),
    "unknown_library": (
        '("corm")',
        "No UDF library is called 'corm'. Did you mean 'corem' or 'corem-d' or 'corem-ff'?",
    ),
    "unknown_folder": ('("./gone")', "No folder '*gone'*"),
    "not_a_name": ("(3)", "3 is neither the name nor the path of a library."),
    "made_in_python": (
        '(__import__("pytest_udftorch").operator_udf("aten::log")(abs))',
        "'abs' was made in Python, and the marker takes names and paths.*patched_libtorch*",
    ),
    "empty_name": ('("")', "'' is neither the name nor the path of a library."),
    "string_for_functions": (
        '("std", functions="exp")',
        "functions='exp' is a string; give a sequence: ('exp',).",
    ),
    "number_for_functions": (
        '("std", functions=3)',
        "functions=3 is not a sequence of torch's function names.",
    ),
    "unknown_function": (
        '("./two", functions=("cos",))',
        "UDF library 'two' has no function 'cos'. Known: exp.",
    ),
    "no_function": ('("std", functions=())', "*empty selection of functions would swap nothing*"),
}


def test_misuse_is_a_collection_error_that_names_the_test(suite):
    good = "def test_good(): pass\n"
    head = f"import pytest, unittest\n{good}"
    suite.write(test_good=good)
    for name, (arguments, _) in MISUSE.items():
        mark = f"@pytest.mark.udf_lib{arguments}\n"
        suite.write(**{f"test_{name}": f"{head}{mark}def test_bad(): pass\n"})
    suite.write(
        test_unittest=f"{head}class TestCase(unittest.TestCase):\n"
        '    @pytest.mark.udf_lib("corm")\n    def test_bad(self): pass\n'
    )
    result = suite.run("-p", "no:terminalprogress")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=len(MISUSE) + 1)
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    for name, (_, message) in MISUSE.items():
        what = f"test_{name}.py::test_bad: the marker udf_lib cannot be used. {message}"
        result.stdout.fnmatch_lines([what.replace("[", "[[]")])
    result.stdout.fnmatch_lines(
        ["test_unittest.py::TestCase::test_bad: the marker udf_lib cannot be used. *'corm'*"]
    )
    advice = '@pytest.mark.udf_lib("corem", functions=("exp", "log")).'
    assert text.count(advice) == len(MISUSE) + 1

    # Other files are not concerned, nor is anything outside the class of a TestCase.
    result = suite.run("--continue-on-collection-errors")
    result.assert_outcomes(passed=2, errors=len(MISUSE) + 1)


def test_marker_is_registered(suite):
    result = suite.run("--markers", "--strict-markers")
    form = "(*libraries, functions=None, composites=False)"
    result.stdout.fnmatch_lines([f"@pytest.mark.udf_lib{form}: *"])
