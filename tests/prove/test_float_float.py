# SPDX-License-Identifier: Apache-2.0
"""corem-ff, corem in pairs of floats: the same bits, and hardly ever in double."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from parameters import mostly_slow

from pytest_udftorch import errors, prove
from pytest_udftorch.errors import LibraryError, VerifyError
from pytest_udftorch.prove.exact.rounding import assert_bitwise_same, assert_correctly_rounded
from pytest_udftorch.prove.exact.strategies import read_hard_cases, sample_inputs
from pytest_udftorch.prove.verify import run as verify
from pytest_udftorch.prove.verify.chunks import run_chunk
from pytest_udftorch.prove.verify.reference.checker import LLVM_FOLDERS, checker_file, load_checker
from pytest_udftorch.prove.verify.schedule import Request, make_schedule
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import FUNCTIONS, forms
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from pytest_udftorch.swap.toolchain.shared_library import build_library

COREM, PAIRS = find_library("corem"), find_library("corem-ff")
REFERENCE = "auto" if any(LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a")) else "libm"
FORMS = forms("float32", resolve_cpu_level(None))
#: Chunks of 2**24: ordinary and large arguments of both signs, and special ones. The certificates
#: have them all; these show that what is built here is what was certified.
STRATA = (0x3E, 0x42, 0x7F, 0xC2)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "swap" / "compiled.md"
ONE_ARGUMENT = [f for f in PAIRS.function_names if FUNCTIONS[f].arity == 1]
TWO_ARGUMENTS = [f for f in PAIRS.function_names if FUNCTIONS[f].arity == 2]

with_fma = pytest.mark.skipif("v8" not in FORMS, reason="no FMA: corem in double is used")


def schedule_of(library, function, **options):
    return make_schedule(library, function, Request(reference=REFERENCE, **options))


def certificate_of(library, function):
    source = library.functions[function, "float32"].source
    return source.parent / f"{function}.float32.certificate.json"


def through(function, form, *columns):
    build = build_library(PAIRS)
    if form == "array":
        out = np.empty_like(columns[0])
        pointers = [c.ctypes.data for c in columns]
        build.array_function(function)(out.size, *pointers, out.ctypes.data, 0)
        return out
    scalar = build.scalar_function(function)
    rows = zip(*(c.tolist() for c in columns), strict=True)
    return np.array([scalar(*row) for row in rows], dtype=np.float32)


def rewritten(folder, function, body):
    """Return the name of a library whose function is ``body``, after the float-float source."""
    described = PAIRS.functions[function, "float32"]
    both = "float x, float y" if function in TWO_ARGUMENTS else "float x"
    (folder / "udf.toml").write_text(
        '[library]\nname = "rewritten"\nversion = "1"\n'
        f'[functions.{function}.float32]\nsource = "f.c"\nscalar = "f"\nmax_ulp = 0.5\n'
    )
    (folder / "f.c").write_text(
        f'#include "{described.source}"\nfloat f({both}) {{ int hard; {body} }}\n'
    )
    return str(folder)


def test_corem_names_it_for_gpus():
    assert COREM.float_float == PAIRS.folder
    assert set(PAIRS.functions) <= set(COREM.functions)
    assert all(f.max_ulp == 0.5 for f in PAIRS.functions.values())


def test_the_page_names_the_functions():
    (names,) = re.findall(
        r"such\s+a\s+library\.\s+(.+?)\s+have\s+this\s+form", PAGE.read_text(), re.DOTALL
    )
    assert set(re.split(r",\s+|\s+and\s+", names)) == set(PAIRS.function_names)


@pytest.mark.parametrize("function", PAIRS.function_names)
def test_hard_cases_and_their_neighbours_are_right(function):
    arity = FUNCTIONS[function].arity
    cases = read_hard_cases(PAIRS.functions[function, "float32"].hard_cases, arity)
    cases = cases.reshape(len(cases), arity).astype(np.int64)
    near = np.concatenate([cases + step * (np.arange(arity) == 0) for step in range(-2, 3)])
    near = np.unique(near % 2**32, axis=0).astype(np.uint32).view(np.float32)
    columns = tuple(np.ascontiguousarray(c) for c in near.T)
    array, scalar = (through(function, form, *columns) for form in ("array", "scalar"))
    assert_correctly_rounded(array, columns[0] if arity == 1 else columns, function=function)
    assert_bitwise_same(scalar, array, any_nan=True)


@pytest.mark.parametrize("function", PAIRS.function_names)
def test_a_sample_is_right_in_the_form_that_gpus_get(function):
    checker = load_checker(checker_file())
    if function in TWO_ARGUMENTS:
        columns = checker.inputs(2, 11, 0, 20_000)
    else:
        columns = (sample_inputs(function, 20_000, seed=11).view(np.float32),)
    got, want = through(function, "scalar", *columns), checker.mpfr(function, *columns)
    both_nan = np.isnan(got) & np.isnan(want)
    assert np.array_equal(got.view(np.uint32)[~both_nan], want.view(np.uint32)[~both_nan])


# The sources of all functions are those that were certified: see the next test.
@pytest.mark.parametrize("function", mostly_slow(PAIRS.function_names, ("sin", "erf", "pow")))
def test_strata_have_the_digests_that_corem_is_certified_with(function):
    schedule = schedule_of("corem-ff", function, count_hard=False)
    stored = prove.load_certificate(certificate_of(COREM, function))
    chunks = (0,) if function in TWO_ARGUMENTS else STRATA
    assert verify.sample_mismatches(stored, schedule, chunks) == []


@pytest.mark.parametrize("function", PAIRS.function_names)
def test_certificate_is_whole_and_has_the_outputs_of_corem(function):
    path = certificate_of(PAIRS, function)
    if not path.exists():
        pytest.skip(f"{function} has no certificate yet")
    stored = prove.load_certificate(path)
    assert stored.failures() == []
    (run,) = stored.runs
    assert run.complete
    assert run.digest() == prove.load_certificate(certificate_of(COREM, function)).runs[0].digest()
    # How many inputs need double precision is counted, and not taken over.
    assert run.tally.hard > 0
    schedule = schedule_of("corem-ff", function, count_hard=False)
    assert stored.subject["source_sha256"] == schedule.candidate.source_sha256


@with_fma
@pytest.mark.parametrize(
    "function",
    mostly_slow(ONE_ARGUMENT, ("exp", "sin", "erf")),
)
def test_a_warp_hardly_ever_needs_double_precision(function):
    """Of the floats next above 1/2 and next above 1, fewer than one in 2^13."""
    schedule = replace(schedule_of("corem-ff", function, chunk_bits=20), judge=False)
    hard = sum(run_chunk(schedule, chunk).tally.hard for chunk in (0x3F0, 0x3F8))
    assert 0 < hard < 2 * schedule.chunk_size >> 13


@with_fma
@pytest.mark.parametrize("function", TWO_ARGUMENTS)
def test_a_warp_hardly_ever_needs_double_precision_for_a_pair(tmp_path, function):
    """Of pairs of floats from 1/2 to 2, fewer than one in 2^13."""
    path = PAIRS.functions[function, "float32"].fast
    library = rewritten(tmp_path, function, f"{path}(x, y, &hard); return (float)hard;")
    rng = np.random.default_rng(5)
    x, y = (np.exp2(rng.uniform(-1, 1, 1 << 21)).astype(np.float32) for _ in range(2))
    out = np.empty_like(x)
    call = build_library(library).array_function(function)
    call(out.size, x.ctypes.data, y.ctypes.data, out.ctypes.data, 0)
    assert 0 < np.count_nonzero(out) < out.size >> 13


@with_fma
@pytest.mark.parametrize("function", ["exp", "log", "sin", "tanh", "erf", "asin", "atanh", "erfc"])
def test_the_rounding_test_is_what_makes_it_right(tmp_path, function):
    path = PAIRS.functions[function, "float32"].fast
    library = rewritten(tmp_path, function, f"return {path}(x, &hard);")
    # From 1/2 to 5/8.
    made = run_chunk(schedule_of(library, function, chunk_bits=21), 0x3F << 3).tally
    right = run_chunk(schedule_of("corem-ff", function, chunk_bits=21), 0x3F << 3).tally
    assert right.wrong == 0
    assert 0 < made.wrong < right.hard


# The key float_float of udf.toml -----------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("./missing", "float_float names './missing', which does not exist"),
        (".", "float_float names the library itself"),
        (3, "float_float in .library. has the wrong type"),
    ],
)
def test_a_wrong_float_float_is_named(tmp_path, value, message):
    (tmp_path / "e.c").write_text("float f(float x) { return x; }\n")
    (tmp_path / "udf.toml").write_text(
        f'[library]\nname = "mine"\nversion = "1"\nfloat_float = {value!r}\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "f"\n'
    )
    with pytest.raises(LibraryError, match=message):
        find_library(tmp_path)


def test_the_stock_library_has_no_other_form(tmp_path):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "none"\nversion = "1"\nstock = true\nfloat_float = "."\n'
    )
    with pytest.raises(LibraryError, match="has no functions: remove float_float"):
        find_library(tmp_path)


# Certificates by comparison with another library's -----------------------------------


def hypot_library(folder, wrong=False):
    source = COREM.functions["hypot", "float32"].source
    folder.mkdir()
    (folder / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.hypot.float32]\nsource = "h.c"\nfast = "fast"\naccurate = "accurate"\n'
        "max_ulp = 0.5\n"
    )
    change = "x == 1.0f ? 2.0f : " if wrong else ""
    (folder / "h.c").write_text(
        f'#include "{source}"\n'
        "static inline float fast(float x, float y, int *hard) "
        f"{{ float z = udf_hypotf_fast(x, y, hard); return {change}z; }}\n"
        "static float accurate(float x, float y) { return udf_hypotf_accurate(x, y); }\n"
    )
    return str(folder)


def judged(library, path, *, chunks=None, **options):
    schedule = schedule_of(library, "hypot", pairs=1 << 16, chunk_bits=14)
    return verify.verify(schedule, path, verify.Execution(chunks, workers=0), **options)


def test_outputs_of_another_library_need_no_second_judgement(tmp_path):
    known = tmp_path / "corem.json"
    (first,) = judged("corem", known).runs
    mine = hypot_library(tmp_path / "mine")
    (run,) = judged(mine, tmp_path / "mine.json", against=known).runs
    assert run.digest() == first.digest()
    assert run.identity["reference"].startswith("every output that of corem 0.1.0, the array form")
    assert replace(run.tally, hard=None) == replace(first.tally, hard=None)
    assert run.tally.hard == first.tally.hard > 0


def test_another_output_is_judged(tmp_path):
    known = tmp_path / "corem.json"
    judged("corem", known)
    mine = hypot_library(tmp_path / "mine", wrong=True)
    made = judged(mine, tmp_path / "mine.json", against=known)
    assert made.runs[0].tally.wrong > 0
    assert made.failures()


def test_a_certificate_of_something_else_is_refused(tmp_path):
    schedule = schedule_of("corem-ff", "exp")
    other = certificate_of(COREM, "log")
    with pytest.raises(errors.CertificateError, match="says nothing about exp"):
        verify.verify(schedule, tmp_path / "made.json", verify.Execution(workers=0), against=other)
    without = hypot_library(tmp_path / "mine")
    with pytest.raises(VerifyError, match="mine' has no float32 'pow'"):
        verify.stored_certificate(schedule_of("corem", "pow"), without)


def test_an_unfinished_certificate_is_refused(tmp_path):
    known = tmp_path / "part.json"
    judged("corem", known, chunks=[0])
    mine = hypot_library(tmp_path / "mine")
    with pytest.raises(errors.CertificateError, match="no complete run"):
        judged(mine, tmp_path / "mine.json", against=known)
