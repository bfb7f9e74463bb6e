# SPDX-License-Identifier: Apache-2.0
"""corem-d's functions against MPFR, and canary-d, which must fail the same checks."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gmpy2
import numpy as np
import pytest
import torch

from benches.experiments import float64_check
from pytest_udftorch import find_library, patched
from pytest_udftorch.build.libdevice import libdevice_for
from pytest_udftorch.build.selection import Part
from pytest_udftorch.build.shared import build_library
from pytest_udftorch.rounding import correctly_rounded
from pytest_udftorch.verify.line_journal import OtherRunError

FOLDER = find_library("corem-d").folder
FUNCTIONS = tuple(name for name, _ in find_library("corem-d").functions)
#: Fewest equal bits after the rounding bit of a case that the search kept.
HARD = {"exp": 44, "log": 25, "exp2": 40, "log2": 40, "tanh": 45}
#: The generator of a function's constants, where it is not in its own folder.
GENERATORS = {"sin": "common", "cos": "common", "exp2": "exp"}


def ordinary(function, draw):
    """Arguments of all sizes, and those near the thresholds of a function."""
    if function == "exp":
        # The last arguments with a finite result, with a normal one and with one that is not zero.
        ends = (709.782712893384, -708.3964185322641, -745.1332191019411)
        return (
            draw.uniform(-30, 30, 5000),
            np.ldexp(draw.uniform(-1, 1, 5000), draw.integers(-80, 10, 5000)),
            draw.uniform(-745.2, -708.3, 1000),
            *(end + np.spacing(end) * np.arange(-50, 50) for end in ends),
        )
    if function == "exp2":
        whole = np.arange(-1080.0, 1030)
        return (
            draw.uniform(-1076, 1025, 5000),
            np.ldexp(draw.uniform(-1, 1, 5000), draw.integers(-80, 10, 5000)),
            *(np.nextafter(whole, end) for end in (-np.inf, np.inf)), whole, whole + 0.5,
        )  # fmt: skip
    if function == "tanh":
        return (
            draw.uniform(-4, 4, 5000),
            draw.uniform(-21, 21, 3000),
            np.ldexp(draw.uniform(-1, 1, 5000), draw.integers(-30, 6, 5000)),
            np.arange(-500, 500) * (np.log(2) / 64),
        )
    if function in ("sin", "cos"):
        signs = draw.choice([-1.0, 1.0], 3000)
        return (
            draw.uniform(-7, 7, 5000),
            draw.uniform(-1e7, 1e7, 3000),
            np.ldexp(draw.uniform(1, 2, 3000) * signs, draw.integers(-40, 1023, 3000)),
            np.arange(-500, 500) * (np.pi / 16),
        )
    return (
        draw.uniform(0, 30, 4000),
        np.exp(draw.uniform(-708, 709, 3000)),
        1 + np.ldexp(draw.uniform(-1, 1, 4000), draw.integers(-52, 0, 4000)),
        draw.integers(0, 2**52, 500).astype(np.uint64).view(np.float64),
    )


@pytest.fixture(scope="module", params=FUNCTIONS)
def case(request):
    """A function, hard cases, random encodings and ordinary arguments, and what MPFR gives."""
    function = request.param
    lines = (FOLDER / function / "hard.txt").read_text(encoding="utf-8").splitlines()
    hard = np.array([int(n, 16) for n in lines if n[0] != "#"], dtype=np.uint64).view(np.float64)
    draw = np.random.default_rng(22)
    encodings = draw.integers(0, 2**64, 2000, dtype=np.uint64).view(np.float64)
    x = np.concatenate([hard, *ordinary(function, draw), encodings])
    return function, x, correctly_rounded(x, function=function)


def wrong(got, wanted):
    """How many results have other bits than those of MPFR; any NaN is a NaN."""
    got = np.ascontiguousarray(got)
    nan = np.isnan(got) & np.isnan(wanted.view(np.float64))
    return int(np.sum((got.view(np.uint64) != wanted) & ~nan))


def through(library, function, form, x):
    build = build_library(library)
    if form == "scalar":
        call = build.scalar_function(function, "float64")
        return np.array([call(v) for v in x.tolist()])
    out = np.empty_like(x)
    build.array_function(function, "float64")(x.size, x.ctypes.data, out.ctypes.data, 0)
    return out


@pytest.mark.parametrize("form", ["array", "scalar"])
def test_forms_have_the_bits_of_mpfr(form, case):
    function, x, wanted = case
    assert wrong(through("corem-d", function, form, x), wanted) == 0
    # Negative control: every finite result but zero is one bit off.
    value = wanted.view(np.float64)
    flipped = np.sum(np.isfinite(value) & (value != 0))
    assert wrong(through("canary-d", function, form, x), wanted) == flipped


def test_operators_have_the_bits_of_mpfr(case):
    function, x, wanted = case
    call = getattr(torch, function)
    tensor = torch.from_numpy(x)
    square = tensor[:10_000].reshape(100, 100)
    with patched("corem-d"):
        assert wrong(call(tensor).numpy(), wanted) == 0
        assert wrong(call(tensor[::3]).numpy(), wanted[::3]) == 0
        transposed = wanted[:10_000].reshape(100, 100).T
        assert wrong(call(square.t()).numpy(), np.ascontiguousarray(transposed)) == 0
        for length in range(1, 71):
            part = slice(7 * length, 8 * length)
            assert wrong(call(tensor[part]).numpy(), wanted[part]) == 0
            inplace = getattr(tensor[part].clone(), f"{function}_")
            assert wrong(inplace().numpy(), wanted[part]) == 0
    # Negative control: stock is wrong somewhere.
    assert wrong(call(tensor).numpy(), wanted) > 0


def test_a_session_of_corem_around_it_leaves_both_dtypes_correctly_rounded(case):
    function, x, wanted = case
    call = getattr(torch, function)
    single = x[np.abs(x) < 80].astype(np.float32)
    with patched("corem"), patched("corem-d"):
        assert wrong(call(torch.from_numpy(x)).numpy(), wanted) == 0
        got = call(torch.from_numpy(single)).numpy()
    expected = correctly_rounded(single, function=function)
    nan = np.isnan(got) & np.isnan(expected.view(np.float32))
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], expected[~nan])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_cases_of_the_search_are_hard_and_constants_are_the_generators(function):
    search = runpy.run_path(str(FOLDER / "hard_cases.py"))
    lines = (FOLDER / function / "hard.txt").read_text(encoding="utf-8").splitlines()
    found = [int(n, 16) for n in lines[1 : 1 + 2 * search["FUNCTIONS"][function].kept]]
    values = np.array(found, dtype=np.uint64).view(np.float64)
    if function in HARD:
        assert min(search["bits_beyond"](function, float(x)) for x in values) >= HARD[function]
    else:
        # The smaller of |sin| and |cos| is the distance from a multiple of pi/2.
        near = min(
            min(abs(gmpy2.sin(gmpy2.mpfr(x))), abs(gmpy2.cos(gmpy2.mpfr(x))))
            for x in values.tolist()
        )
        assert near < 2.0**-60  # Kahan's 6381956970095103 2^797
    assert search["bits_beyond"](function, 0.7) < 20  # negative control
    sources = search["published"](function)
    listed = np.array([n for part in sources.values() for n in part], dtype=np.uint64)
    core_math = np.array(list(sources.values())[-1], dtype=np.uint64).view(np.float64)
    assert min(search["bits_beyond"](function, float(x)) for x in core_math) >= 37
    assert {f"{n:016x}" for n in listed} <= set(lines)
    generator = runpy.run_path(str(FOLDER / GENERATORS.get(function, function) / "generate.py"))
    header = generator["HEADER"].read_text(encoding="utf-8").splitlines()
    assert generator["lines"]() == header


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_search_finds_the_same_cases(function):
    search = runpy.run_path(str(FOLDER / "hard_cases.py"))
    found = search["encodings"](
        search["search"](function, 1)[0] + search["search"](function, -1)[0]
    )
    lines = (FOLDER / function / "hard.txt").read_text(encoding="utf-8").splitlines()
    assert [f"{n:016x}" for n in found] == lines[1 : 1 + len(found)]


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_kernels_of_torch_have_the_bits_of_mpfr(capability):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k"]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    names = "operators_have or around_it"
    done = subprocess.run(
        [*command, names], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    assert f"{2 * len(FUNCTIONS)} passed" in done.stdout


def test_triton_keeps_its_own_libdevice_where_no_function_is_for_gpus(tmp_path):
    stock = tmp_path / "libdevice.10.bc"
    build = build_library("corem-d")
    assert libdevice_for((Part(build, (("exp", "float64"),)),), stock) == stock


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_check_of_many_arguments_finds_the_canary_alone(function, tmp_path, monkeypatch):
    count = 1 << 13
    right = float64_check.judge("corem-d", "baseline", function, 0, count)
    assert right["wrong"] == 0
    assert 0 < right["mpfr"] < count
    flipped = float64_check.judge("canary-d", "baseline", function, 0, count)
    assert flipped["wrong"] > count * 0.6
    assert int(flipped["argument"], 16)
    assert flipped["digest"] != right["digest"]
    # A run that was interrupted ends with the same digest as one that was not.
    monkeypatch.setattr(float64_check, "CHUNK", count // 4)
    name = {"function": function}
    with float64_check.Journal(tmp_path / "journal", name) as journal:
        for first in range(0, count // 2, count // 4):
            journal.finish(float64_check.judge("corem-d", "baseline", function, first, count // 4))
    with (
        float64_check.Journal(tmp_path / "journal", name) as again,
        ThreadPoolExecutor(1) as pool,
    ):
        assert sorted(again.done) == [0, count // 4]
        float64_check.run(pool, again, function, "baseline", count, 1)
    digests = [int(part["digest"], 16) for part in again.done.values()]
    assert sum(digests) % 2**64 == int(right["digest"], 16)
    with pytest.raises(OtherRunError, match="differs in function"):
        float64_check.Journal(tmp_path / "journal", {"function": "another"})
