# SPDX-License-Identifier: Apache-2.0
"""corem-d's functions against MPFR, and canary-d, which must fail the same checks."""

from __future__ import annotations

import argparse
import os
import re
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
from pytest_udftorch.errors import CompilerNotFoundError, JournalError
from pytest_udftorch.prove import correctly_rounded
from pytest_udftorch.swap.cuda import doubles
from pytest_udftorch.swap.cuda.launcher import Launcher
from pytest_udftorch.swap.overrides.active import Active
from pytest_udftorch.swap.toolchain import libdevice
from pytest_udftorch.swap.toolchain.selection import Part
from pytest_udftorch.swap.toolchain.shared_library import build_library

FOLDER = find_library("corem-d").folder
FUNCTIONS = tuple(name for name, _ in find_library("corem-d").functions)
#: Fewest equal bits after the rounding bit of a case that the search kept.
HARD = {"exp": 44, "log": 25, "exp2": 40, "log2": 40, "tanh": 45, "log1p": 45}
#: The generator of a function's constants, where it is not in its own folder.
GENERATORS = {"sin": "common", "cos": "common", "exp2": "exp", "log1p": "log"}


def listed(function):
    """The arguments in hard.txt: a row for each argument of the function."""
    lines = (FOLDER / function / "hard.txt").read_text(encoding="utf-8").splitlines()
    found = [[int(n, 16) for n in line.split()] for line in lines if line[0] != "#"]
    return np.array(found, dtype=np.uint64).T.copy().view(np.float64)


def pairs(draw):
    """Arguments of pow: ordinary ones, results of all sizes, x near 1, whole y, any encodings."""
    wide = np.exp(draw.uniform(-700, 700, 4000))
    near = 1 + np.ldexp(draw.uniform(0.5, 1, 4000), draw.integers(-51, -1, 4000))
    whole = draw.integers(-40, 40, (2, 3000)).astype(np.float64)
    return np.concatenate([
        draw.uniform((0, -6), (9, 6), (4000, 2)).T,
        [wide, draw.uniform(-750, 712, 4000) / np.log(wide)],
        [near, draw.uniform(-750, 712, 4000) / np.log(near)],
        whole, whole / 2, [-wide[:2000], draw.integers(-3, 4, 2000)],
        draw.integers(0, 2**64, (2, 2000), dtype=np.uint64).view(np.float64),
    ], axis=1)  # fmt: skip


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
    if function == "log1p":
        return (
            draw.uniform(-1, 10, 5000),
            np.expm1(draw.uniform(-37, 709, 3000)),
            np.ldexp(draw.uniform(-1, 1, 5000), draw.integers(-58, 0, 5000)),
            np.arange(-50, 500) / 64,
        )
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
    draw = np.random.default_rng(22)
    if function == "pow":
        x = tuple(np.concatenate([listed(function), pairs(draw)], axis=1))
        return function, x, correctly_rounded(x, function=function)
    encodings = draw.integers(0, 2**64, 2000, dtype=np.uint64).view(np.float64)
    x = np.concatenate([listed(function)[0], *ordinary(function, draw), encodings])
    return function, (x,), correctly_rounded(x, function=function)


def wrong(got, wanted):
    """How many results have other bits than those of MPFR; any NaN is a NaN."""
    got = np.ascontiguousarray(got)
    nan = np.isnan(got) & np.isnan(wanted.view(np.float64))
    return int(np.sum((got.view(np.uint64) != wanted) & ~nan))


def through(library, function, form, x):
    build = build_library(library)
    if form == "scalar":
        call = build.scalar_function(function, "float64")
        return np.array([call(*v) for v in zip(*(part.tolist() for part in x), strict=True)])
    out = np.empty_like(x[0])
    places = (*(part.ctypes.data for part in x), out.ctypes.data)
    build.array_function(function, "float64")(out.size, *places, 0)
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
    tensors = [torch.from_numpy(part) for part in x]
    squares = [tensor[:10_000].reshape(100, 100) for tensor in tensors]
    with patched("corem-d"):
        assert wrong(call(*tensors).numpy(), wanted) == 0
        assert wrong(call(*(t[::3] for t in tensors)).numpy(), wanted[::3]) == 0
        transposed = wanted[:10_000].reshape(100, 100).T
        got = call(*(square.t() for square in squares)).numpy()
        assert wrong(got, np.ascontiguousarray(transposed)) == 0
        for length in range(1, 71):
            part = slice(7 * length, 8 * length)
            first, *others = (tensor[part] for tensor in tensors)
            assert wrong(call(first, *others).numpy(), wanted[part]) == 0
            inplace = getattr(first.clone(), f"{function}_")
            assert wrong(inplace(*others).numpy(), wanted[part]) == 0
    # Negative control: stock is wrong somewhere.
    assert wrong(call(*tensors).numpy(), wanted) > 0


def test_a_session_of_corem_around_it_leaves_both_dtypes_correctly_rounded(case):
    function, x, wanted = case
    call = getattr(torch, function)
    small = np.logical_and.reduce([np.abs(part) < 80 for part in x])
    single = tuple(part[small].astype(np.float32) for part in x)
    with patched("corem"), patched("corem-d"):
        assert wrong(call(*map(torch.from_numpy, x)).numpy(), wanted) == 0
        got = call(*map(torch.from_numpy, single)).numpy()
    expected = correctly_rounded(single if len(x) > 1 else single[0], function=function)
    nan = np.isnan(got) & np.isnan(expected.view(np.float32))
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], expected[~nan])


def test_hard_pairs_of_pow_are_hard_and_its_constants_are_the_generators():
    search = runpy.run_path(str(FOLDER / "hard_cases.py"))
    lines = (FOLDER / "pow" / "hard.txt").read_text(encoding="utf-8").splitlines()
    near = listed("pow")[:, : search["PAIRS"]].T.tolist()
    distances = [search["from_middle"]("pow", *pair) for pair in near]
    assert max(distances) < 2.0**-105
    # 128 bits decide none of these.
    assert distances[0] < 2.0**-160
    assert search["from_middle"]("pow", 1.5, 0.7) > 2.0**-65  # negative control
    core_math = next(iter(search["published"]("pow").values()))
    assert " ".join(f"{n:016x}" for n in core_math[:2]) in lines
    generator = runpy.run_path(str(FOLDER / "pow" / "generate.py"))
    header = generator["HEADER"].read_text(encoding="utf-8").splitlines()
    assert generator["lines"]() == header


@pytest.mark.parametrize("function", [n for n in FUNCTIONS if n != "pow"])
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
@pytest.mark.parametrize("function", [n for n in FUNCTIONS if n != "pow"])
def test_the_search_finds_the_same_cases(function):
    search = runpy.run_path(str(FOLDER / "hard_cases.py"))
    found = search["encodings"](
        search["search"](function, 1)[0] + search["search"](function, -1)[0]
    )
    lines = (FOLDER / function / "hard.txt").read_text(encoding="utf-8").splitlines()
    assert [f"{n:016x}" for n in found] == lines[1 : 1 + len(found)]


@pytest.mark.slow
def test_the_search_finds_the_same_pairs_of_pow():
    search = runpy.run_path(str(FOLDER / "hard_cases.py"))
    kept, _ = search["pow_search"]()
    assert [*map(tuple, listed("pow")[:, : len(kept)].T.tolist())] == kept


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


def cumulated(x):
    """logcumsumexp as libtorch adds it up, in double precision and with MPFR's functions."""
    found, sum_ = [], -np.inf
    for value in x.tolist():
        low, high = min(value, sum_), max(value, sum_)
        grown = correctly_rounded(np.array([low - high]), function="exp").view(np.float64)
        sum_ = high + float(correctly_rounded(grown, function="log1p").view(np.float64)[0])
        found.append(sum_)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_libtorch_adds_up_in_double_precision_is_the_sessions(dtype):
    x = torch.rand(200, generator=torch.Generator().manual_seed(3), dtype=dtype) * 9 - 4
    wanted = cumulated(x).to(dtype)
    with patched("corem"), patched("corem-d"):
        assert torch.equal(torch.logcumsumexp(x, 0), wanted)
    with patched("corem"), patched("canary-d"):  # negative control
        assert torch.equal(torch.logcumsumexp(x, 0), wanted) == (dtype is torch.float32)


def test_variates_that_libtorch_computes_in_double_precision_are_the_sessions():
    def drawn(library, dtype):
        torch.manual_seed(5)
        with patched("corem"), patched(library):
            return torch.empty(500, dtype=dtype).exponential_()

    found = drawn("corem-d", torch.float64)
    # It is -log1p(-u), and canary-d has the other last bit. Rounding to float32 comes after.
    assert torch.equal(
        drawn("canary-d", torch.float64).view(torch.int64), found.view(torch.int64) ^ 1
    )
    assert torch.equal(drawn("corem-d", torch.float32), found.float())


@pytest.mark.slow
def test_kernels_for_gpus_hold_the_functions(ptx, monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")  # as eager operators launch them
    kernels = pytest.importorskip("pytest_udftorch.swap.cuda.double_kernels")

    def code(name):
        constants = {"F": getattr(kernels, name), "BLOCK": 128}
        return ptx(kernels.unary_double, "fp64", **constants)

    for name in doubles.NAMES:
        stock = code(name)
        with patched("corem-d"):
            text = code(name)
        assert text != stock
        assert f"udf_{'trig' if name in ('sin', 'cos') else name}" in text
        assert "udf_" not in stock  # negative control
        # The LLVM of Triton 3.6 aborts where a function takes a structure by value.
        assert not re.search(r"\.param \.align \d+ \.b8 \w+_param_\d", text)
        # A product without .rn may be fused with a sum by NVIDIA's assembler.
        assert "mul.rn.f64" in text
        assert "mul.f64" not in text


def test_libdevice_gets_float64_functions_where_there_is_a_compiler(tmp_path, monkeypatch):
    stock = tmp_path / "libdevice.10.bc"
    chosen = (Part(build_library("corem-d"), (("exp", "float64"), ("pow", "float64"))),)
    assert libdevice.doubles_for_gpus(chosen) == {"exp", "pow"}

    def missing():
        raise CompilerNotFoundError("none")

    monkeypatch.setattr(libdevice, "find_compiler", missing)
    monkeypatch.delenv("UDFTORCH_CLANG", raising=False)
    assert libdevice.doubles_for_gpus(chosen) == frozenset()
    assert libdevice.libdevice_for(chosen, stock) == stock
    # A clang that is named is the only one that is wanted.
    monkeypatch.setenv("UDFTORCH_CLANG", "clang")
    with pytest.raises(CompilerNotFoundError):
        libdevice.libdevice_for(chosen, stock)


def test_eager_cuda_operators_of_float64_go_around_the_others():
    parts = (Part(build_library("corem-d"), (("exp", "float64"), ("pow", "float64"))),)
    launcher = Launcher(Active("doubles", parts))
    made = {"exp": lambda x: "float32's"}
    found = doubles.double_kernels(launcher, made)
    names = {"exp", "exp_", "exp.out", "_foreach_exp", "_foreach_exp_"}
    assert set(found) == names  # pow has two arguments
    assert found["exp"](torch.ones(1)) == "float32's"
    # Negative control: without float64 functions nothing is made.
    assert doubles.double_kernels(Launcher(Active()), made) == {}


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
    journal = float64_check.Chunks(tmp_path / "journal", name)
    for first in range(0, count // 2, count // 4):
        journal.finish(float64_check.judge("corem-d", "baseline", function, first, count // 4))
    again = float64_check.Chunks(tmp_path / "journal", name)
    with ThreadPoolExecutor(1) as pool:
        assert sorted(again.done) == [0, count // 4]
        float64_check.run(pool, again, function, "baseline", count, 1)
    digests = [int(part["digest"], 16) for part in again.done.values()]
    assert sum(digests) % 2**64 == int(right["digest"], 16)
    with pytest.raises(JournalError, match="differs in function"):
        float64_check.Chunks(tmp_path / "journal", {"function": "another"})


def test_a_digest_is_compared_with_the_one_that_was_judged(capsys):
    count = 1 << 13
    judged = float64_check.judge("corem-d", "baseline", "log", 0, count)
    figures = {"log": {"arguments": count, "digest": judged["digest"]}, "exp": {"arguments": 1}}
    options = argparse.Namespace(functions=["log"], level="baseline", jobs=1)
    found = float64_check.compare(options, figures)
    assert found["log"]["same_digest"]["arguments"] == count
    assert found["exp"] == figures["exp"]
    assert judged["digest"] in capsys.readouterr().out
    # Negative control: another digest is an error that says what to do.
    figures["log"]["digest"] = f"{int(judged['digest'], 16) ^ 1:016x}"
    with pytest.raises(SystemExit, match="Run without --digest"):
        float64_check.compare(options, figures)


MPFR_OF_CERTIFICATES = """
import sys
from benches.experiments import float64_check
from pytest_udftorch.prove.verify.reference.checker import checker_file, load_checker
if sys.argv[1] == "after":
    float64_check.harness()
print(load_checker(checker_file()).mpfr_version)
"""


def test_certificates_name_one_mpfr_whatever_was_loaded_before():
    said = {
        subprocess.run(
            [sys.executable, "-c", MPFR_OF_CERTIFICATES, when],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for when in ("alone", "after")
    }
    assert len(said) == 1, said
