# SPDX-License-Identifier: Apache-2.0
"""Any value of any option, ini value or variable: a run, or a usage error that says what to do."""

from __future__ import annotations

import contextlib
import io
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

OPTIONS = {
    "--udf-lib": "udf_lib",
    "--udf-functions": "udf_functions",
    "--udf-cpu-level": "udf_cpu_level",
    "--udf-cuda-form": "udf_cuda_form",
    "--udf-profile": "udf_profile",
    "--udf-profile-out": None,
    "--udf-strict": "udf_strict",
}
VARIABLES = (
    "UDFTORCH_CPU_LEVEL", "UDFTORCH_CUDA_FORM", "UDFTORCH_BUILD_TIMEOUT", "UDFTORCH_CACHE_MIB",
)  # fmt: skip
#: Words that lie near what is right. None of them builds anything: std swaps nothing.
WORDS = (
    "std", "STD", "std ", "./std", "", " ", ".", "..", "/", "/dev/null", "~", "~nosuchuser", "a/b",
    "exp", "exp,log", "exp,,log", ",", "aten::exp", "avx2", "avx512", "baseline", "double", "auto",
    "float-float", "counters", "timed", "events", "true", "false", "yes", "1", "-1", "nan", "inf",
    "1e400", "None", "[]", "%s", "$HOME", "\x1b[2J", "a\nb", "ä∞", "\udcff", "x" * 5000,
    "--udf-lib",
)  # fmt: skip
words = st.one_of(
    st.sampled_from(WORDS),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)
given_options = st.lists(
    st.tuples(st.sampled_from(sorted(OPTIONS)), st.booleans(), words), min_size=1, max_size=4
)


def builds_nothing(value: str) -> bool:
    """Whether a library of this name compiles nothing; the others are built by other tests."""
    return value.strip() not in ("corem", "corem-ff", "canary")


def arguments(chosen):
    for option, in_file, value in chosen:
        if in_file and OPTIONS[option]:
            # An option that overrides the file is parsed as its lines are.
            yield "-o"
            yield f"{OPTIONS[option]}={value}"
        else:
            yield option if option == "--udf-strict" else f"{option}={value}"


def run(*args):
    """Run pytest in this process on a file without tests; return its status and output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = pytest.main(
            [
                "-p",
                "no:benchmark",
                "-p",
                "no:hypothesispytest",
                "-p",
                "no:cacheprovider",
                # It collects garbage five times, which takes seconds in the process of a whole run.
                "-p",
                "no:unraisableexception",
                "--import-mode=importlib",
                "--collect-only",
                "-q",
                "-c",
                "empty.ini",
                *args,
            ]
        )
    return status, out.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "cache"))
    for name in (*VARIABLES, "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def judge(status, output):
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR), output
    for sign in ("INTERNALERROR", "Traceback", "Error:  "):
        assert sign not in output
    if status == pytest.ExitCode.USAGE_ERROR:
        said = re.search(r"(?s)(?:ERROR|error): (.{15,})", output)
        assert said, output


few = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@few
@given(chosen=given_options)
def test_odd_values(folder, chosen):
    if all(builds_nothing(value) for _, _, value in chosen):
        judge(*run(*arguments(chosen)))


@settings(few, max_examples=5)
@given(variable=st.sampled_from(VARIABLES), value=words)
def test_odd_variables(folder, variable, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, variable, value)
        judge(*run("--udf-lib=std", "--udf-profile"))


def test_a_plugin_that_lets_an_error_out_is_caught(folder, monkeypatch):
    from pytest_udftorch.plugin import hooks

    def breaks(config):
        raise TypeError("odd")

    monkeypatch.setattr(hooks, "freeze", breaks)
    with pytest.raises((AssertionError, TypeError)):
        judge(*run("--udf-lib=std"))
