# SPDX-License-Identifier: Apache-2.0
"""udf.toml: what is accepted, and the message for every way to get it wrong."""

import os
import re
from pathlib import Path

import pytest

from pytest_udftorch.errors import LibraryError, UnknownFunctionError, UnknownLibraryError
from pytest_udftorch.swap.library.description import (
    available_libraries,
    check_names,
    find_library,
    load_library,
)
from pytest_udftorch.swap.library.symbols import FUNCTIONS

HEAD = '[library]\nname = "mine"\nversion = "1"\n'
EXP = '[functions.exp.float32]\nsource = "e.c"\nscalar = "udf_expf"\n'
SHORT = (
    '[functions.exp.float32]\nsource = "in.c"\nfast = "a"\naccurate = "b"\n'
    'short = "c"\nshort_source = "e.c"\n'
)
QUICK = EXP.replace("scalar", "fast") + 'accurate = "a"\nquick = "q"\n'
WIDE = SHORT.replace("short", "quick_avx2")


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "udf.toml").write_text(text)
    (folder / "e.c").write_text("float udf_expf(float x) { return x; }\n")
    return folder


def odd_files(folder: Path) -> None:
    (folder / "in.ll").touch()
    (folder / "in.c").touch()
    os.mkfifo(folder / "pipe.c")
    (folder / "loop.c").symlink_to("loop.c")
    (folder / "out.c").symlink_to("/etc/passwd")
    (folder / "link").symlink_to("/usr")
    (folder / "in").mkdir()


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
    with pytest.raises(LibraryError, match=r"holds no udf\.toml.*How to add a UDF"):
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
        (HEAD + EXP + 'short = "a"\n', "short, which goes before fast and accurate"),
        (HEAD + EXP + 'short_source = "e.c"\n', "short_source, the file of short: add short"),
        (HEAD + SHORT.replace("e.c", "no.c"), "short_source names 'no.c', which does not exist"),
        (HEAD + SHORT.replace("in.c", "in.ll"), "short_source, which is compiled together with"),
        (HEAD + EXP + 'quick_levels = ["avx2"]\n', r"CPU levels .* there is no quick"),
        (HEAD + EXP + 'quick_avx2 = "a"\n', "quick_avx2, which goes before fast and accurate"),
        (HEAD + QUICK + 'quick_avx2 = "a"\n', "quick_avx2 and quick_avx2_source together"),
        (HEAD + QUICK + 'quick_avx512 = "a"\n', "quick_avx512 and quick_avx512_source together"),
        (HEAD + EXP + 'quick_avx512 = "a"\n', "quick_avx512, which goes before fast and"),
        (HEAD + QUICK + 'quick_avx2_source = "e.c"\n', "quick_avx2 and quick_avx2_source together"),
        (HEAD + WIDE.replace('"e.c"', '"no.c"'), "quick_avx2_source names 'no.c', which does not"),
        (HEAD + WIDE.replace("in.c", "in.ll"), "quick_avx2_source, which is compiled together"),
        (HEAD + QUICK + "quick_levels = []\n", r"some of .*avx512.*; it is \[\]"),
        (HEAD + QUICK + 'quick_levels = ["baseline"]\n', r"it is \['baseline'\]"),
        (HEAD + QUICK + "quick_levels = [[]]\n", r"it is \[\[\]\]"),
        (HEAD + EXP + 'gpu = "a"\n', "needs gpu and gpu_source together"),
        (HEAD + EXP + 'gpu = "a"\ngpu_source = "expf.c"\n', "beside fast and accurate"),
        (HEAD + EXP + 'hard_cases = "no.txt"\n', "'no.txt', which does not exist"),
        (HEAD + 'include_dirs = ["../nowhere"]\n' + EXP, "'../nowhere', which does not exist"),
        (HEAD + "include_dirs = [1]\n" + EXP, "1 is not a path"),
        (HEAD + "stock = true\n" + EXP, "stock = true swaps nothing"),
        (HEAD + EXP + "max_ulp = nan\n", "max_ulp .* is nan. A claim is a positive number"),
        (HEAD + EXP + "max_ulp = inf\n", "max_ulp .* is inf. A claim is a positive number"),
        (HEAD + EXP + "max_ulp = -1\n", "max_ulp .* is -1. A claim is a positive number"),
        (HEAD + EXP + "max_ulp = true\n", "max_ulp .* wrong type: True"),
        (HEAD + EXP.replace("e.c", "../../etc/passwd"), "source names '../../etc/passwd', which"),
        (HEAD + EXP.replace("e.c", "/etc/passwd"), "outside this library and every other"),
        (HEAD + EXP.replace("e.c", "out.c"), "source names 'out.c', which lies outside"),
        (HEAD + EXP.replace("e.c", "loop.c"), "names 'loop.c', which fails: .*symbolic links"),
        (HEAD + EXP.replace("e.c", "."), "names '.', which is not a file"),
        (HEAD + EXP.replace("e.c", "pipe.c"), "names 'pipe.c', which is not a file"),
        (HEAD + EXP.replace("e.c", "a" * 5000), "name too long"),
        (HEAD + EXP.replace("e.c", "\\u0000"), "source in .* not printable text"),
        (HEAD + EXP.replace("udf_expf", "f; int g"), "'f; int g', not the name of a C function"),
        (HEAD + 'include_dirs = ["/usr"]\n' + EXP, "include_dirs names '/usr', which lies outside"),
        (HEAD + 'include_dirs = ["e.c"]\n' + EXP, "names 'e.c', which is not a folder"),
        (HEAD + 'claim = "\\u001b[2J"\n' + EXP, "not printable text"),
        (HEAD + 'max_ulp = "low"\n' + EXP, r"max_ulp in \[library\] has the wrong type: 'low'"),
        (HEAD + "max_ulp = 0\n" + EXP, r"max_ulp in \[library\] is 0\. A claim is a positive"),
        (HEAD + "inherit = 3\n", r"inherit in \[library\] has the wrong type: 3"),
        (HEAD + 'inherit = "."\n', "inherit names the library itself: name another, or remove it"),
        (HEAD + 'inherit = "../bad"\n', "inherit names the library itself"),
        (HEAD + 'inherit = "../gone"\n', r"inherit names '../gone', which does not exist"),
        (HEAD + 'inherit = "e.c"\n', "inherit names 'e.c', which is not a folder"),
        (HEAD + 'inherit = "/usr"\n', "inherit names '/usr', which lies outside this library"),
        (HEAD + 'inherit = "link"\n', "inherit names 'link', which lies outside this library"),
        (HEAD + 'inherit = "in"\n', r"inherits from .*/in, .* holds no udf\.toml, so it is not"),
        (HEAD + 'inherit = "in"\nstock = true\n', "stock = true has no functions: remove inherit"),
        (HEAD + 'inherit = "in"\n[functions]\n', r"\[functions\] is empty"),
        (HEAD.replace("mine", "m" * 101) + EXP, "name in .library. is longer than 100 letters"),
        (HEAD + f"stock = {'9' * 5000}\n", "not valid TOML: .*digits"),
        (HEAD + f"stock = {'[' * 9999}\n", "not valid TOML: .*nested too deeply"),
    ],
)
def test_every_mistake_in_the_description_is_named(tmp_path, text, message):
    folder = write(tmp_path / "bad", text)
    odd_files(folder)
    with pytest.raises(LibraryError, match=re.compile(message, re.DOTALL)) as caught:
        load_library(folder)
    assert str(folder / "udf.toml") in str(caught.value)


def test_what_no_compiler_can_include_is_left_alone(tmp_path):
    """An editor's lock is a link to nowhere; a pipe would make the reader wait for ever."""
    folder = write(tmp_path / "mine", HEAD + EXP)
    odd_files(folder)
    (folder / ".#e.c").symlink_to("someone@somewhere.1234:5678")
    (folder / "gone.h").symlink_to("nowhere.h")
    found = [Path(name).name for name in load_library(folder).source_files()]
    assert found == ["e.c", "in.c", "out.c"]


def test_the_source_of_a_short_path_is_read_too(tmp_path):
    write(tmp_path / "other", HEAD + EXP)
    folder = write(tmp_path / "mine", HEAD + SHORT.replace('"e.c"', '"../other/e.c"'))
    odd_files(folder)
    library = load_library(folder)
    assert library.functions["exp", "float32"].short_source == tmp_path / "other" / "e.c"
    assert str(tmp_path / "other" / "e.c") in library.source_files()


def test_what_lies_in_another_library_may_be_named(tmp_path):
    write(tmp_path / "other", HEAD + EXP)
    (tmp_path / "other" / "include").mkdir()
    head = HEAD + 'include_dirs = ["../other/include"]\n'
    folder = write(tmp_path / "mine", head + EXP + 'hard_cases = "../other/e.c"\n')
    assert load_library(folder).include_dirs == (tmp_path / "other" / "include",)


LOG = EXP.replace("exp", "log")
INHERIT = 'inherit = "../base"\n'


def test_what_a_library_does_not_give_it_inherits(tmp_path):
    operator = '[operators."aten::{}"]\npython = "e.c"\nfunction = "f"\n'
    keys = 'include_dirs = ["../other"]\ndefines = ["BITS=20"]\nmax_ulp = 16\n'
    write(tmp_path / "other", HEAD + EXP)
    base = write(
        tmp_path / "base",
        HEAD + keys + EXP + LOG + "max_ulp = 2\n" + operator.format("exp") + operator.format("log"),
    )
    plain = load_library(write(tmp_path / "plain", HEAD + INHERIT))
    assert plain.functions == load_library(base).functions
    assert plain.operators == load_library(base).operators
    assert plain.include_dirs == (base, tmp_path / "other")
    assert plain.defines == ("BITS=20",)
    assert plain.inherited == (base,)
    assert plain.description_files() == [f"{tmp_path}/{n}/udf.toml" for n in ("plain", "base")]
    assert plain.source_files() == [f"{tmp_path}/{n}/e.c" for n in ("base", "other", "plain")]

    own = 'include_dirs = []\ndefines = ["BITS=8"]\nmax_ulp = 65536\n'
    tables = LOG + EXP.replace("exp", "sin") + operator.format("log")
    heir = load_library(write(tmp_path / "heir", HEAD + INHERIT + own + tables))
    assert (heir.include_dirs, heir.defines) == ((), ("BITS=8",))
    assert {n: (f.source.parent.name, f.max_ulp) for (n, _), f in heir.functions.items()} == {
        "exp": ("base", 65536), "log": ("heir", 65536), "sin": ("heir", 65536),
    }  # fmt: skip
    assert [u[0].python.parent.name for u in heir.operators.values()] == ["base", "heir"]
    grandchild = write(tmp_path / "third", HEAD + INHERIT.replace("base", "heir") + "max_ulp = 1\n")
    third = load_library(grandchild)
    assert third.inherited == (heir.folder, base)
    assert third.include_dirs == (heir.folder,)
    assert {f.max_ulp for f in third.functions.values()} == {1}


def test_a_function_that_a_library_gives_has_no_keys_of_the_one_that_it_inherits_from(tmp_path):
    odd_files(write(tmp_path / "base", HEAD + SHORT))
    heir = load_library(write(tmp_path / "heir", HEAD + INHERIT + EXP))
    assert heir.functions["exp", "float32"].short is None


def test_what_is_said_of_a_library_as_a_whole_is_not_inherited(tmp_path):
    said = {"description": "d", "claim": "c", "golden": "e.c", "sixteen": "e.c"}
    lines = "".join(f'{key} = "{value}"\n' for key, value in said.items())
    others = "".join(f'{key} = "../other"\n' for key in ("float_float", "composites"))
    write(tmp_path / "other", HEAD + EXP)
    base = load_library(write(tmp_path / "base", HEAD + lines + others + EXP))
    heir = load_library(write(tmp_path / "heir", HEAD + INHERIT))
    for key in (*said, "float_float", "composites"):
        assert getattr(base, key), key
        assert not getattr(heir, key), key


def test_a_claim_for_all_functions_yields_to_that_of_one(tmp_path):
    folder = write(tmp_path / "mine", HEAD + "max_ulp = 4\n" + EXP + LOG + "max_ulp = 0.5\n")
    assert [f.max_ulp for f in load_library(folder).functions.values()] == [4, 0.5]


def test_a_change_of_what_is_inherited_is_seen(tmp_path):
    base = write(tmp_path / "base", HEAD + EXP)
    heir = write(tmp_path / "heir", HEAD + INHERIT)
    assert load_library(heir).function_names == ("exp",)
    write(base, HEAD + LOG)
    assert load_library(heir).function_names == ("log",)


def test_mistakes_in_what_is_inherited_name_both_files(tmp_path):
    heir = write(tmp_path / "heir", HEAD + INHERIT)
    base = write(tmp_path / "base", HEAD + EXP + 'speed = "fast"\n')
    where = f"^{heir}/udf.toml: it inherits from {base}, which"
    with pytest.raises(LibraryError, match=f"{where} cannot be used. {base}/udf.toml: unkn"):
        load_library(heir)
    write(base, HEAD + "stock = true\n")
    with pytest.raises(LibraryError, match=f"{where} has stock = true .* Name another"):
        load_library(heir)


def test_inheritance_in_a_circle_is_refused(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    for folder, other in ((a, "b"), (b, "c"), (c, "b")):
        write(folder, HEAD + f'inherit = "../{other}"\n' + EXP)
    message = f"^{a}/udf.toml: inherit leads in a circle: {b} -> {c} -> {b}. Remove the key"
    with pytest.raises(LibraryError, match=message):
        load_library(a)


@pytest.mark.parametrize(
    "which",
    [None, 3, b"corem", ["corem"], "", "\0", "./\0", "--", "a" * 5000, "./" + "a" * 5000,
     "~nosuchuser/x", Path("~nosuchuser"), Path("a" * 5000)],
)  # fmt: skip
def test_what_names_no_library_is_refused(which):
    with pytest.raises(UnknownLibraryError) as caught:
        find_library(which)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["\0", "a" * 5000])
def test_folders_that_cannot_be_are_refused(name):
    with pytest.raises(LibraryError):
        load_library(Path(name))


def test_a_pipe_in_place_of_the_description_is_refused(tmp_path):
    os.mkfifo(tmp_path / "udf.toml")
    with pytest.raises(LibraryError, match="not a regular file"):
        load_library(tmp_path)


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

    from pytest_udftorch.swap.library import description as library

    entry = metadata.EntryPoint(
        "broken", "no_such_module_anywhere:thing", library.ENTRY_POINT_GROUP
    )
    monkeypatch.setattr(library.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(LibraryError, match=r"'broken'.*gives no folder"):
        find_library("broken")
    # It stands in nobody else's way.
    assert available_libraries()["broken"] is None
    assert find_library("corem").name == "corem"
    with pytest.raises(UnknownLibraryError, match=r"'brokn'.*Did you mean 'broken'"):
        find_library("brokn")


def test_damaged_entry_points_name_their_package(tmp_path, monkeypatch):
    """Any installed package may have them; the shipped libraries are found all the same."""
    home = tmp_path / "shop-1.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Name: shop\n")
    monkeypatch.syspath_prepend(tmp_path)
    for content in (b"[pytest_udftorch.libraries]\nno equals sign\n", b"\xff"):
        (home / "entry_points.txt").write_bytes(content)
        with pytest.raises(LibraryError, match=r"installed package 'shop' cannot be read"):
            find_library("unknown")
        with pytest.raises(LibraryError, match=r"Reinstall or remove it\."):
            available_libraries()
        assert find_library("corem").name == "corem"


def test_listing_and_unknown_names_run_no_code(tmp_path, monkeypatch, capsys):
    """Entry points are code, which runs when someone names its library."""
    from importlib import metadata

    from pytest_udftorch.cli import main
    from pytest_udftorch.swap.library import description as library

    ran = tmp_path / "ran"
    package = write(tmp_path / "offers_udfs", HEAD + EXP)
    (package / "__init__.py").write_text(
        f"from pathlib import Path\nPath({str(ran)!r}).touch()\nhome = Path(__file__).parent\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    group = library.ENTRY_POINT_GROUP
    entries = [
        metadata.EntryPoint("package", "offers_udfs", group),
        metadata.EntryPoint("value", "offers_udfs:home", group),
    ]
    monkeypatch.setattr(library.metadata, "entry_points", lambda group: entries)
    known = available_libraries()
    assert (known["package"], known["value"]) == (package, None)
    with pytest.raises(UnknownLibraryError):
        find_library("unknown")
    assert main(["libraries"]) == 0
    said = capsys.readouterr().out
    assert "mine 1\n  exp: float32\n" in said
    assert "value: only code of its package knows where it is" in said
    assert find_library("package").name == "mine"
    assert not ran.exists()
    assert find_library("value").name == "mine"
    assert ran.exists()


def test_a_broken_library_does_not_hide_the_others(tmp_path, monkeypatch, capsys):
    from importlib import metadata

    from pytest_udftorch.cli import main
    from pytest_udftorch.swap.library import description as library

    package = write(tmp_path / "broken_udfs", "[")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    entry = metadata.EntryPoint("broken", "broken_udfs", library.ENTRY_POINT_GROUP)
    monkeypatch.setattr(library.metadata, "entry_points", lambda group: [entry])
    assert main(["libraries"]) == 1
    said = capsys.readouterr()
    assert "corem 0.1.0" in said.out
    assert "FAILED: broken: " in said.err
    assert "not valid TOML" in said.err


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
