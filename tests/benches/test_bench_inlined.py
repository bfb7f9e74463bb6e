# SPDX-License-Identifier: Apache-2.0
"""Functions inlined in machine code are found, and calls of symbols are told from them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benches import stored
from benches.experiments import inlined

SOURCE = """
extern "C" float expf(float);
namespace at::native {
namespace {
__attribute__((noinline, used)) void polynomial_kernel(float *x) {
  float k = __builtin_rintf(*x * 1.44269504f), r = *x - k * 0.6931471805599453f;
  *x = 1 + r * (1 + r * (0.5f + r * 0.166666f)) + k;
}
__attribute__((noinline, used)) void wide_kernel(double *x) {
  *x = *x * 1.4426950408889634 + 1;
}
__attribute__((noinline, used)) void calling_kernel(float *x) { *x = expf(*x) + 1; }
__attribute__((noinline, used)) void plain_kernel(float *x) { *x = *x * 1.5f + 0.69f; }
}
void all(float *x, double *y) {
  polynomial_kernel(x); wide_kernel(y); calling_kernel(x); plain_kernel(x);
}
}
extern "C" void mkl_vml_fake(float *x) { *x = *x * 1.44269504f; }
"""


def built(folder, *options):
    (folder / "kernels.cpp").write_text(SOURCE)
    made = folder / "kernels.so"
    subprocess.run(["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", *options,
                    "kernels.cpp", "-o", str(made), "-lm"], cwd=folder, check=True)  # fmt: skip
    return made


def test_inlined_polynomials_are_found_and_calls_are_not(tmp_path):
    found = inlined.measure(built(tmp_path))
    assert found["kernels"] == {
        "polynomial_kernel": {"families": ["exp", "log"], "calls": [], "functions": 1},
        "wide_kernel": {"families": ["exp"], "calls": [], "functions": 1},
    }
    assert found["others"] == {"MKL": 1}


def test_constants_that_the_compiler_writes_into_instructions_are_found(tmp_path):
    (tmp_path / "kernels.cpp").write_text(
        "namespace at::native { void bits_kernel(unsigned *x) { *x = 0x3fb8aa3bu; } }"
    )
    made = tmp_path / "kernels.so"
    subprocess.run(["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "kernels.cpp", "-o", str(made)],
                   cwd=tmp_path, check=True)  # fmt: skip
    assert set(inlined.measure(made)["kernels"]) == {"bits_kernel"}


def test_a_stripped_library_is_refused(tmp_path, capsys):
    made = built(tmp_path, "-s")
    with pytest.raises(inlined.InlinedError, match="is stripped"):
        inlined.measure(made)
    assert inlined.main(["--library", str(made)]) == 2
    assert "symbol table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "owner", "kernel"),
    [
        (
            "void at::native::AVX2::vectorized_loop<at::native::(anonymous namespace)::gelu_kernel("
            "at::TensorIteratorBase&)::{lambda()#1}>(char**, long)", "ATen", "gelu_kernel",
        ),
        ("at::vec::AVX512::Vectorized<float> at::native::AVX512::vectorized_gelu<float, true>(at::"
         "vec::AVX512::Vectorized<float>)", "ATen", "vectorized_gelu"),
        ("Sleef_expf16_u10avx512f", "SLEEF", ""),
        ("torch::autograd::generated::Log2Backward0::apply()", "autograd", ""),
    ],
)  # fmt: skip
def test_names(name, owner, kernel):
    assert inlined.owner(name) == owner
    assert not kernel or inlined.kernel(name) == kernel


def test_every_kernel_that_was_found_is_accounted_for():
    """A kernel that torch inlines a function in has to be overridden, or said to stay stock."""
    document = stored.load(Path(stored.RESULTS) / "inlined.json")
    assert set(document["kernels"]) == set(inlined.WAYS)
    overridden = {n for n, way in inlined.WAYS.items() if "overridden" in way}
    assert {"vectorized_gelu", "erf_kernel", "cpu_flash_attention"} <= overridden
