# SPDX-License-Identifier: Apache-2.0
"""The passes for GPUs: what their code computes, how it looks in PTX, and what they refuse.

The approximations that ``udf-branchless`` starts with are instructions of a GPU. Here functions
in C stand in for them, as accurate as PTX promises and no better.
"""

import ctypes
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from toolchain import Llvm

MODULE = """
declare double @llvm.sqrt.f64(double)
define double @quotient(double %a, double %b) {
  %q = fdiv double %a, %b
  ret double %q
}
define double @reciprocal(double %a) {
  %q = fdiv double 1.0, %a
  ret double %q
}
define double @root(double %x) {
  %y = call double @llvm.sqrt.f64(double %x)
  ret double %y
}
"""
NAMES = ("quotient", "reciprocal", "root")

#: PTX ISA, rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: the result has 20 bits after the point,
#: and the lower 32 bits of the encoding are zero.
APPROXIMATIONS = """
#include <math.h>
#include <string.h>
static double cut(double y) {
  unsigned long long u;
  memcpy(&u, &y, sizeof u);
  u &= ~0ull << (52 - BITS);
  memcpy(&y, &u, sizeof y);
  return y;
}
double approximate_rcp(double x) { return cut(1 / x); }
double approximate_rsqrt(double x) { return cut(1 / sqrt(x)); }
"""
NVVM = {
    "llvm.nvvm.rcp.approx.ftz.d": "approximate_rcp",
    "llvm.nvvm.rsqrt.approx.ftz.d": "approximate_rsqrt",
}


def branchless(llvm: Llvm, folder: Path, text: str, *names: str) -> Path:
    source, out = folder / "module.ll", folder / "branchless.ll"
    source.write_text(text)
    llvm.must(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}"),
            *("-passes=udf-branchless,verify", "-S", source, "-o", out),
            *(f"-udf-branchless-functions={','.join(names)}",) * bool(names),
        ]
    )
    return out


def load(llvm: Llvm, folder: Path, bits: int = 20, *, replaced: bool = True) -> ctypes.CDLL:
    """The functions for this CPU, with approximations of ``bits`` bits."""
    text = branchless(llvm, folder, MODULE, *NAMES).read_text() if replaced else MODULE
    for intrinsic, stand_in in NVVM.items():
        assert text.count(intrinsic) == (1 + (1 + ("rcp" in intrinsic)) if replaced else 0)
        text = text.replace(intrinsic, stand_in)
    functions, approximations = folder / "functions.ll", folder / "approximations.c"
    functions.write_text(text)
    approximations.write_text(APPROXIMATIONS.replace("BITS", str(bits)))
    library = folder / "library.so"
    llvm.must(
        [
            *(llvm.tool("clang"), "-O1", "-ffp-contract=off", "-shared", "-fPIC"),
            *("-Wno-override-module", functions, approximations, "-o", library, "-lm"),
        ]
    )
    loaded = ctypes.CDLL(str(library))
    for name in NAMES:
        function = getattr(loaded, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_double] * (1 + (name == "quotient"))
    return loaded


def normal_numbers(count: int) -> npt.NDArray[np.float64]:
    """Doubles of many exponents; their quotients are normal as well."""
    generator = np.random.default_rng(19)
    plain = generator.uniform(1, 2, count) * np.exp2(generator.integers(-500, 500, count))
    return np.concatenate([plain, [1.0, 2.0, np.nextafter(2.0, 1.0), np.nextafter(1.0, 2.0), 3.0]])


def worst_quotient(library: ctypes.CDLL) -> float:
    """Largest error of a quotient, in units in the last place."""
    worst = 0.0
    numbers = normal_numbers(2000).tolist()
    for a, b in zip(numbers, reversed(numbers), strict=True):
        for got, exact in (
            (library.quotient(a, b), Fraction(a) / Fraction(b)),
            (library.reciprocal(b), 1 / Fraction(b)),
        ):
            worst = max(
                worst, float(abs(Fraction(got) - exact) / Fraction(np.spacing(float(exact))))
            )
    return worst


def worst_root(library: ctypes.CDLL) -> float:
    """Largest error of a root, in units in the last place: (y - r) = (y^2 - x) / (y + r)."""
    worst = 0.0
    for x in normal_numbers(2000).tolist():
        got, rounded = library.root(x), float(np.sqrt(x))
        error = abs(Fraction(got) ** 2 - Fraction(x)) / (Fraction(got) + Fraction(rounded))
        worst = max(worst, float(error / Fraction(np.spacing(rounded))))
    return worst


def test_quotients_and_roots_err_by_less_than_two_units(llvm: Llvm, tmp_path: Path) -> None:
    library = load(llvm, tmp_path)
    assert 0.5 < worst_quotient(library) < 2
    assert 0.5 < worst_root(library) < 2
    assert [str(library.root(x)) for x in (0.0, -0.0)] == ["0.0", "-0.0"]


def test_the_operations_that_are_replaced_are_correctly_rounded(llvm: Llvm, tmp_path: Path) -> None:
    library = load(llvm, tmp_path, replaced=False)
    assert worst_quotient(library) <= 0.5
    assert worst_root(library) <= 0.5 + 2**-50


def test_an_approximation_of_fewer_bits_is_noticed(llvm: Llvm, tmp_path: Path) -> None:
    """The control of the first test: a step of third order cannot make 53 bits of 12."""
    library = load(llvm, tmp_path, bits=12)
    assert worst_quotient(library) > 2
    assert worst_root(library) > 2


def ptx(llvm: Llvm, folder: Path, module: Path) -> str:
    out = folder / f"{module.stem}.ptx"
    llvm.must([llvm.tool("llc"), "-mcpu=sm_80", "-O3", module, "-o", out])
    return out.read_text()


def test_ptx_has_no_subroutine_of_division(llvm: Llvm, tmp_path: Path) -> None:
    text = 'target triple = "nvptx64-nvidia-cuda"\n' + MODULE
    plain = tmp_path / "plain.ll"
    plain.write_text(text)
    stock = ptx(llvm, tmp_path, plain)
    assert stock.count("rn.f64") >= 3, "the control"
    assert ("div.rn.f64" in stock, "sqrt.rn.f64" in stock, "approx" in stock) == (True, True, False)
    ours = ptx(llvm, tmp_path, branchless(llvm, tmp_path, text, *NAMES))
    assert "div." not in ours
    assert "sqrt.rn" not in ours
    assert ours.count("rcp.approx.ftz.f64") == 2
    assert ours.count("rsqrt.approx.ftz.f64") == 1
    assert "bra" not in ours
    assert ours.count("fma.rn.f64") == 3 + 3 + 3


HIDDEN = """
define double @helper(double %a, double %b) noinline {
  %q = fdiv double %a, %b
  ret double %q
}
define double @middle(double %a) {
  %q = call double @helper(double %a, double %a)
  ret double %q
}
define double @calls(double %a) {
  %q = call double @middle(double %a)
  ret double %q
}
define <2 x double> @vector(<2 x double> %a) {
  %q = fdiv <2 x double> %a, %a
  ret <2 x double> %q
}
define double @constrained(double %a) strictfp {
  %q = call double @llvm.experimental.constrained.sqrt.f64(
    double %a, metadata !"round.tonearest", metadata !"fpexcept.strict") strictfp
  ret double %q
}
declare double @llvm.experimental.constrained.sqrt.f64(double, metadata, metadata)
declare double @declared(double)
define i32 @__nv_hard(float %x) { ret i32 0 }
define float @__nv_whole(float %x) { ret float %x }
define float @__nv_twice(float %x) { ret float %x }
define float @__nv_udf_twice_hard(float %x) { ret float %x }
define float @other(float %x) { ret float %x }
"""
X86 = 'target triple = "x86_64-unknown-linux-gnu"\n'

BRANCHLESS_ERRORS = {
    "no functions": ("", "", ["is given no functions", "-udf-branchless-functions"]),
    "missing": ("", "nowhere", ["has no function 'nowhere'", "correct the name"]),
    "declared": ("", "declared", ["only declares function 'declared'", "a module that defines it"]),
    "one of two": ("", "other,nowhere", ["has no function 'nowhere'"]),
    "CPU": (X86, "middle", ["is for x86_64-unknown-linux-gnu", "compile it for nvptx64"]),
    "out of line": ("", "calls", ["function 'calls' still divides", "in 'helper' on double"]),
    "vector": ("", "vector", ["in 'vector' on <2 x double>", "neither vectorised nor constrained"]),
    "constrained": ("", "constrained", ["function 'constrained' still divides or takes a root"]),
}
SPLIT_ERRORS = {
    "no functions": ("", ["is given no functions", "-udf-split-functions"]),
    "missing": ("__nv_nowhere", ["'__nv_nowhere' of module", "the module does not define it"]),
    "prefix": ("other", ["'other' of module", "its name does not begin with __nv_"]),
    "type": ("__nv_hard", ["it has the type i32 (float)", "only functions from float to float"]),
    "taken": ("__nv_twice", ["the module already has '__nv_udf_twice_hard'", "split each"]),
    "repeated": ("__nv_whole,__nv_whole", ["named twice"]),
}


def failure(llvm: Llvm, folder: Path, run: str, option: str, names: str, text: str) -> str:
    """What a pass that must fail says."""
    (folder / "module.ll").write_text(text)
    done = llvm.run(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", f"-passes={run}"),
            *((f"{option}={names}",) if names else ()),
            *("-S", folder / "module.ll", "-o", folder / "out.ll"),
        ]
    )
    assert done.returncode == 1, done.stderr
    assert f"error: {run}: " in done.stderr
    assert "Stack dump" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("case", BRANCHLESS_ERRORS)
def test_branchless_error(llvm: Llvm, tmp_path: Path, case: str) -> None:
    triple, names, parts = BRANCHLESS_ERRORS[case]
    option = "-udf-branchless-functions"
    said = failure(llvm, tmp_path, "udf-branchless", option, names, triple + HIDDEN)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("case", SPLIT_ERRORS)
def test_split_error(llvm: Llvm, tmp_path: Path, case: str) -> None:
    names, parts = SPLIT_ERRORS[case]
    said = failure(llvm, tmp_path, "udf-split", "-udf-split-functions", names, HIDDEN)
    assert all(part in said for part in parts), said


def test_what_the_errors_spoil_is_correct(llvm: Llvm, tmp_path: Path) -> None:
    """The control of the errors above."""
    branchless(llvm, tmp_path, HIDDEN, "helper", "other")
    out = tmp_path / "split.ll"
    llvm.must(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", "-passes=udf-split,verify"),
            *("-udf-split-functions=__nv_whole", "-S", tmp_path / "module.ll", "-o", out),
        ]
    )
    assert all(f"@__nv_udf_whole_{part}(" in out.read_text() for part in ("value", "hard", "rest"))


def test_split_parts_are_the_function(llvm: Llvm, tmp_path: Path) -> None:
    """Executed: a function in parts is the function, and never in doubt."""
    module, out, library = (tmp_path / name for name in ("m.ll", "split.bc", "split.so"))
    module.write_text(
        "define float @__nv_f(float %x, float %y) {\n  %z = fsub float %x, %y\n  ret float %z\n}\n"
    )
    llvm.must(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", "-passes=udf-split,verify"),
            *("-udf-split-functions=__nv_f", module, "-o", out),
        ]
    )
    llvm.must(
        [
            *(llvm.tool("clang"), "-shared", "-fPIC", "-Wno-override-module"),
            *(out, "-o", library),
        ]
    )
    loaded = ctypes.CDLL(str(library))
    results = {}
    for part, kind in (("value", ctypes.c_float), ("hard", ctypes.c_int), ("rest", ctypes.c_float)):
        call = getattr(loaded, f"__nv_udf_f_{part}")
        call.restype, call.argtypes = kind, [ctypes.c_float] * 2
        results[part] = call(5.0, 1.5)
    assert results == {"value": 3.5, "hard": 0, "rest": 3.5}


def test_a_structure_given_by_address_is_still_the_callees_own(llvm: Llvm, tmp_path: Path) -> None:
    """Executed: what the callee writes into its structure, the caller does not see."""
    source, module, library = (tmp_path / name for name in ("m.c", "m.ll", "m.so"))
    # More than 16 bytes: the ABI of x86-64 takes smaller ones in registers.
    source.write_text(
        "struct three { double a, b, c; };\n"
        "static __attribute__((noinline)) double twice(struct three s, double x) {\n"
        "  s.a += x; s.c += s.a; return s.c; }\n"
        "double f(double x) { struct three s = {x, 1, 2};\n"
        "  double first = twice(s, 1), second = twice(s, 10);\n"
        "  return first + 100 * second + 10000 * s.a; }\n"
    )
    found = {}
    for passes in ("verify", "udf-by-address,verify"):
        llvm.must([*(llvm.tool("clang"), "-O1", "-S", "-emit-llvm", "-fPIC", source), "-o", module])
        assert "byval" in module.read_text()
        llvm.must(
            [
                *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", f"-passes={passes}"),
                *("-S", module, "-o", module),
            ]
        )
        assert ("byval" in module.read_text()) == (passes == "verify")
        llvm.must([*(llvm.tool("clang"), "-O3", "-shared", module, "-o", library)])
        loaded = ctypes.CDLL(str(library.rename(tmp_path / f"{len(found)}.so")))
        loaded.f.restype, loaded.f.argtypes = ctypes.c_double, [ctypes.c_double]
        found[passes] = loaded.f(3.0)
    assert set(found.values()) == {6.0 + 100 * 15.0 + 10000 * 3.0}
