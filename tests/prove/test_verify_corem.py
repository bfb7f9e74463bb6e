# SPDX-License-Identifier: Apache-2.0
"""corem against MPFR: hard cases, samples, certificates, and libraries that must fail."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict

import numpy as np
import pytest
from parameters import mostly_slow

from pytest_udftorch import prove
from pytest_udftorch.errors import NativeError
from pytest_udftorch.prove.exact.rounding import assert_correctly_rounded
from pytest_udftorch.prove.exact.strategies import read_hard_cases, sample_inputs
from pytest_udftorch.prove.verify import run as verify
from pytest_udftorch.prove.verify.chunks import outputs_digest, run_chunk
from pytest_udftorch.prove.verify.reference.checker import (
    FORM_NUMBERS,
    LLVM_FOLDERS,
    CheckJob,
    checker_file,
    load_checker,
)
from pytest_udftorch.prove.verify.schedule import Request, make_schedule
from pytest_udftorch.prove.verify.udf_candidate import quick_sha256, short_sha256, source_sha256
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import FUNCTIONS, forms
from pytest_udftorch.swap.toolchain.cache import sha256_of
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from pytest_udftorch.swap.toolchain.shared_library import build_library

COREM = find_library("corem")
UNIVARIATE = [n for n in COREM.function_names if FUNCTIONS[n].arity == 1]
SHORT = [n for n in COREM.function_names if COREM.functions[n, "float32"].short is not None]
#: The others, among them one whose arguments come near to 1 and one of two arguments, are slow.
SOME_SHORT = ("exp2",)
SOME = ("exp", "log", "sin", "tanh", "erf", "pow")
BIVARIATE = [n for n in COREM.function_names if FUNCTIONS[n].arity == 2]
FORMS = forms("float32", resolve_cpu_level(None))
REFERENCE = "auto" if any(LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a")) else "libm"
#: Chunks of 2**24 that a test run compares with the certificate: subnormal, tiny, small, ordinary
#: and large arguments, special ones and negative ones. The slow tests compare more.
STRATA = (0x00, 0x3B, 0x3F, 0x42, 0x7F, 0xBF)
MORE_STRATA = (0x33, 0x41, 0x4B, 0x6F, 0x80, 0xB9, 0xC2, 0xFF)

some_functions = pytest.mark.parametrize("function", mostly_slow(COREM.function_names, SOME))


@pytest.fixture(scope="module")
def checker():
    return load_checker(checker_file())


def corem_schedule(library, function, **options):
    return make_schedule(library, function, Request(reference=REFERENCE, **options))


def through(function, form, *arguments, library=COREM):
    """Run the array or the scalar form on arrays, one per argument."""
    build = build_library(library)
    columns = [np.ascontiguousarray(x, dtype=np.float32) for x in arguments]
    if form == "array":
        out = np.empty_like(columns[0])
        call = build.array_function(function)
        call(out.size, *(c.ctypes.data for c in columns), out.ctypes.data, 0)
        return out
    scalar = build.scalar_function(function)
    rows = zip(*(c.tolist() for c in columns), strict=True)
    return np.array([scalar(*row) for row in rows], dtype=np.float32)


def listed(function):
    """The cases of a hard.txt and their neighbours: float32 columns, one per argument."""
    path = COREM.functions[function, "float32"].hard_cases
    arity = FUNCTIONS[function].arity
    cases = read_hard_cases(path, arity).astype(np.int64).reshape(-1, 1, arity)
    # Neighbours of a hard case are as ordinary as any input; they pad the vectors.
    steps = np.arange(-2, 3)
    near = steps[:, None] if arity == 1 else np.stack([steps, steps * 0], axis=1)
    rows = np.unique(((cases + near) % 2**32).reshape(-1, arity), axis=0)
    return [np.ascontiguousarray(c).astype(np.uint32).view(np.float32) for c in rows.T]


def same(got, want):
    differ = got.view(np.uint32) != want.view(np.uint32)
    return not np.any(differ & ~(np.isnan(got) & np.isnan(want)))


def same_as_mpfr(checker, function, arguments, got):
    return same(got, checker.mpfr(function, *arguments))


@pytest.mark.parametrize("function", COREM.function_names)
def test_every_listed_hard_case_is_right(function):
    columns = listed(function)
    inputs = columns[0] if len(columns) == 1 else tuple(columns)
    array, scalar = (through(function, form, *columns) for form in ("array", "scalar"))
    assert_correctly_rounded(array, inputs, function=function)
    assert same(scalar, array)


@pytest.mark.parametrize("count", [50_000, pytest.param(250_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", UNIVARIATE)
def test_a_sample_is_right(checker, function, count):
    x = sample_inputs(function, count, seed=2026).view(np.float32)
    got, want = through(function, "array", x), checker.mpfr(function, x)
    assert same(got, want)
    got.view(np.uint32)[np.flatnonzero(~np.isnan(got))[1234]] ^= 1
    assert not same(got, want)


@pytest.mark.parametrize("function", UNIVARIATE)
def test_scalar_form_is_right_on_a_sample(checker, function):
    x = sample_inputs(function, 20_000, seed=7).view(np.float32)
    assert same_as_mpfr(checker, function, [x], through(function, "scalar", x))


@pytest.mark.parametrize("function", BIVARIATE)
def test_pairs_are_right(function):
    """Of another seed than the certificate's; canary's results, one bit off, are not."""
    options = {"pairs": 1 << 18, "chunk_bits": 18, "seed": 2026, "count_hard": False}
    assert run_chunk(corem_schedule("corem", function, **options), 0).tally.wrong == 0
    off = run_chunk(corem_schedule("canary", function, **options), 0).tally
    # A third of the powers are zero, infinite or NaN, where canary is right.
    assert off.wrong > off.inputs / 3


@some_functions
def test_every_form_gives_the_same_bits(function):
    digests = {}
    for form in FORMS:
        schedule = corem_schedule("corem", function, form=form, chunk_bits=18, count_hard=False)
        chunks = (0x0FE0, 0x0FF0, 0x1080, 0x30A0) if schedule.candidate.arity == 1 else range(4)
        digests[form] = [outputs_digest(schedule, i) for i in chunks]
    assert len({tuple(d) for d in digests.values()}) == 1


@pytest.mark.skipif("v16" not in FORMS, reason="no AVX-512")
@some_functions
def test_lanes_do_not_disturb_each_other(function):
    for form in ("v8", "v16"):
        plain, lonely = (
            corem_schedule(
                "corem", function, form=form, chunk_bits=16, garbage=garbage, count_hard=False
            )
            for garbage in (False, True)
        )
        for index in (0x3F81, 0x4200, 0xC2AE) if plain.candidate.arity == 1 else range(3):
            assert outputs_digest(plain, index) == outputs_digest(lonely, index)


def certified(function):
    schedule = corem_schedule("corem", function, count_hard=False)
    path = verify.certificate_path(schedule, None, "corem")
    if not path.exists():
        pytest.skip(f"{function} has no certificate yet")
    return schedule, prove.load_certificate(path)


@pytest.mark.parametrize("function", COREM.function_names)
def test_certificate_is_whole_and_says_what_is_claimed(function):
    schedule, stored = certified(function)
    assert stored.failures() == []
    assert stored.runs
    assert all(run.complete for run in stored.runs)
    assert len({run.digest() for run in stored.runs if not run.identity["flush"]}) == 1
    assert len({run.normal_digest() for run in stored.runs}) == 1
    # The sources are those that were certified; comments may have changed.
    assert stored.subject["source_sha256"] == schedule.candidate.source_sha256
    short = short_sha256(COREM, function)
    for run in stored.runs:
        form, level = run.identity["form"], run.identity["cpu_level"]
        quick = quick_sha256(COREM, function, level)
        assert run.identity.get("short_sha256") == (short if form == "scalar" else None), level
        assert run.identity.get("quick_sha256") == (None if form == "scalar" else quick), level


# The sources of all functions are those that were certified: see above.
@some_functions
def test_strata_of_the_inputs_give_the_certified_digests(function):
    schedule, stored = certified(function)
    # Each chunk of pairs holds every kind of them.
    chunks = STRATA if schedule.candidate.arity == 1 else (0, schedule.total_chunks - 1)
    assert verify.sample_mismatches(stored, schedule, chunks) == []


@pytest.mark.slow
@pytest.mark.parametrize("function", UNIVARIATE)
def test_more_strata_give_the_certified_digests(function):
    schedule, stored = certified(function)
    assert verify.sample_mismatches(stored, schedule, MORE_STRATA) == []


def stale(library, digest, sources=source_sha256):
    """The certificates that name another binary and other sources of their function."""
    found = []
    for path in sorted(library.folder.glob("*/*.certificate.json")):
        stored = prove.load_certificate(path)
        binaries = {run.identity["library_sha256"] for run in stored.runs}
        if digest not in binaries and stored.subject["source_sha256"] != sources(
            library, stored.subject["function"]
        ):
            found.append(path.name)
    return found


@pytest.mark.parametrize("library", ["corem", "corem-composites", "corem-ff"])
def test_runs_of_a_function_name_one_build_of_each_level(library):
    """A build's SHA-256 changes with each function: what was changed later names a later build.

    A form with a short or quick path in a file of its own is run again when that changes.
    """
    builds = defaultdict(set)
    for path in find_library(library).folder.glob("*/*.certificate.json"):
        for run in prove.load_certificate(path).runs:
            if "short_sha256" not in run.identity:
                key = (run.identity["cpu_level"], "quick_sha256" in run.identity)
                builds[path.parent.name, key].add(run.identity["library_sha256"])
    assert builds
    assert {key: len(named) for key, named in builds.items()} == dict.fromkeys(builds, 1)


@pytest.mark.parametrize("library", ["corem", "corem-composites"])
def test_certificates_name_what_is_built_or_the_present_sources(library):
    """A library's SHA-256 also changes with the sources of its other functions."""
    build = build_library(library)
    digest = sha256_of(build.path)
    assert stale(build.library, digest) == []
    changed = stale(build.library, "0" * 64, lambda *_: "0" * 64)
    assert len(changed) == len(list(build.library.folder.glob("*/*.certificate.json"))) > 0


def test_source_hash_follows_the_code_and_not_its_comments(tmp_path):
    folder = tmp_path / "mine"
    entry = 'scalar = "f"'
    make_library(folder, "mine", '#include "h.h"\nfloat f(float x) { return x; }\n', entry)
    (folder / "h.h").write_text("enum { ONE = 1 };\n")

    def now():
        return source_sha256(find_library(folder), "exp")

    first = now()
    (folder / "other.h").write_text("not included\n")
    (folder / "h.h").write_text("/* a word\n more */ enum { ONE  = 1 }; // end\n")
    assert now() == first
    (folder / "h.h").write_text("enum { ONE = 2 };\n")
    assert now() != first
    (folder / "h.h").unlink()
    with pytest.raises(NativeError, match=r"h\.h"):
        now()


def test_the_short_path_is_hashed_for_the_scalar_form_alone(tmp_path):
    folder = tmp_path / "mine"
    paths = "float f(float x, int *hard) { return x; }\nfloat g(float x) { return x; }\n"
    entry = 'fast = "f"\naccurate = "g"\nshort = "h"\n'
    make_library(folder, "mine", paths, entry + 'short_source = "short.c"')
    (folder / "short.c").write_text("float h(float x, int *hard) { return x; }\n")

    def now():
        library = find_library(folder)
        return source_sha256(library, "exp"), short_sha256(library, "exp")

    source, short = now()
    (folder / "short.c").write_text("float h(float x, int *hard) { return x + 0; } // longer\n")
    assert now()[0] == source
    assert now()[1] != short
    # In the file of the other paths, it is part of every form.
    make_library(tmp_path / "one", "mine", paths.replace("g(", "h("), entry)
    library = find_library(tmp_path / "one")
    assert short_sha256(library, "exp") is None
    other = make_library(tmp_path / "two", "mine", paths.replace("g(", "h("), entry[:-12])
    assert source_sha256(library, "exp") != source_sha256(find_library(other), "exp")


@pytest.mark.parametrize("own", ["avx2", "avx512"])
def test_the_quick_path_of_a_level_is_hashed_and_compiled_for_it_alone(tmp_path, own):
    folder = tmp_path / "mine"
    paths = "float f(float x, int *hard) { return x; }\nfloat g(float x) { return x; }\n"
    entry = f'fast = "f"\naccurate = "g"\nquick_{own} = "q"\nquick_{own}_source = "wide.c"'
    make_library(folder, "mine", paths, entry)
    wide = folder / "wide.c"
    wide.write_text("float q(float x, int *hard) { return x; }\n")

    levels = ("baseline", "avx2", "avx512")

    def now():
        library = find_library(folder)
        digests = {level: quick_sha256(library, "exp", level) for level in levels}
        return {"source": source_sha256(library, "exp"), **digests}

    first = now()
    assert [level for level in levels if first[level] is not None] == [own]
    wide.write_text("float q(float x, int *hard) { return x + 0; } // longer\n")
    assert [key for key, value in now().items() if value != first[key]] == [own]
    described = find_library(folder).functions["exp", "float32"]
    alone = [level == own for level in levels]
    assert [described.quick_at(level) for level in levels] == ["q" if a else None for a in alone]
    assert [described.before(level) for level in levels] == [(wide,) if a else () for a in alone]


# Libraries that must fail ------------------------------------------------------------

HEADER = """
[library]
name = "{name}"
version = "1"
claim = "{name}"
include_dirs = ["{common}"]

[functions.{function}.float32]
source = "exp.c"
{entry}
max_ulp = {max_ulp}
"""


def make_library(folder, name, source, entry, max_ulp=0.5, function="exp"):
    folder.mkdir()
    common = COREM.folder / "common"
    toml = HEADER.format(name=name, common=common, entry=entry, max_ulp=max_ulp, function=function)
    (folder / "udf.toml").write_text(toml)
    (folder / "exp.c").write_text(source)
    return str(folder)


def planted(folder, bits):
    """corem's exp, wrong by one bit at one input."""
    source = f"""
#include "{COREM.functions["exp", "float32"].source}"
float planted_expf(float x) {{
  int hard;
  float y = udf_expf_fast(x, &hard);
  if (hard)
    y = udf_expf_accurate(x);
  uint32_t flip = udf_f32_bits(x) == UINT32_C(0x{bits:08x});
  return udf_f32_from_bits(udf_f32_bits(y) ^ flip);
}}
"""
    return make_library(folder, "planted", source, 'scalar = "planted_expf"')


def without_rounding_test(folder, function, path="fast"):
    """One of corem's paths alone: whatever it is not certain of is taken as it is."""
    described = COREM.functions[function, "float32"]
    names = "xy"[: FUNCTIONS[function].arity]
    source = f"""
#include "{getattr(described, f"{path}_source", None) or described.source}"
float unchecked({", ".join(f"float {n}" for n in names)}) {{
  int hard;
  return {getattr(described, path)}({", ".join(names)}, &hard);
}}
"""
    return make_library(folder, "unchecked", source, 'scalar = "unchecked"', function=function)


def verified(library, tmp_path, chunks, bits=24, function="exp"):
    schedule = corem_schedule(library, function, chunk_bits=bits)
    how = verify.Execution(chunks, workers=0)
    return verify.verify(schedule, tmp_path / "out" / "made.json", how)


def test_a_planted_one_bit_error_fails(tmp_path):
    library = planted(tmp_path / "planted", 0x3F812345)
    made = verified(library, tmp_path, [0x3F80, 0x3F81, 0x3F82], bits=16)
    (sentence,) = made.failures()
    assert "1 of 196,608 results are not correctly rounded" in sentence
    (example,) = made.runs[0].tally.examples
    assert example.inputs == (0x3F812345,)
    assert example.got == example.want ^ 1
    right = corem_schedule("corem", "exp", chunk_bits=16)
    assert verify.sample_mismatches(made, right, [0x3F80, 0x3F81, 0x3F82]) == [0x3F81]


@pytest.mark.parametrize("function", mostly_slow(("exp", "log", "sin"), ("exp",)))
def test_the_rounding_test_is_what_makes_corem_right(tmp_path, function):
    options = {"chunks": [0xFE, 0xFF, 0x100], "bits": 22, "function": function}
    good = verified("corem", tmp_path / "good", **options)
    assert good.failures() == []
    assert good.runs[0].tally.hard > 0
    library = without_rounding_test(tmp_path / "bad", function)
    bad = verified(library, tmp_path, **options)
    (sentence,) = bad.failures()
    assert "results are not correctly rounded" in sentence
    # What goes wrong without the test is among what the test would have caught.
    assert 0 < bad.runs[0].tally.wrong < good.runs[0].tally.hard


@pytest.mark.skipif("v8" not in FORMS, reason="no FMA")
@pytest.mark.parametrize("function", ["exp", "log"])
def test_the_rounding_test_is_what_makes_the_quick_path_right(tmp_path, function):
    library = without_rounding_test(tmp_path / "bad", function, "quick")
    bad = verified(library, tmp_path, [0xFE, 0xFF, 0x100], bits=22, function=function)
    (sentence,) = bad.failures()
    assert "results are not correctly rounded" in sentence
    # Its results are moved by some units of 2^-37 (see exp_quick.h, log_quick.h); without the test
    # as many are wrong as have a boundary in between, one in some thousands.
    assert 2**-14 < bad.runs[0].tally.wrong / bad.runs[0].tally.inputs < 2**-8


@pytest.mark.parametrize("function", mostly_slow(SHORT, SOME_SHORT))
def test_the_rounding_test_is_what_makes_the_short_path_right(tmp_path, function):
    """The control of the scalar form's certificate: a short path that takes what it has."""
    library = without_rounding_test(tmp_path / "bad", function, "short")
    chunks = {"pow": [0], "asin": [0xFB, 0xFC, 0xFD]}.get(function, [0xFE, 0xFF, 0x100])
    options = {"form": "scalar", "chunk_bits": 22, "pairs": 1 << 22, "count_hard": False}
    results = [
        [run_chunk(corem_schedule(which, function, **options), i).tally for i in chunks]
        for which in ("corem", library)
    ]
    good, bad = (sum(tally.wrong for tally in tallies) for tallies in results)
    assert good == 0 < bad


@pytest.mark.parametrize("function", BIVARIATE)
def test_the_hardest_listed_pairs_need_the_accurate_path(tmp_path, checker, function):
    path = COREM.functions[function, "float32"].hard_cases
    columns = np.ascontiguousarray(read_hard_cases(path, 2)[:1000].T).view(np.float32)
    assert same_as_mpfr(checker, function, columns, through(function, "array", *columns))
    fast = without_rounding_test(tmp_path / "unchecked", function)
    got = through(function, "array", *columns, library=find_library(fast))
    assert not same_as_mpfr(checker, function, columns, got)


TAYLOR = """
float taylor_expf(float x) {
  return 1 + x * (1 + x * (1 / 2.f + x * (1 / 6.f + x * (1 / 24.f))));
}
"""


@pytest.mark.parametrize(("bound", "kept"), [(8, True), (1, False)])
def test_a_library_of_ones_own_is_held_to_its_own_bound(tmp_path, bound, kept):
    """A polynomial that is good to some ULP between 1/16 and 1/8."""
    library = make_library(
        tmp_path / "taylor", "taylor", TAYLOR, 'scalar = "taylor_expf"', max_ulp=bound
    )
    made = verified(library, tmp_path, [0x3D800000 >> 23], bits=23)
    assert (made.failures() == []) == kept
    assert made.runs[0].tally.wrong > 0
    assert made.runs[0].tally.hard is None
    assert 1 < made.runs[0].largest["ulp"] < 8


def test_form_numbers_are_those_of_the_header():
    text = (checker_file.__globals__["FOLDER"] / "reference.h").read_text()
    names = [n for n in text.split("enum udfref_form {")[1].split("}")[0].split() if "UDF" in n]
    wanted = [n.strip(",").removeprefix("UDFREF_").lower() for n in names]
    assert {n: i for i, n in enumerate(wanted)} == FORM_NUMBERS
    assert CheckJob(form=3).form == FORM_NUMBERS["v16"]


def test_error_analyses_quote_the_closest_approach_that_is_found(tmp_path):
    program = tmp_path / "search_closest"
    source = COREM.folder / "common" / "search_closest.c"
    subprocess.run(["cc", "-O2", source, "-o", program, "-lmpfr", "-lm"], check=True)
    run = subprocess.run([program], capture_output=True, text=True, check=True)
    found = re.findall(r"(\w+): (\S+), (\S+) away", run.stdout)
    assert [name for name, _, _ in found] == ["sin", "cos", "tan"]
    for name, x, distance in found:
        header = COREM.functions[name, "float32"].source.read_text()
        text = " ".join(line[3:] for line in header.splitlines() if line.startswith("//"))
        assert f"is nearer than {distance} to" in text
        assert f"({x}; see search_closest.c)" in text
