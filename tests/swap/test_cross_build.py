# SPDX-License-Identifier: Apache-2.0
"""Libraries for another processor are built here, and what cannot be built is refused."""

import shutil
import subprocess

import pytest

from benches.experiments import aarch64_forms, other_machines
from pytest_udftorch import build_library, find_library
from pytest_udftorch.errors import CpuLevelError, NativeError, UnknownFunctionError
from pytest_udftorch.swap.library.symbols import FUNCTIONS, forms
from pytest_udftorch.swap.toolchain.cross import SYSROOTS, cross_library

SYSROOT = SYSROOTS["aarch64"]
needs_sysroot = pytest.mark.skipif(
    not (SYSROOT / "lib" / "libc.so.6").is_file(), reason="needs libc6-dev-arm64-cross"
)
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None, reason="needs qemu-aarch64 (Debian: qemu-user)"
)


@needs_sysroot
def test_a_library_for_aarch64_has_every_form_and_does_not_load_here():
    library = find_library("canary")
    build = cross_library(library, "neon")
    said = subprocess.run(
        ["llvm-readelf-19", "-h", "--dyn-syms", build.path],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "AArch64" in said
    for name, dtype in library.functions:
        for form in forms(dtype, "neon"):
            assert f" {FUNCTIONS[name].export(dtype, form)}\n" in said
    assert cross_library(library, "neon") == build
    with pytest.raises(NativeError, match="cannot be loaded"):
        build.load()


@needs_sysroot
@needs_qemu
@pytest.mark.parametrize(
    ("level", "form"),
    [
        pytest.param(name, form, marks=pytest.mark.slow if name == "sve256" else ())
        for name, level in aarch64_forms.LEVELS.items()
        for form in level.forms
    ],
)
def test_forms_for_aarch64_give_the_bits_of_this_cpu_and_a_wrong_twin_does_not(
    tmp_path, level, form
):
    machine = aarch64_forms.LEVELS[level].machine
    corem, canary = find_library("corem"), find_library("canary")
    x = other_machines.strata(corem, "log")[:, ::64]
    wanted = other_machines.native(build_library(corem), "log")
    for library, share in ((corem, 0.0), (canary, 0.4)):
        build = cross_library(library, level)
        run = other_machines.program(tmp_path, machine, library, "log", build, form)
        found = other_machines.compare(run, wanted, iter([x]), 60)
        assert found["inputs"] == x.shape[1]
        assert found["different"] >= share * x.shape[1]
        assert bool(found["different"]) == bool(share)


@pytest.mark.parametrize("level", ["avx2", "neno", None])
def test_a_level_of_this_cpu_or_of_none_is_refused(level):
    with pytest.raises(CpuLevelError, match=r"There are: neon, sve256\. .*build_library"):
        cross_library("corem", level)


def test_a_missing_c_library_is_named(tmp_path):
    with pytest.raises(CpuLevelError, match=r"no .*include/math\.h.*libc6-dev-arm64-cross"):
        cross_library("corem", "neon", tmp_path)


def test_the_stock_library_is_refused():
    with pytest.raises(UnknownFunctionError, match="stands for the stock functions"):
        cross_library("std", "neon")


def test_the_journal_goes_on_and_a_wrong_digest_is_named(tmp_path, monkeypatch):
    """Two chunks by two runs of 2^24 stand-in results; the second run repeats nothing."""
    corem = find_library("corem")
    wanted = aarch64_forms.certified(corem, "exp")
    assert set(wanted) == set(range(aarch64_forms.CHUNKS))
    asked = []

    def digest(run, chunk):
        asked.append(chunk)
        return "0" * 64 if chunk == next(aarch64_forms.order()) else wanted[chunk]

    class Build:
        library, path = corem, tmp_path / "library.so"

    Build.path.write_bytes(b"code")
    monkeypatch.setattr(aarch64_forms, "digest", digest)
    journal = tmp_path / "journal.jsonl"
    first = aarch64_forms.exhaust(None, Build, "exp", 60, 2, aarch64_forms.Journal(journal))
    assert sorted(asked) == list(range(aarch64_forms.CHUNKS))
    assert first["different_chunks"] == [0]
    assert first["chunks"] == first["of"]
    again = aarch64_forms.exhaust(None, Build, "exp", 60, 2, aarch64_forms.Journal(journal))
    assert again == first
    assert len(asked) == aarch64_forms.CHUNKS
    Build.path.write_bytes(b"other code")
    aarch64_forms.exhaust(None, Build, "exp", 0, 1, aarch64_forms.Journal(journal))
    other = aarch64_forms.exhaust(None, Build, "exp", 60, 1, aarch64_forms.Journal(journal))
    assert other["chunks"] == other["of"]
    assert len(asked) == 2 * aarch64_forms.CHUNKS


def test_a_shorter_run_of_the_same_build_does_not_replace_a_longer_one():
    def entry(chunks, build="a"):
        return {"chunks": chunks, "library_sha256": build}

    old = {"exp": entry(36), "log": entry(32), "sin": entry(256, "b"), "cos": entry(256)}
    builds = dict.fromkeys(old, "a").__getitem__
    found = aarch64_forms.more_known({"exp": entry(234), "log": entry(1)}, old, builds)
    assert found == {"exp": entry(234), "log": entry(32), "cos": entry(256)}


@needs_sysroot
def test_work_on_another_function_leaves_the_build_of_one_alone(tmp_path):
    text = '[library]\nname = "two"\nversion = "1"\n'
    for name in ("exp", "log"):
        (tmp_path / f"{name}.c").write_text(f"float udf_{name}f(float x) {{ return x + 1; }}\n")
        text += f'[functions.{name}.float32]\nsource = "{name}.c"\nscalar = "udf_{name}f"\n'
    (tmp_path / "udf.toml").write_text(text)

    def builds():
        library = find_library(tmp_path)
        made = [aarch64_forms.alone(library, name, "neon") for name in ("exp", "log")]
        return [build.path.read_bytes() for build in made]

    exp, log = builds()
    (tmp_path / "log.c").write_text("float udf_logf(float x) { return x + 2; }\n")
    exp_again, log_again = builds()
    assert exp == exp_again
    assert log != log_again
