# SPDX-License-Identifier: Apache-2.0
"""Without a library the plugin does nothing, prints nothing and loads next to nothing."""

import json
import re
import subprocess
import sys

import pytest

SUITE = """
import unittest
import pytest

@pytest.fixture(scope="session")
def fixture():
    return 1

def test_one(fixture): pass

@pytest.mark.parametrize("n", [1, 2])
def test_two(n): pass

class TestCase(unittest.TestCase):
    def test_three(self): pass

def documented():
    '''
    >>> 1 + 1
    2
    '''
"""

# Runs pytest with this plugin or without it, and tells what that loaded and printed.
PROBE = """
import contextlib, io, json, sys
import pytest

out = io.StringIO()
with contextlib.redirect_stdout(out):
    code = pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]])
print(json.dumps([int(code), sorted(sys.modules), out.getvalue()]))
"""


def probe(suite, *args):
    run = subprocess.run(
        [sys.executable, "-c", PROBE, "--doctest-modules", "-v", *args],
        capture_output=True,
        text=True,
        check=True,
        cwd=suite.path,
        # Other people's plugins may load torch or NumPy: not what is looked at here.
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "", "HOME": str(suite.path)},
    )
    code, modules, output = json.loads(run.stdout)
    return code, set(modules), re.sub(r"in \d+\.\d+s", "in TIME", output)


PLUGIN = ("-p", "pytest_udftorch.plugin")


def test_no_library_no_effect_and_no_imports(suite):
    suite.write(test_it=SUITE)
    for args in ([], ["--collect-only"]):
        code, without, plain = probe(suite, *args)
        same_code, modules, output = probe(suite, *args, *PLUGIN)
        assert code == same_code == 0
        assert output.replace(" <- pytest_udftorch", "") == plain
        assert modules - without == {
            "pytest_udftorch",
            "pytest_udftorch.plugin",
            "pytest_udftorch.plugin.hooks",
            "pytest_udftorch.plugin.left_open",
            "pytest_udftorch.plugin.options",
        }
        assert not modules & {"torch", "numpy", "mpmath", "tomllib", "ctypes"}


def test_collect_only_neither_builds_nor_imports_torch(suite):
    suite.write(test_it=SUITE)
    both = ("--collect-only", "--udf-lib=std", "--udf-lib=./one")
    code, modules, output = probe(suite, *PLUGIN, *both)
    assert code == 0
    assert "pytest_udftorch.plugin.switcher" in modules
    assert "torch" not in modules
    assert "<Function test_two[one-1]>" in output
    assert "<TestCaseFunction test_three[std]>" in output
    assert "<DoctestItem test_it.documented[one]>" in output
    assert "not built, as no test is run; functions: exp, cos" in output
    # The probe's home is the suite's folder: a build would lie in the cache below it.
    assert not (suite.path / ".cache").exists()

    code, modules, output = probe(
        suite, *PLUGIN, "--setup-plan", "--udf-lib=./one", "test_it.py::test_two"
    )
    assert code == 0
    assert "torch" not in modules
    assert not (suite.path / ".cache").exists()


def test_works_without_optional_plugins_of_pytest(suite):
    suite.write(
        test_it="""
        from witness import note
        def test_it(udf_session, request): note(request.node.name)
    """
    )
    off = ("doctest", "unittest", "terminal", "xdist", "junitxml", "skipping", "faulthandler")
    args = [x for name in off for x in ("-p", f"no:{name}")]
    assert suite.run("--udf-lib=std", "--udf-lib=./one", *args).ret == 0
    assert suite.log == ["test_it[std]:stock", "test_it[one]:one"]
    # Turned off itself, its options are gone.
    result = suite.run("-p", "no:udftorch", "--udf-lib=std")
    result.stderr.fnmatch_lines(["*unrecognized arguments: --udf-lib=std"])
    assert suite.run("-p", "no:udftorch", "-k", "nothing").ret == 5


@pytest.mark.parametrize(
    "args",
    [
        ["-p", "pytest_udftorch.plugin"],
        ["-p", "udftorch", "-p", "pytest_udftorch.plugin"],
        ["-p", "pytest_udftorch.plugin", "-p", "udftorch"],
    ],
)
def test_a_named_plugin_is_registered_once(suite, args):
    """The entry point of the installed package is loaded beside the plugin that is named."""
    suite.write(conftest="pytest_plugins = ['pytest_udftorch.plugin']")
    suite.write(test_it="def test_it(udf_session): assert udf_session.library.name == 'std'")
    result = suite.run(*args, "--udf-lib=std")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*cannot be rewritten*pytest_udftorch.plugin*")


def test_import_time_of_the_plugin_is_recorded(record_testsuite_property):
    """The figure goes into the JUnit report; what decides it is asserted above."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import pytest, pytest_udftorch.plugin"],
        capture_output=True,
        text=True,
        check=True,
    )
    total = {
        name.strip(): int(cumulative)
        for _, cumulative, name in (
            line.removeprefix("import time:").split("|")
            for line in run.stderr.splitlines()
            if re.match(r"import time: +\d", line)
        )
    }
    record_testsuite_property("plugin_import_us", total["pytest_udftorch.plugin"])
    assert total["pytest_udftorch.plugin"] >= total["pytest_udftorch.plugin.options"] > 0
