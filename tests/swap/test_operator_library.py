# SPDX-License-Identifier: Apache-2.0
"""UDFs at operator level in udf.toml: what is accepted, and every way to get it wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_udftorch
from pytest_udftorch import cli
from pytest_udftorch.errors import LibraryError, UnknownFunctionError
from pytest_udftorch.swap.library.description import find_library, load_library
from pytest_udftorch.swap.library.symbols import OPERATOR_UDFS
from pytest_udftorch.swap.overrides.operator_udfs import operator_udf
from pytest_udftorch.swap.records.layout import FIRST_OPERATOR_UDF

HEAD = '[library]\nname = "mine"\nversion = "1"\n'
LOG = '[operators."aten::log.out"]\nsource = "o.cpp"\nfunction = "log_udf_out"\n'
EXP = '[functions.exp.float32]\nsource = "e.c"\nscalar = "e"\n'


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "udf.toml").write_text(text)
    for name in ("o.cpp", "o.py", "e.c"):
        (folder / name).write_text("")
    return folder


def test_a_library_of_operators_only(tmp_path):
    library = load_library(write(tmp_path / "mine", HEAD + LOG))
    assert library.function_names == ()
    assert library.names == ("aten::log.out",)
    (udf,) = library.operators["aten::log.out"]
    assert udf.source == tmp_path / "mine" / "o.cpp"
    assert udf.python is None
    assert udf.function == "log_udf_out"
    assert udf.dispatch_keys == ("CPU",)
    assert udf.dtypes == ()


def test_functions_and_operators_are_selected_alike(tmp_path):
    library = load_library(write(tmp_path / "mine", HEAD + EXP + LOG))
    assert library.select(None) == ("exp", "aten::log.out")
    assert library.select(("aten::log.out",)) == ("aten::log.out",)
    with pytest.raises(
        UnknownFunctionError, match=r"no operator 'aten::log'\. Did you mean 'aten::log\.out'"
    ):
        library.select(("aten::log",))


def test_the_stock_library_has_every_operator():
    assert find_library("std").select(("exp", "aten::log")) == ("exp", "aten::log")
    with pytest.raises(UnknownFunctionError, match="no operator"):
        find_library("corem").select(("aten::log",))


def test_one_operator_at_several_dispatch_keys(tmp_path):
    text = HEAD + (
        '[[operators."aten::log.default"]]\nsource = "o.cpp"\nfunction = "space::log"\n'
        '[[operators."aten::log.default"]]\npython = "o.py"\nfunction = "log"\n'
        'dispatch_keys = ["CUDA"]\ndtypes = ["float32", "bfloat16"]\n'
    )
    first, second = load_library(write(tmp_path / "mine", text)).operators["aten::log"]
    assert first.function == "space::log"
    assert second.python == tmp_path / "mine" / "o.py"
    assert second.dispatch_keys == ("CUDA",)
    assert second.dtypes == ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[operators]\n", r"\[operators\] is empty"),
        (LOG.replace('"aten::log.out"', "aten.log.out"), 'in quotes.*operators."aten::log.out"'),
        (LOG.replace("aten::log.out", "log.out"), "is not the name of an operator"),
        (LOG.replace("aten::log.out", "aten::log.out.x"), "is not the name of an operator"),
        (LOG + LOG.replace("log.out", "log.out.default"), "is not the name of an operator"),
        (
            LOG.replace("log.out", "log") + LOG.replace("log.out", "log.default"),
            r"there twice: as aten::log and as aten::log\.default",
        ),
        ('[operators]\n"aten::log" = 3\n', "is not a table"),
        (LOG + 'speed = "fast"\n', "unknown key 'speed'"),
        (LOG + 'python = "o.py"\n', "either a source in C.. or a file python"),
        (LOG.replace('source = "o.cpp"\n', ""), "either a source in C.. or a file python"),
        (LOG.replace("o.cpp", "gone.cpp"), "names 'gone.cpp', which does not exist"),
        (LOG.replace("log_udf_out", "a b"), "needs a function, by its name"),
        (LOG.replace('function = "log_udf_out"\n', ""), "needs a function, by its name"),
        (LOG.replace("log_udf_out", "a::b").replace("source", "python"), "needs a function"),
        (LOG + "dispatch_keys = []\n", "must be names, each once"),
        (LOG + "dispatch_keys = [3]\n", "must be names, each once"),
        (LOG + 'dispatch_keys = ["CPU", "CPU"]\n', "must be names, each once"),
        (LOG + 'dispatch_keys = "CPU"\n', "dispatch_keys in .* wrong type"),
        (LOG + 'dtypes = ["float23"]\n', "no dtype 'float23'. Did you mean 'float32'"),
        (2 * LOG.replace("[op", "[[op").replace('"]', '"]]', 1), "has a dispatch key twice"),
    ],
)
def test_every_mistake_in_the_description_is_named(tmp_path, text, message):
    folder = write(tmp_path / "bad", HEAD + text)
    with pytest.raises(LibraryError, match=re.compile(message, re.DOTALL)) as caught:
        load_library(folder)
    assert str(folder / "udf.toml") in str(caught.value)


def test_the_stock_library_overrides_nothing(tmp_path):
    folder = write(tmp_path / "bad", HEAD + "stock = true\n" + LOG)
    with pytest.raises(LibraryError, match=r"remove \[operators\]"):
        load_library(folder)


def test_the_decorator_makes_a_library_without_torch():
    """In a process of its own: nothing of torch is loaded for a definition."""
    code = (
        "import sys, pytest_udftorch\n"
        "@pytest_udftorch.operator_udf('aten::log.default', dtypes=('float32',))\n"
        "def my_log(self): return self\n"
        "assert isinstance(my_log, pytest_udftorch.UdfLibrary)\n"
        "assert my_log.name == 'my_log' and my_log.names == ('aten::log',)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_decorator_refuses_what_udf_toml_does():
    with pytest.raises(LibraryError, match="not the name of an operator"):
        operator_udf("log")(len)
    with pytest.raises(LibraryError, match="no dtype 'half'"):
        operator_udf("aten::log", dtypes=("half",))(len)


def test_the_command_lists_functions_and_operators(tmp_path, capsys):
    folder = write(tmp_path / "mine", HEAD + EXP + LOG + 'dtypes = ["float32"]\n')
    assert cli.main(["libraries", str(folder), "std"]) == 0
    std = find_library("std")
    assert capsys.readouterr().out.splitlines() == [
        "mine 1",
        "  exp: float32",
        "  aten::log.out: CPU; float32 only",
        f"std {std.version} ({std.claim}): {std.description}",
        "  the stock functions and operators",
    ]
    assert cli.main(["libraries"]) == 0
    assert "corem" in capsys.readouterr().out


def test_numbers_are_those_of_the_native_half():
    header = (Path(pytest_udftorch.__file__).parent / "swap/native/c/udfprof.h").read_text()
    assert f"UDFPROF_OPERATOR_UDFS = {OPERATOR_UDFS}," in header
    assert f"UDFPROF_FIRST_OPERATOR_UDF = {FIRST_OPERATOR_UDF}," in header
