# SPDX-License-Identifier: Apache-2.0
"""Beside other tools: tests have the bits of the run's library, and everything is restored.

A rerun and a timeout leave each test the library that it chose. Each of these suites runs in a
process of its own. Plugins that the processes of the other tests share must not have them, so the
Makefile puts plugins into a folder that only the suites here see.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import pytest_udftorch

#: What ``make build/plugins`` installs.
FOLDER = Path(__file__).parents[2] / "build/plugins"
JEMALLOC = Path("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")

# ``right`` compares operators with corem's own functions, so it fails in a stock torch.
HELPER = """
import torch
from pytest_udftorch.swap.toolchain.shared_library import build_library

X = torch.linspace(-5, 5, 1001)

def right():
    scalar = {f: build_library("corem").scalar_function(f) for f in ("exp", "sin")}
    want = {f: torch.tensor([call(float(v)) for v in X]) for f, call in scalar.items()}
    return all(torch.equal(getattr(torch, f)(X), y) for f, y in want.items())

def check():
    if not right():  # no assert: python -O leaves those out
        raise RuntimeError("these are not corem's bits")
"""

# Looks at torch from outside of the run, before and after it.
MAIN = """
import sys
import pytest
import torch
from helper import X, right

stock = torch.exp(X), torch.sin(X)
if right():
    sys.exit("the stock functions give corem's bits: nothing can be seen")
code = pytest.main(sys.argv[1:])
now = torch.exp(X), torch.sin(X)
if not all(map(torch.equal, now, stock)):
    sys.exit("torch is not as it was")
print("restored")
sys.exit(code)
"""

PLAIN = """
import threading
import torch
from helper import check

def test_the_main_thread():
    check()

def test_another_thread():
    errors = []
    def run():
        try:
            check()
        except RuntimeError as error:
            errors.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
"""

PROFILER = """
def test_the_profiler_of_torch():
    with torch.profiler.profile(record_shapes=True, with_stack=True) as seen:
        check()
    if not any(event.key == "aten::exp" for event in seen.key_averages()):
        raise RuntimeError("the profiler saw no exp")
    check()
"""

# Module of a plugin -> options, and a test that uses it.
PLUGINS = {
    "pytest_cov": (
        ["--cov=helper", "--cov-branch", "--cov-report=term"],
        "from helper import check\ndef test_it(): check()\n",
    ),
    "pytest_randomly": (
        ["-p", "randomly", "-p", "no:cacheprovider"],
        "import pytest\nfrom helper import check\n"
        "@pytest.mark.parametrize('n', range(5))\ndef test_it(n): check()\n",
    ),
    "pytest_timeout": (
        ["--timeout=900", "--timeout-method=thread"],
        "from helper import check\ndef test_it(): check()\n",
    ),
    "pytest_rerunfailures": (
        ["--reruns=1"],
        "from pathlib import Path\nfrom helper import check\n"
        "def test_it():\n    check()\n"
        "    if not Path('seen').exists():\n        Path('seen').touch()\n"
        "        raise RuntimeError('once')\n",
    ),
    "pytest_asyncio": (
        ["--asyncio-mode=auto"],
        "import asyncio\nfrom helper import check\n"
        "async def test_it():\n    await asyncio.sleep(0)\n    check()\n"
        "    await asyncio.to_thread(check)\n"
        "    await asyncio.gather(*(asyncio.create_task(one()) for _ in range(3)))\n"
        "async def one(): check()\n",
    ),
    "pytest_benchmark": (
        ["--benchmark-min-rounds=2", "--benchmark-max-time=0.1"],
        "import torch\nfrom helper import X, check\n"
        "def test_it(benchmark):\n    check()\n    benchmark(torch.exp, X)\n    check()\n",
    ),
    "pytest_mock": (
        [],
        "import math\nfrom helper import check\n"
        "def test_it(mocker):\n    mocker.patch('math.exp', return_value=0.0)\n"
        "    if math.exp(1):\n        raise RuntimeError\n    check()\n",
    ),
    "pytest_order": (
        [],
        "import pytest\nfrom helper import check\n@pytest.mark.order(-1)\ndef test_it(): check()\n",
    ),
    "pytest_html": (
        ["--html=report.html", "--self-contained-html"],
        "from helper import check\ndef test_it(): check()\n",
    ),
    "pytest_instafail": (["--instafail"], "from helper import check\ndef test_it(): check()\n"),
    "pytest_sugar": (["--force-sugar"], "from helper import check\ndef test_it(): check()\n"),
    "hypothesis": (
        [],
        "import torch\nfrom hypothesis import given, settings, strategies as st\n"
        "from helper import X, check\n"
        "@settings(deadline=None, max_examples=20)\n@given(st.integers(1, 1000))\n"
        "def test_it(n):\n    check()\n"
        "    if not torch.equal(torch.exp(X[:n]), torch.exp(X)[:n]):\n"
        "        raise RuntimeError(n)\n",
    ),
    "beartype": (
        [],
        "from beartype import beartype\nfrom beartype.claw import beartype_package\n"
        "beartype_package('typed')\nimport pytest\nimport typed\n"
        "from beartype.roar import BeartypeCallHintParamViolation\nfrom helper import X, check\n"
        "def test_it():\n    check()\n    typed.exponential(X)\n"
        "    with pytest.raises(BeartypeCallHintParamViolation):\n"
        "        typed.exponential('no tensor')\n",
    ),
    "jaxtyping": (
        ["--jaxtyping-packages=shaped,beartype.beartype"],
        "import pytest\nimport shaped\nfrom jaxtyping import TypeCheckError\n"
        "from helper import X, check\n"
        "def test_it():\n    check()\n    shaped.exponential(X)\n"
        "    with pytest.raises(TypeCheckError):\n        shaped.exponential(X[None])\n",
    ),
}  # fmt: skip

#: Plugins that replace what counts the tests.
REPORTERS = {"pytest_instafail", "pytest_sugar"}

TYPED = """
import torch
def exponential(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x)
"""
SHAPED = """
import torch
from jaxtyping import Float
def exponential(x: Float[torch.Tensor, "n"]) -> Float[torch.Tensor, "n"]:
    return torch.exp(x)
"""


@pytest.fixture
def run(suite):
    """Run a suite under ``one`` and return the outcomes of the run."""

    def call(*args, **files):
        suite.write(**files)
        return suite.run("--udf-lib=./one", *args, torch_loaded=False)

    return call


@pytest.mark.slow
def test_a_test_that_is_run_again_has_the_library_again(suite, run):
    pytest.importorskip("pytest_rerunfailures")
    result = run(
        "--reruns=1",
        "-p", "no:randomly",
        test_it="""
        from pathlib import Path
        import pytest
        from witness import note
        def test_under_the_runs_library(udf_session):
            note(udf_session.library.name)
            assert Path("seen").exists() or Path("seen").touch()
        @pytest.mark.udf_lib("./two")
        def test_under_its_own(udf_session):
            note(udf_session.library.name)
            assert Path("seen-too").exists() or Path("seen-too").touch()
        """,
    )  # fmt: skip
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["rerun"]) == (2, 2)
    assert suite.log == ["one:one", "one:one", "two:two", "two:two"]


@pytest.mark.slow
def test_a_test_that_runs_out_of_time_leaves_the_next_one_its_library(suite, run):
    pytest.importorskip("pytest_timeout")
    result = run(
        "-p", "no:randomly",
        test_it="""
        import pytest
        import torch
        from witness import note
        @pytest.mark.udf_lib("./two")
        @pytest.mark.timeout(0.5, method="signal")
        def test_without_end(udf_session):
            note(udf_session.library.name)
            while True:
                torch.exp(torch.zeros(1000))
        def test_after(udf_session):
            note(udf_session.library.name)
        """,
    )  # fmt: skip
    result.assert_outcomes(failed=1, passed=1)
    assert suite.log == ["two:two", "one:one"]


def is_there(module: str) -> bool:
    found = PathFinder.find_spec(module, [str(FOLDER)]) or importlib.util.find_spec(module)
    return found is not None


@pytest.fixture
def outside(suite, build_cache, monkeypatch):
    """Run a suite under corem in a process of its own; return what it wrote."""
    for name in ("COV_CORE_SOURCE", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(name, raising=False)
    for name, text in (("helper", HELPER), ("main", MAIN), ("typed", TYPED), ("shaped", SHAPED)):
        (suite.path / f"{name}.py").write_text(text)

    def call(text: str, *args: str, python: tuple[str, ...] = (), **environment: str) -> str:
        (suite.path / "test_it.py").write_text(text)
        path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
        quiet = [] if "benchmark" in text else ["-p", "no:benchmark"]
        done = subprocess.run(
            [sys.executable, *python, "main.py", "--udf-lib=corem", *quiet, *args],
            cwd=suite.path, env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert done.stdout.endswith("restored\n"), done.stdout
        assert "udftorch: " in done.stdout
        return done.stdout

    return call


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_suite_with_a_plugin_has_the_runs_functions(outside, plugin):
    for needed in {"jaxtyping": ("jaxtyping", "beartype")}.get(plugin, (plugin,)):
        if not is_there(needed):
            pytest.skip(f"{needed} is not installed (make build/plugins)")
    options, text = PLUGINS[plugin]
    wrote = outside(text, *options)
    assert {
        "pytest_cov": "helper.py",
        "pytest_randomly": "Using --randomly-seed",
        "pytest_timeout": "timeout: 900.0s",
        "pytest_rerunfailures": "1 rerun",
        "pytest_asyncio": "asyncio: mode=Mode.AUTO",
        "pytest_benchmark": "Rounds",
        "pytest_html": "report.html",
    }.get(plugin, "1 passed") in wrote


def test_a_suite_with_all_plugins_at_once_has_the_runs_functions(outside, suite):
    options: list[str] = []
    # Two of them put a reporter of their own in the place of pytest's, each counting each phase.
    there = [p for p in PLUGINS if is_there(p) and p not in REPORTERS]
    if "beartype" not in there:
        there = [p for p in there if p != "jaxtyping"]
    for plugin in there:
        options += PLUGINS[plugin][0]
        (suite.path / f"test_{plugin}.py").write_text(PLUGINS[plugin][1])
    wrote = outside(PLAIN + "# pytest-benchmark stays on", *options)
    passed = 2 + len(there) + 4 * ("pytest_randomly" in there)
    assert f"{passed} passed" in wrote


@pytest.mark.slow
def test_forked_tests_have_the_runs_functions_and_are_counted(outside):
    folder = FOLDER / "forked"  # an older pytest
    if PathFinder.find_spec("pytest_forked", [str(folder)]) is None:
        pytest.skip("pytest-forked is not installed (make build/plugins)")
    path = os.pathsep.join((str(folder), str(FOLDER)))
    off = ("-p", "no:xdist", "-p", "no:rerunfailures", "-p", "no:randomly", "-p", "no:asyncio")
    wrote = outside(PLAIN, "--forked", "--udf-profile", *off, PYTHONPATH=path)
    assert "2 passed" in wrote
    assert "corem's functions ran in 2 of 2 tests" in wrote
    assert re.search(r"^exp +.*2,002", wrote, re.MULTILINE), wrote


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-X", "dev"), ("-O",), ("-OO",), ("-X", "dev", "-O")], ids=str)
def test_flags_of_the_interpreter(outside, flags):
    assert "3 passed" in outside(PLAIN + PROFILER, python=flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{"LD_PRELOAD": str(JEMALLOC)}, {"LD_BIND_NOW": "1"}, {"MALLOC_PERTURB_": "165"}],
    ids=["jemalloc", "LD_BIND_NOW", "MALLOC_PERTURB_"],
)
def test_settings_of_the_loader(outside, environment):
    if "LD_PRELOAD" in environment and not JEMALLOC.exists():
        pytest.skip(f"{JEMALLOC} is not there (Debian: libjemalloc2)")
    text = PLAIN + PROFILER
    if "LD_PRELOAD" in environment:
        text += (
            "def test_it_is_loaded():\n    with open('/proc/self/maps') as maps:\n"
            "        if 'jemalloc' not in maps.read():\n            raise RuntimeError\n"
        )
    assert f"{3 + ('LD_PRELOAD' in environment)} passed" in outside(text, **environment)


@pytest.mark.slow
def test_a_suite_whose_bits_are_wrong_would_fail(outside):
    with pytest.raises(AssertionError, match="these are not corem's bits"):
        outside(
            "import pytest\nfrom helper import check\n"
            "@pytest.mark.udf_lib('std')\ndef test_it(): check()\n"
        )


def test_no_assert_of_the_package_does_anything():
    """``python -O`` leaves the asserts out: each must be a test of what is known, and no more."""
    asserts = []
    for path in sorted(Path(pytest_udftorch.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                asserts.append(node)
                for inner in ast.walk(node.test):
                    assert not isinstance(inner, ast.NamedExpr | ast.Await), (path, node.lineno)
                    if isinstance(inner, ast.Call):
                        assert ast.unparse(inner.func) in ("isinstance", "len"), (path, node.lineno)
    assert asserts
