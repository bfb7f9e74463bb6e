# SPDX-License-Identifier: Apache-2.0
"""Fast and accurate paths as functions of their own, for eager CUDA, run here on the CPU."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, FUNCTIONS
from pytest_udftorch.swap.toolchain import libdevice
from pytest_udftorch.swap.toolchain.bitcode import failed
from pytest_udftorch.swap.toolchain.compiler import FLAGS, find_compiler, resolve_cpu_level
from pytest_udftorch.swap.toolchain.job import run_stages
from pytest_udftorch.swap.toolchain.shared_library import build_library

COREM = find_library("corem")


def encodings() -> np.ndarray:
    """Floats of every exponent and sign, the ends of domains and their neighbours."""
    ends = np.array([0, 1, -1, np.inf, -np.inf, np.nan, 2], dtype=np.float32)
    near = [ends, np.nextafter(ends, np.float32(9)), np.nextafter(ends, np.float32(-9))]
    generator = np.random.default_rng(11)
    fractions = generator.integers(0, 1 << 23, size=(512, 4), dtype=np.uint32)
    rest = (np.arange(512, dtype=np.uint32) << 23)[:, None] | fractions
    return np.concatenate([*near, rest.ravel().view(np.float32)])


class Split:
    """The three functions of a library's function, compiled for this CPU."""

    def __init__(self, folder, library, name, monkeypatch):
        # The divisions without a branch start with instructions of a GPU.
        kept = [p for p in libdevice._SPLIT_PASSES if p != "udf-branchless"]
        assert len(kept) == len(libdevice._SPLIT_PASSES) - 1
        monkeypatch.setattr(libdevice, "_SPLIT_PASSES", kept)
        compiler, function = find_compiler(), library.functions[name, "float32"]
        flags = [f for f in FLAGS if f != "-fvisibility=hidden"]
        flags += CPU_LEVELS[resolve_cpu_level(None)][0]
        texts, *steps = libdevice.split_paths(library, function, compiler, flags)
        run_stages([[step] for step in steps], texts, folder, failed)
        piece = folder / steps[-1].arguments[-1]
        shared = folder / f"{name}.so"
        command = [compiler.path, "-shared", "-fPIC", "-O2", piece, "-o", shared]
        subprocess.run(command, check=True, capture_output=True)
        loaded = ctypes.CDLL(shared)
        c_name = FUNCTIONS[name].c_name("float32")
        kinds = {"float": ctypes.c_float, "i32": ctypes.c_int}
        for part, kind in libdevice.SPLIT.items():
            call = getattr(loaded, f"__udf_{c_name}_{part}")
            call.restype, call.argtypes = kinds[kind], [ctypes.c_float]
            setattr(self, part, call)

    def __call__(self, x):
        return self.rest(x) if self.hard(x) else self.value(x)


def different(split, build, name):
    """Return the inputs where the encoding is not the whole function's; all NaNs are one."""
    whole = build.scalar_function(name)
    x = encodings()
    got, want = (np.array([f(v) for v in x.tolist()], dtype=np.float32) for f in (split, whole))
    return x[(got.view(np.uint32) != want.view(np.uint32)) & ~(np.isnan(got) & np.isnan(want))]


#: Functions with a path of their own for GPUs.
FOR_GPUS = [n for n in COREM.function_names if COREM.functions[n, "float32"].gpu]


def test_some_functions_have_a_path_for_gpus():
    assert {"asin", "acos", "exp", "erfc"} <= set(FOR_GPUS)
    assert "log" not in FOR_GPUS


@pytest.mark.parametrize("name", ["atanh", "log", *FOR_GPUS])
def test_the_parts_make_the_function_again(name, tmp_path, monkeypatch):
    split = Split(tmp_path, COREM, name, monkeypatch)
    assert different(split, build_library(COREM), name).size == 0


def test_where_a_function_has_no_value_it_is_not_hard(tmp_path, monkeypatch):
    split = Split(tmp_path, COREM, "log", monkeypatch)
    outside = [-1.0, -np.inf, -1e-45, -3e38]
    assert [split.hard(x) for x in outside] == [0] * 4
    assert all(np.isnan(split.value(x)) for x in outside)
    assert all(split.hard(x) for x in (0.0, -0.0, np.inf, np.nan))


def test_a_domain_that_is_too_narrow_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(libdevice._OUTSIDE, "log", "x < 1")
    split = Split(tmp_path, COREM, "log", monkeypatch)
    found = different(split, build_library(COREM), "log")
    assert found.size
    assert np.all((found >= 0) & (found < 1))


def test_a_library_that_claims_less_keeps_its_values_everywhere(tmp_path, monkeypatch):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n[functions.log.float32]\n'
        'source = "l.c"\nfast = "fast"\naccurate = "accurate"\nmax_ulp = 2\n'
    )
    (tmp_path / "l.c").write_text(
        "static inline float fast(float x, int *hard) { *hard = 0; return x; }\n"
        "static float accurate(float x) { return x; }\n"
    )
    split = Split(tmp_path, find_library(tmp_path), "log", monkeypatch)
    assert split.value(-2.0) == -2.0
