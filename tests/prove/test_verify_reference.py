# SPDX-License-Identifier: Apache-2.0
"""The compiled references: MPFR, LLVM-libc, and what is said when they are missing."""

from __future__ import annotations

import ctypes
import math
import stat
from pathlib import Path

import numpy as np
import pytest

from pytest_udftorch import errors
from pytest_udftorch.errors import CacheError
from pytest_udftorch.prove.exact.rounding import correctly_rounded
from pytest_udftorch.prove.exact.strategies import sample_inputs
from pytest_udftorch.prove.verify.reference import checker as reference
from pytest_udftorch.swap.library.symbols import FUNCTIONS, KNOWN

UNIVARIATE = [name for name, f in FUNCTIONS.items() if f.arity == 1]
BIVARIATE = [name for name, f in FUNCTIONS.items() if f.arity == 2]
ARCHIVES = sorted(reference.LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a"))

needs_llvmlibc = pytest.mark.skipif(not ARCHIVES, reason="LLVM-libc is not installed")


@pytest.fixture(scope="module")
def checker():
    return reference.load_checker(reference.checker_file())


def by_llvmlibc(function, *arguments):
    libc = reference.llvmlibc()
    columns = [np.ascontiguousarray(a) for a in arguments]
    out = np.empty_like(columns[0])
    call = getattr(ctypes.CDLL(str(libc.path)), f"udfref_llvmlibc_{function}")
    call.argtypes = (ctypes.c_int64, *(ctypes.c_void_p,) * 3)
    call.restype = None
    call(out.size, columns[0].ctypes.data, columns[-1].ctypes.data, out.ctypes.data)
    return out


def same(a, b):
    """Equal encodings, or NaNs both."""
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


def test_checker_knows_every_function(checker):
    assert sorted(checker.functions) == sorted(KNOWN)


@pytest.mark.parametrize("function", UNIVARIATE)
def test_mpfr_in_c_agrees_with_the_oracle(checker, function):
    x = sample_inputs(function, 3000, seed=11).view(np.float32)
    want = correctly_rounded(x, function=function).view(np.float32)
    assert same(checker.mpfr(function, x), want)


@pytest.mark.parametrize("function", BIVARIATE)
def test_mpfr_in_c_agrees_with_the_oracle_on_pairs(checker, function):
    x, y = checker.inputs(2, 5, 0, 4000)
    want = correctly_rounded((x, y), function=function).view(np.float32)
    assert same(checker.mpfr(function, x, y), want)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda p: p.parts[-3])
@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f not in ("erfc", "pow")])
def test_llvmlibc_is_correctly_rounded_on_a_sample(checker, monkeypatch, archive, function):
    monkeypatch.setenv("UDFTORCH_LLVMLIBC", str(archive))
    if FUNCTIONS[function].arity == 1:
        arguments = (sample_inputs(function, 3000, seed=12).view(np.float32),)
    else:
        arguments = checker.inputs(2, 6, 0, 4000)
    assert same(by_llvmlibc(function, *arguments), checker.mpfr(function, *arguments))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda p: p.parts[-3])
def test_where_llvmlibc_rounds_a_power_wrongly_mpfr_is_right(checker, monkeypatch, archive):
    """Its powf misses some ties, such as 121**3.5 = 19487171, and in 19 powf(-inf, 0.5)."""
    monkeypatch.setenv("UDFTORCH_LLVMLIBC", str(archive))
    x, y = checker.inputs(2, 1, 0, 100_000)
    x, y = np.append(x, np.float32(121)), np.append(y, np.float32(3.5))
    decided, doubted = checker.mpfr("pow", x, y), by_llvmlibc("pow", x, y)
    differ = (decided.view(np.uint32) != doubted.view(np.uint32)) & ~np.isnan(decided)
    assert differ[-1]
    assert differ.mean() < 1e-3
    pair = (x[differ], y[differ])
    by_mpmath = correctly_rounded(pair, function="pow", oracle="mpmath")
    assert np.array_equal(by_mpmath, decided[differ].view(np.uint32))


@needs_llvmlibc
def test_comparing_references_can_fail(checker):
    x = sample_inputs("exp", 3000, seed=12).view(np.float32)
    assert not same(by_llvmlibc("exp", x), checker.mpfr("exp2", x))


@needs_llvmlibc
def test_the_archive_does_not_replace_the_c_library(checker):
    """The archive defines expf as well; nothing in the process may come to call it."""
    before = ctypes.cast(ctypes.CDLL("libm.so.6").expf, ctypes.c_void_p).value
    lib = ctypes.CDLL(str(reference.llvmlibc().path), mode=ctypes.RTLD_GLOBAL)
    assert lib.udfref_llvmlibc_exp
    after = ctypes.cast(ctypes.CDLL(None).expf, ctypes.c_void_p).value
    assert before == after
    assert math.exp(1.0) == 2.718281828459045


@needs_llvmlibc
def test_version_is_read_from_the_archive():
    major = max(int(p.parts[-3].removeprefix("llvm-")) for p in ARCHIVES)
    assert reference.llvmlibc().version.split(".")[0] == str(major)


def test_pairs_are_the_same_however_they_are_cut(checker):
    x, y = checker.inputs(2, 3, 1000, 500)
    a, b = checker.inputs(2, 3, 1200, 10)
    assert np.array_equal(x[200:210].view(np.uint32), a.view(np.uint32))
    assert np.array_equal(y[200:210].view(np.uint32), b.view(np.uint32))
    other, _ = checker.inputs(2, 4, 1000, 500)
    assert not np.array_equal(x.view(np.uint32), other.view(np.uint32))


def test_the_generator_alone_makes_the_checkers_inputs(checker):
    alone = reference.generator()
    for arity in (1, 2):
        columns = alone.inputs(arity, 3, 1000, 500)
        wanted = checker.inputs(arity, 3, 1000, 500)
        assert [c.tobytes() for c in columns] == [c.tobytes() for c in wanted]


def test_pairs_reach_exact_half_way_and_special_results(checker):
    x, y = checker.inputs(2, 0, 0, 20000)
    power = checker.mpfr("pow", x, y)
    assert np.isinf(power).any()
    assert np.isnan(power).any()
    assert ((power != 0) & (np.abs(power) < np.finfo(np.float32).tiny)).any()
    # No signaling NaN: C leaves open what pow(1, sNaN) is.
    for column in (x, y):
        nans = column.view(np.uint32)[np.isnan(column)]
        assert nans.size > 0
        assert np.all(nans & 0x00400000)


@pytest.mark.parametrize("function", ["exp", "cosh", "sin"])
def test_every_encoding_is_an_input(checker, function):
    (x,) = checker.inputs(1, 0, 0x7F7FFFF0, 64)
    assert x.view(np.uint32).tolist() == list(range(0x7F7FFFF0, 0x7F7FFFF0 + 64))


# What is missing ---------------------------------------------------------------------


def test_a_missing_archive_names_its_package(monkeypatch, tmp_path):
    monkeypatch.delenv("UDFTORCH_LLVMLIBC", raising=False)
    monkeypatch.setattr(reference, "LLVM_FOLDERS", tmp_path)
    with pytest.raises(errors.PackageMissingError, match="libllvmlibc-22-dev"):
        reference.llvmlibc()


def test_a_named_archive_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("UDFTORCH_LLVMLIBC", str(tmp_path / "none.a"))
    with pytest.raises(errors.PackageMissingError, match=r"none\.a"):
        reference.llvmlibc()


def test_a_named_archive_of_something_else_is_an_error(monkeypatch, tmp_path):
    archive = tmp_path / "other.a"
    archive.write_bytes(b"!<arch>\n")
    monkeypatch.setenv("UDFTORCH_LLVMLIBC", str(archive))
    with pytest.raises(errors.NativeError, match="no expf of LLVM-libc"):
        reference.llvmlibc()


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("UDFTORCH_CC", "no-such-compiler")
    with pytest.raises(errors.PackageMissingError, match="no-such-compiler"):
        reference.checker_file()


def compiler_that(tmp_path, change):
    """A compiler that runs cc with one argument changed."""
    script = tmp_path / "changed-cc"
    script.write_text(f'#!/bin/bash\nexec cc "${{@/{change}}}"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_a_missing_mpfr_names_its_package(monkeypatch, tmp_path):
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UDFTORCH_CC", compiler_that(tmp_path, "-lmpfr/-lmpfr-is-not-here"))
    with pytest.raises(errors.PackageMissingError, match="libmpfr-dev"):
        reference.checker_file()


def test_a_failing_build_shows_the_compilers_message(monkeypatch, tmp_path):
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UDFTORCH_CC", compiler_that(tmp_path, "-O2/--no-such-flag"))
    with pytest.raises(errors.NativeError, match="no-such-flag"):
        reference.checker_file()


def test_a_cache_that_cannot_be_written_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="UDFTORCH_CACHE_DIR"):
        reference.checker_file()


def test_a_library_that_is_no_checker_is_refused(tmp_path):
    with pytest.raises(errors.NativeError, match="not a usable library"):
        reference.Checker(Path("libm.so.6"))
    with pytest.raises(errors.NativeError, match="not a usable library"):
        reference.Checker(tmp_path / "none.so")


def test_structures_out_of_step_are_refused(monkeypatch):
    class Shorter(ctypes.Structure):
        _fields_ = (*reference.CheckJob._fields_[:-1], ("x", ctypes.c_int64), ("y", ctypes.c_int64))

    monkeypatch.setattr(reference, "CheckJob", Shorter)
    with pytest.raises(errors.NativeError, match="out of step"):
        reference.Checker(reference.checker_file())


def test_an_unknown_function_is_refused(checker):
    with pytest.raises(errors.PackageMissingError, match="'exp2'"):
        checker.number("exp3")
