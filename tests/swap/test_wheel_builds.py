# SPDX-License-Identifier: Apache-2.0
"""Finished builds without a compiler: the shipped ones, and those of the cache."""

import ctypes
import json
import re
import shutil
import sysconfig

import pytest

from pytest_udftorch.cli import prebuild
from pytest_udftorch.errors import (
    CacheError,
    CompilerNotFoundError,
    CudaFormError,
    NativeError,
)
from pytest_udftorch.swap.contract.kernels import KERNELS
from pytest_udftorch.swap.counting.observer import OBSERVER
from pytest_udftorch.swap.library import description
from pytest_udftorch.swap.native.runtime import native_file
from pytest_udftorch.swap.observe.native_recorder import RECORDER
from pytest_udftorch.swap.overrides.switchboard import SWITCHBOARD
from pytest_udftorch.swap.session.exclusive import GATE
from pytest_udftorch.swap.toolchain import cache as cache_module
from pytest_udftorch.swap.toolchain import pack, shared_library
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.compiler import ABSENT
from pytest_udftorch.swap.toolchain.shared_library import build_library
from pytest_udftorch.swap.toolchain.torch_part import headers_of

TOML = (
    '[library]\nname = "twice"\nversion = "1"\n'
    '[functions.exp.float32]\nsource = "e.c"\nscalar = "udf_expf"\n'
)
SOURCE = '#include "factor.inc"\nfloat udf_expf(float x) { return FACTOR * x; }\n'


def no_compiler():
    raise CompilerNotFoundError("There is no clang here. Install it.")


def forget(monkeypatch):
    monkeypatch.setattr(shared_library, "_built", {})
    monkeypatch.setattr(cache_module, "_checked", {})
    monkeypatch.setattr(prebuilt, "_checked", {})
    monkeypatch.setattr(prebuilt, "_indices", {})


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "udf.toml").write_text(TOML)
    (folder / "e.c").write_text(SOURCE)
    # Not a header by its name: only the compiler knows that it is read.
    (folder / "factor.inc").write_text("#define FACTOR 2\n")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(folder))
    monkeypatch.delenv(prebuilt.VARIABLE, raising=False)
    forget(monkeypatch)
    return folder


@pytest.fixture
def store(tmp_path, cache, library, monkeypatch):
    """A store with the build of the library; then there is neither a compiler nor a cache."""
    folder = tmp_path / "store"
    with prebuilt.recording():
        build_library(library, "avx2")
        assert prebuilt.export(folder) == 1
    forget(monkeypatch)
    shutil.rmtree(cache)
    monkeypatch.setenv(prebuilt.VARIABLE, str(folder))
    monkeypatch.setattr(shared_library, "find_compiler", no_compiler)
    return folder


def doubled(build):
    return build.scalar_function("exp")(ctypes.c_float(21.0))


def test_a_shipped_build_needs_no_compiler_and_no_cache(store, library, cache):
    build = build_library(library, "avx2")
    assert doubled(build) == 42.0
    assert build.path.is_relative_to(store)
    assert not cache.exists()


def test_a_shipped_build_serves_a_copy_of_its_library_elsewhere(store, library, tmp_path):
    elsewhere = shutil.copytree(library, tmp_path / "another" / "place")
    assert build_library(elsewhere, "avx2").path.is_relative_to(store)


def test_a_shipped_build_comes_before_a_compiler(store, library, monkeypatch):
    def unwanted():
        raise AssertionError("somebody looked for a compiler")

    monkeypatch.setattr(shared_library, "find_compiler", unwanted)
    assert doubled(build_library(library, "avx2")) == 42.0


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("e.c", SOURCE + "/* changed */\n"),
        ("factor.inc", "#define FACTOR 3\n"),
        ("new.h", "#define NEW\n"),
        ("udf.toml", TOML.replace("udf_expf", "udf_other")),
    ],
)
def test_a_shipped_build_of_other_sources_is_not_used(store, library, file, text):
    (library / file).write_text(text)
    with pytest.raises(CompilerNotFoundError, match="no clang"):
        build_library(library, "avx2")


def test_the_error_names_the_library_where_its_build_was_looked_for_and_what_to_install(
    store, library, monkeypatch
):
    (library / "e.c").write_text(SOURCE + "/* changed */\n")
    start = "UDF library 'twice' has to be compiled for avx2"
    end = r"There is no clang here\. Install it\."
    wheel = "the installed wheel has no build of its sources, and neither has the cache"
    with pytest.raises(CompilerNotFoundError, match=rf"^{start}: {wheel}\. {end}$"):
        build_library(library, "avx2")
    with pytest.raises(CompilerNotFoundError, match=f"^{start}, counting its calls: {wheel}"):
        build_library(library, "avx2", profiled=True)
    monkeypatch.setenv(prebuilt.VARIABLE, "")
    with pytest.raises(CompilerNotFoundError, match=f"^{start}: {prebuilt.VARIABLE} turns the "):
        build_library(library, "avx2")
    monkeypatch.delenv(prebuilt.VARIABLE)
    monkeypatch.setattr(prebuilt, "stores", lambda: [])
    with pytest.raises(CompilerNotFoundError, match=f"^{start}: this installation was made with"):
        build_library(library, "avx2")
    # Somebody who names a clang is told about that clang alone.
    monkeypatch.setenv("UDFTORCH_CLANG", "no-such-clang")
    with pytest.raises(CompilerNotFoundError, match=f"^{end}$"):
        build_library(library, "avx2")


def test_a_file_that_was_read_and_is_gone_rules_a_shipped_build_out(store, library):
    (library / "factor.inc").unlink()
    with pytest.raises(CompilerNotFoundError):
        build_library(library, "avx2")


@pytest.mark.parametrize("other", [{"cpu_level": "baseline"}, {"profiled": True}])
def test_a_shipped_build_for_something_else_is_not_used(store, library, other):
    with pytest.raises(CompilerNotFoundError):
        build_library(library, **{"cpu_level": "avx2", **other})


def test_an_empty_variable_turns_the_shipped_builds_off(store, library, monkeypatch):
    monkeypatch.setenv(prebuilt.VARIABLE, "")
    with pytest.raises(CompilerNotFoundError):
        build_library(library, "avx2")


def test_a_flipped_bit_in_a_shipped_build_is_an_error(store, library):
    (file,) = store.glob("*/*.so")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CacheError, match=f"(?s){file.name} is not the file .*{prebuilt.VARIABLE}"):
        build_library(library, "avx2")


def test_an_edited_index_is_an_error(store, library):
    index = store / prebuilt.INDEX
    said = json.loads(index.read_text())
    (entry,) = next(iter(said["builds"].values()))
    entry["reads_sha256"] = "0" * 64
    index.write_text(json.dumps(said))
    with pytest.raises(CacheError, match="cannot be used"):
        build_library(library, "avx2")


def test_a_store_that_is_named_and_missing_is_an_error(store, library, monkeypatch, tmp_path):
    monkeypatch.setenv(prebuilt.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(CacheError, match=prebuilt.VARIABLE):
        build_library(library, "avx2")


def test_a_store_of_another_user_is_refused(store, library, monkeypatch):
    import os

    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(store / prebuilt.INDEX, 12345, 12345)
    with pytest.raises(CacheError, match="belongs to user 12345"):
        build_library(library, "avx2")


def test_an_export_keeps_what_the_store_has(store, library, cache, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(cache))
    with prebuilt.recording():
        build_library(library, "baseline")
        prebuilt.export(store)
    assert len(prebuilt.contents(store)) == 2


def test_an_export_has_shipped_builds_too_as_the_store_replaces_theirs(
    store, library, tmp_path, monkeypatch
):
    copy = tmp_path / "copy"
    with prebuilt.recording():
        build_library(library, "avx2")
        assert prebuilt.export(copy) == 1
    forget(monkeypatch)
    monkeypatch.setenv(prebuilt.VARIABLE, str(copy))
    build = build_library(library, "avx2")
    assert build.path.is_relative_to(copy)
    assert doubled(build) == 42.0


def test_export_outside_a_recording_is_an_error(tmp_path):
    with pytest.raises(NativeError, match="recording"):
        prebuilt.export(tmp_path / "store")


# The cache ---------------------------------------------------------------------------


@pytest.fixture
def cached(cache, library, monkeypatch):
    build_library(library, "avx2")
    forget(monkeypatch)
    monkeypatch.setattr(shared_library, "find_compiler", no_compiler)
    return cache


def test_a_cached_build_is_used_when_its_compiler_is_gone(cached, library):
    assert doubled(build_library(library, "avx2")) == 42.0


@pytest.mark.parametrize("file", ["e.c", "factor.inc"])
def test_a_cached_build_of_other_sources_is_not_used(cached, library, file):
    with (library / file).open("a") as source:
        source.write("/* changed */\n")
    with pytest.raises(CompilerNotFoundError):
        build_library(library, "avx2")


def test_a_damaged_note_of_a_recipe_is_no_build(cached, library):
    (note,) = cached.glob("*.recipe")
    note.write_text(note.read_text().replace('"key": "', '"key": "0'))
    with pytest.raises(CompilerNotFoundError):
        build_library(library, "avx2")


# The pack of functions for GPUs ------------------------------------------------------


def test_names_change_places():
    content = b"..__nv_expf..__n0_expf..__nv_logf"
    assert pack.exchanged(content, [("__nv_expf", "__n0_expf")]) == (
        b"..__n0_expf..__nv_expf..__nv_logf"
    )


@pytest.mark.parametrize("content", [b"__nv_expf", b"__nv_expf__n0_expf__n0_expf"])
def test_a_pack_without_a_name_or_with_two_is_an_error(content):
    with pytest.raises(CudaFormError, match="__n0_expf not exactly once"):
        pack.exchanged(content, [("__nv_expf", "__n0_expf")])


PARTS = (OBSERVER, RECORDER, GATE, SWITCHBOARD, KERNELS)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.source)
def test_what_is_compiled_for_a_torch_is_found_under_another_python(part, monkeypatch, tmp_path):
    """A shipped build is looked up by its recipe, which no folder of this machine is part of."""

    def recipe(package, version="2.11.0"):
        return part.job(tmp_path / package, version, None, ABSENT).recipe()

    here = recipe("torch")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: f"/opt/another/{name}")
    assert recipe("elsewhere/torch") == here
    assert recipe("torch", "2.12.0") != here


@pytest.mark.parametrize("linked", ["all", "only libtorch_cpu.so is its own", "nothing"])
def test_a_torch_whose_headers_are_links_has_the_builds_of_the_original(tmp_path, linked):
    """What ``udftorch patch`` makes: ``include`` is a link, and the patched objects are not."""
    original, patched = tmp_path / "torch", tmp_path / "patched"
    for package in (original, patched):
        (package / "lib").mkdir(parents=True)
        (package / "lib" / "libtorch_cpu.so").write_bytes(b"")
    (original / "include").mkdir()
    if linked == "nothing":
        (patched / "include").mkdir()
    else:
        (patched / "include").symlink_to(original / "include")
    if linked == "all":
        (patched / "lib" / "libtorch_cpu.so").unlink()
    assert headers_of(original) == original
    assert headers_of(patched) == (patched if linked == "nothing" else original)


def test_headers_that_lie_beside_no_torch_are_those_of_the_torch_that_has_the_link(tmp_path):
    """A distribution may keep headers apart; they are compiled against where they are linked."""
    elsewhere, package = tmp_path / "usr" / "include", tmp_path / "torch"
    elsewhere.mkdir(parents=True)
    package.mkdir()
    (package / "include").symlink_to(elsewhere)
    assert headers_of(package) == package


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.source)
def test_a_part_for_torch_is_built_anew_when_a_native_header_that_it_includes_changes(
    part, tmp_path
):
    """Whether the source includes the header or another header does."""
    included, unread = set(), {native_file(part.source)}
    written = set(part.texts(tmp_path))  # by the build
    while unread:
        text = unread.pop().read_text(encoding="utf-8")
        found = set(re.findall(r'^#include "(.+?)"', text, re.MULTILINE))
        headers = found - included - written
        included |= headers
        unread |= {native_file(name) for name in headers}
    assert set(part.headers) == included


def test_the_wheel_holds_every_library_of_the_package_that_has_functions():
    folders = sorted(p.parent for p in description.shipped_folder().glob("*/udf.toml"))
    with_functions = {lib.name for lib in map(description.find_library, folders) if lib.functions}
    assert set(prebuild.LIBRARIES) == with_functions


def test_a_shipped_build_of_every_library_is_found_wherever_the_package_lies(tmp_path):
    """The recipe names no folder of the machine that made it, nor of another one."""
    moved = tmp_path / "a" / "udfs"
    shutil.copytree(description.shipped_folder(), moved)

    def recipe(library):
        return shared_library.library_job(library, "avx2", ABSENT).recipe()

    for name in prebuild.LIBRARIES:
        here = description.find_library(name)
        assert recipe(description.find_library(moved / name)) == recipe(here), name
    with (moved / "corem" / "exp" / "expf.c").open("a") as source:
        source.write("/* changed */\n")
    assert recipe(description.find_library(moved / "repro")) != recipe(
        description.find_library("repro")
    )
