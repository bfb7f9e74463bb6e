"""corem-ff, corem in pairs of floats: the same bits, and hardly ever in double."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_udftorch import certificate, verify
from pytest_udftorch.build import build_library, resolve_cpu_level
from pytest_udftorch.errors import LibraryFormatError
from pytest_udftorch.inputs import read_hard_cases, sample
from pytest_udftorch.library import find_library
from pytest_udftorch.reference.native import LLVM_FOLDERS
from pytest_udftorch.rounding import assert_correctly_rounded
from pytest_udftorch.symbols import forms

COREM, PAIRS = find_library("corem"), find_library("corem-ff")
REFERENCE = "auto" if any(LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a")) else "libm"
FORMS = forms("float32", resolve_cpu_level(None))
#: Chunks of 2**24: ordinary and large arguments of both signs, and special ones.
STRATA = (0x3E, 0x42, 0x45, 0x7F, 0xBF, 0xC2)

with_fma = pytest.mark.skipif("v8" not in FORMS, reason="no FMA: corem in double is used")


def plan_of(library, function, **options):
    return verify.make_plan(library, function, reference=REFERENCE, **options)


def certificate_of(library, function):
    source = library.functions[function, "float32"].source
    return source.parent / f"{function}.float32.certificate.json"


def through(function, form, x):
    build = build_library(PAIRS)
    if form == "array":
        out = np.empty_like(x)
        build.array_function(function)(x.size, x.ctypes.data, out.ctypes.data, 0)
        return out
    scalar = build.scalar_function(function)
    return np.array([scalar(v) for v in x.tolist()], dtype=np.float32)


def test_corem_names_it_for_gpus():
    assert COREM.float_float == PAIRS.folder
    assert set(PAIRS.functions) <= set(COREM.functions)
    assert all(f.max_ulp == 0.5 for f in PAIRS.functions.values())


@pytest.mark.parametrize("function", PAIRS.function_names)
def test_hard_cases_and_their_neighbours_are_right(function):
    cases = read_hard_cases(PAIRS.functions[function, "float32"].hard_cases, 1)
    near = cases.astype(np.int64).reshape(-1, 1) + np.arange(-2, 3)
    x = np.unique(near % 2**32).astype(np.uint32).view(np.float32)
    for form in ("array", "scalar"):
        assert_correctly_rounded(through(function, form, x), x, function=function)


@pytest.mark.parametrize("function", PAIRS.function_names)
def test_a_sample_is_right_in_the_form_that_gpus_get(function):
    checker = verify.load_checker(verify.checker_file())
    x = sample(function, 20_000, seed=11).view(np.float32)
    got, want = through(function, "scalar", x), checker.mpfr(function, x)
    both_nan = np.isnan(got) & np.isnan(want)
    assert np.array_equal(got.view(np.uint32)[~both_nan], want.view(np.uint32)[~both_nan])


@pytest.mark.parametrize("function", PAIRS.function_names)
def test_strata_have_the_digests_that_corem_is_certified_with(function):
    plan = plan_of("corem-ff", function, count_hard=False)
    stored = certificate.load(certificate_of(COREM, function))
    assert verify.sample_mismatches(stored, plan, STRATA) == []


@pytest.mark.parametrize("function", PAIRS.function_names)
def test_certificate_is_whole_and_has_the_outputs_of_corem(function):
    path = certificate_of(PAIRS, function)
    if not path.exists():
        pytest.skip(f"{function} has no certificate yet")
    stored = certificate.load(path)
    assert stored.failures() == []
    (run,) = stored.runs
    assert run.complete
    assert run.digest() == certificate.load(certificate_of(COREM, function)).runs[0].digest()
    # How many inputs need double precision is counted, and not taken over.
    assert run.tally.hard > 0
    plan = plan_of("corem-ff", function, count_hard=False)
    assert stored.subject["source_sha256"] == plan.candidate.source_sha256


@with_fma
@pytest.mark.parametrize("function", PAIRS.function_names)
def test_a_warp_hardly_ever_needs_double_precision(function):
    """Of the floats from 1/2 to 2, fewer than one in 2^13."""
    plan = replace(plan_of("corem-ff", function), judge=False)
    hard = verify.run_chunk(plan, 0x3F).tally.hard
    assert 0 < hard < plan.chunk_size >> 13


@with_fma
@pytest.mark.parametrize("function", ["exp", "log", "sin", "tanh", "erf"])
def test_the_rounding_test_is_what_makes_it_right(tmp_path, function):
    described = PAIRS.functions[function, "float32"]
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "unchecked"\nversion = "1"\n'
        f'[functions.{function}.float32]\nsource = "f.c"\nscalar = "f"\nmax_ulp = 0.5\n'
    )
    (tmp_path / "f.c").write_text(
        f'#include "{described.source}"\n'
        f"float f(float x) {{ int hard; return {described.fast}(x, &hard); }}\n"
    )
    made = verify.run_chunk(plan_of(str(tmp_path), function), 0x3F).tally
    right = verify.run_chunk(plan_of("corem-ff", function), 0x3F).tally
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
    with pytest.raises(LibraryFormatError, match=message):
        find_library(tmp_path)


def test_the_stock_library_has_no_other_form(tmp_path):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "none"\nversion = "1"\nstock = true\nfloat_float = "."\n'
    )
    with pytest.raises(LibraryFormatError, match="has no functions: remove float_float"):
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


def judged(library, path, **options):
    plan = plan_of(library, "hypot", pairs=1 << 16, chunk_bits=14)
    return verify.verify(plan, path, workers=0, **options)


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
    plan = plan_of("corem-ff", "exp")
    other = certificate_of(COREM, "log")
    with pytest.raises(certificate.CertificateMismatchError, match="says nothing about exp"):
        verify.verify(plan, tmp_path / "made.json", against=other, workers=0)
    with pytest.raises(verify.PlanError, match="'corem-ff' has no float32 'pow'"):
        verify.stored_certificate(plan_of("corem", "pow"), "corem-ff")


def test_an_unfinished_certificate_is_refused(tmp_path):
    known = tmp_path / "part.json"
    judged("corem", known, chunks=[0])
    mine = hypot_library(tmp_path / "mine")
    with pytest.raises(certificate.CertificateMismatchError, match="no complete run"):
        judged(mine, tmp_path / "mine.json", against=known)
