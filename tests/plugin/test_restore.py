# SPDX-License-Identifier: Apache-2.0
"""However a run ends, libtorch is as it was: seen from the process that called pytest."""

import json
import textwrap

import pytest

# Each case: options, files, what the run must return. They share one process, as a run that
# left something behind would be seen by the next, too.
CASES = {
    "passes": (["--udf-lib=./one"], {"test_{}": "from witness import note\n"
        "def test_it(): note('{}')"}, 0),
    "several": (["--udf-lib=./one", "--udf-lib=./two"], {"test_{}": "from witness import note\n"
        "def test_it(): note('{}')"}, 0),
    "marker": ([], {"test_{}": "import pytest\nfrom witness import note\n"
        "@pytest.mark.udf_lib('./one')\ndef test_it(): note('{}')"}, 0),
    "stop_at_first": (["--udf-lib=./one", "--udf-lib=./two", "-x"],
        {"test_{}": "from witness import note\ndef test_it():\n    note('{}')\n    assert 0"}, 1),
    "interrupt": (["--udf-lib=./one"], {"test_{}": "from witness import note\n"
        "def test_it():\n    note('{}')\n    raise KeyboardInterrupt"}, 2),
    "interrupt_several": (["--udf-lib=./one", "--udf-lib=./two"],
        {"test_{}": "from witness import note\n"
        "def test_it():\n    note('{}')\n    raise KeyboardInterrupt"}, 2),
    "interrupt_fixture": ([], {"test_{}": "import pytest\nfrom witness import note\n"
        "@pytest.fixture\ndef broken(patched_libtorch):\n    patched_libtorch('./two')\n"
        "    note('{}')\n    raise KeyboardInterrupt\n"
        "@pytest.mark.udf_lib('./one')\ndef test_it(broken): pass"}, 2),
    "exit": (["--udf-lib=./one"], {"test_{}": "import pytest\nfrom witness import note\n"
        "def test_it():\n    note('{}')\n    pytest.exit('enough', returncode=7)"}, 7),
    "collection_error": (["--udf-lib=./one"],
        {"test_{}": "from witness import note\nnote('{}')\nraise ValueError"}, 2),
    "internal_error": (["--udf-lib=./one", "--udf-lib=./two"],
        {"conftest": "def pytest_runtest_logreport(report):\n"
         "    if report.when == 'call': raise ValueError('of a plugin')",
         "test_{}": "from witness import note\ndef test_it(): note('{}')"}, 3),
    "usage_error_after_ours": (["--udf-lib=./one"],
        {"conftest": "import pytest\nfrom witness import note\n"
         "def pytest_sessionstart():\n    note('{}')\n    raise pytest.UsageError('of another')",
         "test_{}": "def test_it(): pass"}, 4),
}  # fmt: skip

SCRIPT = """
import json, os, sys
import pytest
from witness import which

results = {}
for case, args in json.loads(sys.argv[1]).items():
    assert which() == which("cos") == "stock", case
    results[case] = int(pytest.main([*args, case]))
    results[case + " left"] = [which(), which("cos")]
print("RESULTS", json.dumps(results))
"""


def test_everything_is_restored_however_a_run_ends(suite):
    for case, (_, files, _) in CASES.items():
        folder = suite.pytester.mkdir(case)
        for name, text in files.items():
            path = folder / f"{name.format(case)}.py"
            path.write_text(text.replace("{}", case).replace("'./", f"'{suite.path}/"))
    script = suite.pytester.makepyfile(run_all=textwrap.dedent(SCRIPT))
    plan = {case: ["-p", "no:cacheprovider", *args] for case, (args, _, _) in CASES.items()}
    result = suite.pytester.runpython_c(
        f"import sys; sys.argv = ['run_all', {json.dumps(plan)!r}]; "
        f"exec(open({str(script)!r}).read())"
    )
    (line,) = [x for x in result.outlines if x.startswith("RESULTS ")]
    got = json.loads(line.removeprefix("RESULTS "))
    expected = {case: code for case, (_, _, code) in CASES.items()}
    assert got == expected | {f"{case} left": ["stock", "stock"] for case in CASES}
    # Each case did run patched up to its end.
    noted = {}
    for entry in suite.log:
        case, _, library = entry.partition(":")
        noted.setdefault(case, []).append(library)
    assert noted == {case: ["one", "two"] if case == "several" else ["one"] for case in CASES} | {
        "interrupt_fixture": ["two"]
    }


def test_a_session_that_cannot_be_restored_is_told(suite):
    # Another tool rebinds a slot behind the session's back and leaves it so.
    suite.write(
        conftest="""
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def other_tool():
            yield
            from pytest_udftorch.swap.session.binder import binder

            bound = binder()
            slot, = [s for s in bound.slots_of("exp", "float32") if s.symbol == "vmsExp"]
            (ours,) = bound.native.read([slot])
            bound.native.exchange([slot], [ours], [bound.native.trampoline(0)])
        """,
        test_it="def test_it(): pass",
    )
    result = suite.run("--udf-lib=./one")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.assert_outcomes(passed=1)
    result.stderr.fnmatch_lines(["*Something else rebound vmsExp while a session was open*"])
    # With several, the session ends with its last test, whose teardown tells it.
    result = suite.run("--udf-lib=./one", "--udf-lib=std")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it?one?*"])
    assert "Something else rebound vmsExp" in result.stdout.str()
