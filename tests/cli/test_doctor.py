# SPDX-License-Identifier: Apache-2.0
"""``udftorch doctor`` and ``udftorch setup``: what they say, and what they change."""

import functools
import json
import os
import subprocess
import sys
import time

import pytest

from pytest_udftorch import __version__
from pytest_udftorch.cli import FAILED, MISUSE, doctor, main
from pytest_udftorch.swap.toolchain import cache as cache_module
from pytest_udftorch.swap.toolchain import progress, shared_library
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.bitcode import compiler_for
from pytest_udftorch.swap.toolchain.progress import VARIABLE
from pytest_udftorch.swap.toolchain.shared_library import build_library

TOML = (
    '[library]\nname = "mine"\nversion = "1"\n'
    '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(folder))
    monkeypatch.setattr(shared_library, "_built", {})
    monkeypatch.setattr(cache_module, "_checked", {})
    return folder


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "udf.toml").write_text(TOML)
    (folder / "e.c").write_text("float my_expf(float x) { return x; }\n")
    return folder


def test_doctor_says_the_same_as_text_and_as_json(cache, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "facts", functools.cache(doctor.facts))
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pytest_udftorch"] == __version__
    assert found["cache"]["folder"] == str(cache)
    assert "clang" in found["compilers"]["clang"]["version"]
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert f"{found['torch']['version']}, " in text
    assert f"tried with {found['torch']['tested']}\n" in text
    for entry in found["works"]:
        assert f"{'works' if entry['works'] else 'does not work'}: {entry['what']}" in text


def test_doctor_says_what_is_missing_without_a_compiler(cache, monkeypatch, capsys):
    """The clang that is named does not exist, so nothing can be built, and nothing is cached."""
    monkeypatch.setenv("UDFTORCH_CLANG", "no-such-clang")
    monkeypatch.setenv(prebuilt.VARIABLE, "")
    assert main(["doctor"]) == FAILED
    text = capsys.readouterr().out
    assert "does not work: swap functions on the CPU" in text
    assert "UDFTORCH_CLANG='no-such-clang' is not an executable" in text


def test_doctor_names_a_package_that_is_missing(cache, monkeypatch):
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    outcomes = {e["what"]: e for e in doctor.facts()["works"]}
    why = outcomes["libraries of your own in Python"]["why"]
    assert why.startswith("numba is not installed")
    assert "pip install numba" in why


def test_doctor_keeps_nothing_of_what_it_tries(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(tmp_path.rglob("*"))
    doctor.facts()
    assert not list(cache.rglob("*.so"))
    # What a compiler calls itself may be remembered.
    assert {p for p in set(tmp_path.rglob("*")) - before if p.suffix != ".seen"} <= {cache}


@pytest.fixture(scope="module")
def works_here():
    """What works with this machine's own clang, the control of what is tried without a part."""
    return {entry["what"] for entry in doctor.facts()["works"] if entry["works"]}


@pytest.fixture
def clang_without(tmp_path, monkeypatch):
    """A clang that fails when its source or its flags hold a word."""
    from pytest_udftorch.swap.toolchain.compiler import find_compiler

    real = find_compiler().path

    def make(word, says):
        fake = tmp_path / "clang"
        fake.write_text(
            "#!/bin/sh\n"
            f'for a in "$@"; do if [ "$a" = "{word}" ] || grep -qs -- "{word}" "$a"; then\n'
            f'echo "{says}" >&2; exit 1; fi; done\nexec {real} "$@"\n'
        )
        fake.chmod(0o700)
        monkeypatch.setenv("UDFTORCH_CLANG", str(fake))
        return fake

    return make


@pytest.mark.parametrize(
    ("word", "says", "what", "why"),
    [
        ("omp.h", "x.c:1: fatal error: 'omp.h' file not found",
         "torch.compile on the CPU inside a session", "Install the package libomp-19-dev"),
        ("Python.h", "x.cpp:1: fatal error: 'Python.h' file not found",
         "operators of your own in C++", "Install the packages g++ and python3-dev"),
        ("-fuse-ld=lld", "clang: error: invalid linker name in '-fuse-ld=lld'",
         "libraries of your own in C", "clang-19, llvm-19-dev and lld-19"),
    ],
)  # fmt: skip
def test_doctor_tries_what_it_says(works_here, clang_without, word, says, what, why):
    assert what in works_here, "the control"
    fake = clang_without(word, says)
    works = {entry["what"]: entry for entry in doctor.facts()["works"]}
    assert not works[what]["works"]
    assert why in works[what]["why"]
    assert f"{fake} says: {says}" in works[what]["why"]


def test_inductor_is_told_that_openmp_is_missing(clang_without, cache):
    """Without it its C++ would fail with what clang says of a header that no user wrote."""
    clang_without("omp.h", "x.c:1: fatal error: 'omp.h' file not found")
    done = subprocess.run(
        [compiler_for(()), "-c", "x.cpp"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "TorchInductor cannot compile C++ in this session" in done.stderr
    assert "Install the package libomp-19-dev" in done.stderr
    assert "udftorch doctor" in done.stderr


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert __version__ in capsys.readouterr().out


# udftorch setup ----------------------------------------------------------------------


def test_show_lists_builds_with_their_sizes(cache, library, capsys):
    build = build_library(library, "baseline")
    assert main(["setup", "cache", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["builds"]
    assert row["build"] == build.build_id
    assert row["what"] == "mine baseline"
    assert row["bytes"] > build.path.stat().st_size
    assert main(["setup", "cache"]) == 0
    assert "1 builds" in capsys.readouterr().out


def test_show_of_a_cache_that_is_not_there_is_empty(cache, capsys):
    assert main(["setup", "cache"]) == 0
    assert "0 builds" in capsys.readouterr().out
    assert not cache.exists()


def test_prune_removes_builds_that_nobody_uses(cache, library, capsys):
    prune = [sys.executable, "-m", "pytest_udftorch", "setup", "prune", "--to", "0"]
    code = (
        "import sys; from pytest_udftorch import build_library; build_library(sys.argv[1], 'avx2')"
    )
    subprocess.run([sys.executable, "-c", code, library], check=True)
    used = build_library(library, "baseline")
    done = subprocess.run(prune, check=True, capture_output=True, text=True)
    assert "1 builds removed" in done.stdout
    assert used.path.exists(), "this process uses it"
    assert len(cache_module.builds(cache)) == 1


def test_prune_to_no_size_is_an_error(cache, capsys):
    assert main(["setup", "prune", "--to", "-1"]) == MISUSE
    assert "Give a number from 0" in capsys.readouterr().err


@pytest.mark.slow  # compiles what is compiled against torch; tests of a store: test_prebuilt.py
def test_an_export_serves_where_there_is_no_cache(cache, library, tmp_path, monkeypatch, capsys):
    store = tmp_path / "store"
    assert main(["setup", "export", str(store), str(library)]) == 0
    said = capsys.readouterr()
    assert f"{prebuilt.VARIABLE}={store}" in said.out
    assert "[1/" in said.err
    monkeypatch.setattr(shared_library, "_built", {})
    monkeypatch.setenv(prebuilt.VARIABLE, str(store))
    for profiled in (False, True):
        assert build_library(library, profiled=profiled).path.is_relative_to(store)


# Lines about progress ----------------------------------------------------------------


def slow_build(tmp_path, library, seconds, **more):
    """Build with a clang that waits, and return what was written on standard error."""
    from pytest_udftorch.swap.toolchain.compiler import find_compiler

    clang = tmp_path / "slow-clang"
    clang.write_text(
        f'#!/bin/sh\ncase "$*" in *my_expf*|*e.c*) sleep {seconds};; esac\n'
        f'exec {find_compiler().path} "$@"\n'
    )
    clang.chmod(0o700)
    code = "import sys; from pytest_udftorch import build_library; build_library(sys.argv[1])"
    environment = {**os.environ, "UDFTORCH_CLANG": str(clang), VARIABLE: "1", **more}
    done = subprocess.run(
        [sys.executable, "-c", code, library],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stderr


def test_a_build_that_takes_long_says_what_it_does(cache, library, tmp_path):
    said = slow_build(tmp_path, library, 3)
    assert "udftorch: compiling mine for" in said
    assert "0 of 3" in said
    assert "done" in said


def test_the_lines_can_be_turned_off(cache, library, tmp_path):
    assert slow_build(tmp_path, library, 3, **{VARIABLE: "0"}) == ""


def test_a_verb_that_takes_long_says_what_it_does(monkeypatch, capsys):
    found, said = doctor.facts(), []
    says = "udftorch: looking at this machine: still running, 0 s"

    def slowly():
        while os.environ[VARIABLE] == "1" and says not in "".join(said):
            said.append(capsys.readouterr().err)
            time.sleep(0.001)
        return found

    monkeypatch.setattr(doctor, "facts", slowly)
    monkeypatch.setattr(progress, "PAUSE", 0.001)
    monkeypatch.setenv(VARIABLE, "1")
    assert main(["doctor"]) in (0, FAILED)
    capsys.readouterr()
    monkeypatch.setenv(VARIABLE, "0")
    assert main(["doctor"]) in (0, FAILED)
    assert capsys.readouterr().err == ""
