# SPDX-License-Identifier: Apache-2.0
"""udf.toml: what is accepted, and the message for every way to get it wrong."""

import re
from pathlib import Path

import pytest

from pytest_udftorch.errors import (
    LibraryFormatError,
    UnknownFunctionError,
    UnknownLibraryError,
)
from pytest_udftorch.library.description import (
    available_libraries,
    check_names,
    find_library,
    load_library,
)
from pytest_udftorch.library.symbols import FUNCTIONS

HEAD = '[library]\nname = "mine"\nversion = "1"\n'
EXP = '[functions.exp.float32]\nsource = "e.c"\nscalar = "udf_expf"\n'


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "udf.toml").write_text(text)
    (folder / "e.c").write_text("float udf_expf(float x) { return x; }\n")
    return folder


def test_shipped_libraries_are_found_by_name():
    assert {"std", "corem", "canary"} <= set(available_libraries())
    assert find_library("std").stock
    assert not find_library("corem").stock


def test_corem_has_the_functions_it_promises():
    assert {"exp", "expm1", "log", "sin", "cos"} <= set(find_library("corem").function_names)


def test_library_by_path(tmp_path, monkeypatch):
    write(tmp_path / "mine", HEAD + EXP)
    library = find_library(tmp_path / "mine")
    assert library.name == "mine"
    assert library.function_names == ("exp",)
    monkeypatch.chdir(tmp_path)
    assert find_library("./mine") == library


def test_unknown_name_offers_the_nearest():
    with pytest.raises(UnknownLibraryError, match=r"'corm'.*Did you mean 'corem'"):
        find_library("corm")


def test_unknown_name_that_is_a_folder_says_how_to_use_it(tmp_path, monkeypatch):
    write(tmp_path / "mylib", HEAD + EXP)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownLibraryError, match=r"write '\./mylib'"):
        find_library("mylib")


def test_path_without_folder():
    with pytest.raises(UnknownLibraryError, match=r"No folder './nowhere'"):
        find_library("./nowhere")


def test_folder_without_description(tmp_path):
    with pytest.raises(LibraryFormatError, match=r"holds no udf\.toml.*How to add a UDF"):
        load_library(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[library\n", "not valid TOML"),
        ("[functions.exp.float32]\n", r"table \[library\] is missing"),
        (HEAD, r"table \[functions\] is missing"),
        (HEAD + "[functions]\n", r"\[functions\] is empty"),
        ('[library]\nname = "x"\n' + EXP, "needs a version"),
        (HEAD + 'colour = "red"\n' + EXP, r"unknown key 'colour' in \[library\]"),
        (HEAD + 'vesion = "2"\n' + EXP, "Did you mean 'version'"),
        (HEAD + "description = 3\n" + EXP, "description in .* wrong type: 3"),
        (HEAD + EXP + "[extra]\n", r"unknown table \[extra\]"),
        (HEAD + EXP.replace("exp.", "expo."), "no such function to swap. Did you mean 'exp'"),
        (HEAD + EXP.replace("float32", "float16"), "bfloat16 and half go through float32"),
        (HEAD + "[functions]\nexp = 3\n", "needs a table per dtype"),
        (HEAD + EXP + 'speed = "fast"\n', "unknown key 'speed'"),
        (HEAD + EXP + 'max_ulp = "low"\n', "max_ulp in .* wrong type"),
        (HEAD + EXP.replace('source = "e.c"\n', ""), "needs a source"),
        (HEAD + EXP.replace("e.c", "gone.c"), "names 'gone.c', which does not exist"),
        (HEAD + EXP.replace("scalar", "fast"), "fast and accurate together; it has fast"),
        (HEAD + EXP + 'fast = "a"\naccurate = "b"\n', "it has accurate, fast, scalar"),
        (HEAD + EXP + 'quick = "a"\n', "quick, which goes before fast and accurate"),
        (HEAD + EXP + 'hard_cases = "no.txt"\n', "'no.txt', which does not exist"),
        (HEAD + 'include_dirs = ["../nowhere"]\n' + EXP, "'../nowhere', which does not exist"),
        (HEAD + "include_dirs = [1]\n" + EXP, "1 is not a path"),
        (HEAD + "stock = true\n" + EXP, "stock = true swaps nothing"),
    ],
)
def test_every_mistake_in_the_description_is_named(tmp_path, text, message):
    folder = write(tmp_path / "bad", text)
    with pytest.raises(LibraryFormatError, match=re.compile(message, re.DOTALL)) as caught:
        load_library(folder)
    assert str(folder / "udf.toml") in str(caught.value)


def test_select_keeps_order_and_drops_repeats():
    corem = find_library("corem")
    assert corem.select(("log", "exp", "log")) == ("log", "exp")
    assert corem.select(None) == corem.function_names


def test_select_unknown_function(tmp_path):
    library = find_library(write(tmp_path / "mine", HEAD + EXP))
    with pytest.raises(UnknownFunctionError, match=r"'mine' has no function 'epx'.*'exp'"):
        library.select(("epx",))


def test_select_nothing():
    with pytest.raises(UnknownFunctionError, match="swap nothing"):
        find_library("corem").select(())


def test_select_a_bare_string_is_not_taken_for_letters():
    with pytest.raises(UnknownFunctionError, match=r"Give a sequence: functions=\('exp',\)"):
        find_library("corem").select("exp")


@pytest.mark.parametrize("names", [3, (None,), ("exp", 2), (n for n in ("exp",))])
def test_what_is_no_sequence_of_names_is_refused(names):
    with pytest.raises(UnknownFunctionError, match="not a sequence of names"):
        check_names(names)


def test_entry_point_that_names_no_folder(monkeypatch):
    from importlib import metadata

    from pytest_udftorch.library import description as library

    entry = metadata.EntryPoint(
        "broken", "no_such_module_anywhere:thing", library.ENTRY_POINT_GROUP
    )
    monkeypatch.setattr(library.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(LibraryFormatError, match=r"'broken'.*gives no folder"):
        available_libraries()


def test_canary_has_every_function_of_corem():
    assert set(find_library("canary").functions) == set(find_library("corem").functions)


def test_every_function_of_corem_claims_a_bound_and_lists_hard_cases():
    for function in find_library("corem").functions.values():
        assert function.max_ulp == 0.5
        assert function.hard_cases is not None
        # Nobody can check 2^64 pairs, so that a function of two arguments says what was checked.
        assert ("not checked on all pairs" in function.claim) == (
            FUNCTIONS[function.name].arity == 2
        )
