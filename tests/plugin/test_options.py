# SPDX-License-Identifier: Apache-2.0
"""Options and ini values: what they mean, which one wins, and how misuse is told."""

import os
import re

import pytest

from pytest_udftorch.errors import UnknownLibraryError
from pytest_udftorch.plugin.options import Options, freeze
from pytest_udftorch.swap.library.description import find_library


def chosen(pytester, **options):
    return Options(storage=pytester.path / ".udftorch", **options)


def test_no_option_gives_empty_options(pytester):
    assert freeze(pytester.parseconfig()) == chosen(pytester)


def test_command_line_options(pytester):
    options = freeze(
        pytester.parseconfig(
            "--udf-lib=corem",
            "--udf-lib=./mine",
            "--udf-functions=exp, log",
            "--udf-functions=sin",
            "--udf-cpu-level=avx2",
            "--udf-cuda-form=float-float",
            "--udf-exclusive",
        )
    )
    assert options.libraries == ("corem", pytester.path / "mine")
    assert options.functions == ("exp", "log", "sin")
    assert options.cpu_level == "avx2"
    assert options.cuda_form == "float-float"
    assert options.exclusive


INI = """
[pytest]
udf_lib =
    ./mine
    std
udf_functions =
    exp, log
    sin
udf_cpu_level = avx2
udf_cuda_form = double
udf_exclusive = true
"""


def test_ini_values_and_paths_relative_to_the_ini_file(pytester, monkeypatch):
    pytester.makeini(INI)
    below = pytester.mkdir("below")
    monkeypatch.chdir(below)
    assert freeze(pytester.parseconfig(below)) == chosen(
        pytester,
        libraries=(pytester.path / "mine", "std"),
        functions=("exp", "log", "sin"),
        cpu_level="avx2",
        cuda_form="double",
        exclusive=True,
    )


def test_command_line_replaces_each_ini_value_by_itself(pytester):
    pytester.makeini(INI)
    options = freeze(pytester.parseconfig("--udf-lib=corem", "--udf-cpu-level=avx512"))
    assert options == chosen(
        pytester,
        libraries=("corem",),
        functions=("exp", "log", "sin"),
        cpu_level="avx512",
        cuda_form="double",
        exclusive=True,
    )
    options = freeze(pytester.parseconfig("--udf-functions=cos"))
    assert options.libraries == (pytester.path / "mine", "std")
    assert options.functions == ("cos",)


def test_ini_values_in_pyproject_and_override(pytester):
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nudf_lib = ["corem", "./mine"]\n')
    assert freeze(pytester.parseconfig()).libraries == ("corem", pytester.path / "mine")
    assert freeze(pytester.parseconfig("-o", "udf_lib=")) == chosen(pytester)


@pytest.mark.parametrize("text", ["./mine", "../mine", "a/b", ".mine", "~/mine", "/abs/mine"])
def test_paths_are_told_from_names_as_find_library_does(pytester, text, monkeypatch):
    # find_library treats a str as a path by the same rule: it then complains of a folder.
    with pytest.raises(UnknownLibraryError, match=r"No folder '"):
        find_library(text)
    (path,) = freeze(pytester.parseconfig(f"--udf-lib={text}")).libraries
    assert path.is_absolute()
    assert os.path.normpath(path) == os.path.normpath(
        os.path.join(pytester.path, os.path.expanduser(text))
    )


# Every case ends before torch is imported, so a run of pytest each is quick.
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--udf-lib=corm"], r"No UDF library is called 'corm'\. Did you mean 'corem'"),
        (["--udf-lib=./none"], r"No folder '.*none'.*folder that holds udf\.toml"),
        (["--udf-lib=./empty"], r"holds no udf\.toml"),
        (["--udf-lib=./broken"], r"broken/udf\.toml is not valid TOML"),
        (["--udf-lib=./odd"], r"unknown key 'sauce' in \[functions\.exp\.float32\]"),
        (["--udf-lib=one"], r"No UDF library is called 'one'.*write '\./one'"),
        (["--udf-lib="], r"--udf-lib .* has an empty value\. Give the name"),
        (
            ["--udf-lib=./one", "--udf-functions=exp,tahn"],
            r"'one' has no function 'tahn'\. Known: cos, exp",
        ),
        (
            ["--udf-lib=std", "--udf-lib=./two", "--udf-functions=cos"],
            r"'two' has no function 'cos'",
        ),
        (["--udf-lib=./one", "--udf-functions=exp,,cos"], r"has an empty name in 'exp,,cos'"),
        (["--udf-functions=exp"], r"no library is chosen to take them from\. Add --udf-lib="),
        (["--udf-strict"], r"no library is chosen, so every test would pass\. Add --udf-lib="),
        (
            ["--udf-lib=std", "--udf-cpu-level=avx1024"],
            r"Unknown CPU level 'avx1024'\. Did you mean",
        ),
        (["-o", "udf_lib=corm"], r"No UDF library is called 'corm'"),
        (["--udf-cuda-form=float"], r"'float' is not a form of functions on a GPU"),
        (["-o", "udf_cuda_form=fast"], r"udf_cuda_form\): cuda_form='fast' is not a form"),
        (
            ["--udf-lib=./one", "--udf-cuda-form=float-float"],
            r"UDF library 'one' has no float-float form",
        ),
    ],
)
def test_misuse_is_a_usage_error_that_tells_what_to_do(suite, args, message):
    suite.pytester.mkdir("empty")
    suite.pytester.mkdir("broken").joinpath("udf.toml").write_text("= nonsense")
    odd = suite.library("odd", 1)
    (odd / "udf.toml").write_text((odd / "udf.toml").read_text().replace("source", "sauce", 1))
    suite.write(test_it="def test_it(): pass")
    result = suite.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(message, result.stderr.str())
    assert result.stderr.lines[0].startswith("ERROR: ")
    output = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in output
    assert "passed" not in output


@pytest.mark.parametrize("others", [[], ["--udf-lib=std"], ["-n1"]])
def test_source_that_does_not_compile_ends_the_run_with_the_compilers_message(suite, others):
    bad = suite.library("bad", 1)
    (bad / "f.c").write_text("float udf_expf(float x) { return y; }\n")
    suite.write(test_it="def test_it(): pass")
    result = suite.run("--udf-lib=./bad", *others)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"bad/f\.c:1:\d+: error: .*undeclared identifier 'y'", result.stderr.str())
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert "passed" not in result.stdout.str()


def test_level_too_low_for_this_torch_is_a_usage_error(suite, level_too_low):
    suite.write(test_it="def test_it(): pass")
    result = suite.run("--udf-lib=./one", f"--udf-cpu-level={level_too_low}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "the swap would be partial" in result.stderr.str()


@pytest.mark.parametrize("given", ["--udf-exclusive", None])
def test_sessions_of_a_run_are_exclusive_on_request(suite, given):
    suite.write(
        test_it="""
        from witness import which
        from pytest_udftorch.swap.session.exclusive import gate

        def test_it():
            assert which() in ("one", "two")
            assert gate.is_active is EXCLUSIVE
        """.replace("EXCLUSIVE", str(given is not None))
    )
    arguments = ["--udf-lib=./one", "--udf-lib=./two", *([given] if given else [])]
    assert suite.run(*arguments).ret == 0
