# SPDX-License-Identifier: Apache-2.0
"""The float-float form in Triton kernels: PTX without double precision on the ordinary path."""

from __future__ import annotations

import re

import pytest
import torch
from parameters import mostly_slow

from pytest_udftorch.cli import MISUSE, main
from pytest_udftorch.errors import SessionStateError
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import FUNCTIONS as KNOWN
from pytest_udftorch.swap.session.session import patched
from pytest_udftorch.swap.toolchain.libdevice import libdevice_for
from pytest_udftorch.swap.toolchain.selection import Part, cuda_id, selection_id
from pytest_udftorch.swap.toolchain.shared_library import build_library

triton = pytest.importorskip("triton")

FUNCTIONS = find_library("corem-ff").function_names
SOME = ("exp", "sin", "pow")
#: What a float-float path hands on to: corem in double precision.
IN_DOUBLE = re.compile(r"_in_double|_accurate")


@pytest.fixture(scope="module")
def kernels(kernel_file):
    """One kernel for each function."""
    text = ""
    for name in FUNCTIONS:
        second = ", tl.load(p + n + i)" if KNOWN[name].arity == 2 else ""
        text += f"""

@triton.jit
def of_{name}(p, o, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(o + i, libdevice.{name}(tl.load(p + i){second}))
"""
    return kernel_file(text)


@pytest.fixture
def form_ptx(ptx):
    def of(kernels, function: str) -> str:
        return ptx(getattr(kernels, f"of_{function}"), capability=89, n=128)

    return of


def bodies(text: str) -> dict[str, str]:
    """Return the functions of PTX: name -> body."""
    found = {}
    for match in re.finditer(r"\.(?:entry|func)\s[^{;]*\{", text):
        names = re.findall(r"[\w$]+(?=\()", match.group())
        end = text.index("\n}", match.end())
        found[names[-1]] = text[match.end() : end]
    return found


@pytest.mark.parametrize("function", mostly_slow(FUNCTIONS, SOME))
def test_double_precision_is_left_to_the_rare_branch(kernels, function, form_ptx):
    with patched("corem", cuda_form="float-float"):  # one libdevice for all functions
        text = form_ptx(kernels, function)
    parts = bodies(text)
    ordinary = {n: b for n, b in parts.items() if not IN_DOUBLE.search(n)}
    assert set(ordinary) == {f"of_{function}"}  # with the function inlined
    assert all("f64" not in body for body in ordinary.values())
    assert any("f64" in body for body in parts.values())
    # The same bits as on a CPU: every operation rounded to nearest by itself.
    assert any("fma.rn.f32" in body for body in ordinary.values())
    assert ".ftz" not in text
    assert ".approx" not in text
    # A product without .rn may be fused with a sum by NVIDIA's assembler.
    for body in ordinary.values():
        products = set(re.findall(r"mul\.f32\s+(%\w+),", body))
        negated = re.findall(r"neg\.f32\s+(%\w+), (%\w+);", body)
        products |= {result for result, operand in negated if operand in products}
        sums = re.findall(r"(?:add|sub)\.f32\s+%\w+, (%\w+), (%\w+)", body)
        assert bool(sums) == ("fma.rn.f32" in body)
        assert not {r for pair in sums for r in pair} & products


def test_forms_are_kept_apart_and_come_back(kernels, form_ptx):
    with patched("corem", cuda_form="double"):
        double = form_ptx(kernels, "exp")
        with patched("corem", cuda_form="float-float"):
            pairs = form_ptx(kernels, "exp")
            assert form_ptx(kernels, "exp") == pairs
        assert form_ptx(kernels, "exp") == double
    assert "udf_expf_in_double" not in double
    assert "udf_expf_in_double" in pairs


def test_a_function_without_the_form_stays_in_double(kernels, form_ptx, tmp_path):
    tables = {"exp": "", "log": ""}
    for library, functions in (("corem", ("exp", "log")), ("corem-ff", ("exp",))):
        for name in functions:
            found = find_library(library).functions[name, "float32"]
            tables[name] = (
                f'[functions.{name}.float32]\nsource = "{name}.c"\n'
                f'fast = "{found.fast}"\naccurate = "{found.accurate}"\n'
            )
            folder = tmp_path / library
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.c").write_text(f'#include "{found.source}"\n')
        other = 'float_float = "../corem-ff"\n' if library == "corem" else ""
        (folder / "udf.toml").write_text(
            f'[library]\nname = "part-of-{library}"\nversion = "1"\n{other}'
            + "".join(tables[name] for name in functions)
        )
    with patched(tmp_path / "corem", cuda_form="float-float") as session:
        assert "in_double" in form_ptx(kernels, "exp")
        text = form_ptx(kernels, "log")
        chosen = session.cuda_forms()
    assert "__udf_logf" in text
    assert "fma.rn.f64" in text
    assert "in_double" not in text
    assert chosen == {"exp": "float-float", "log": "double"}


def test_every_function_of_corem_has_the_form():
    with patched("corem", cuda_form="float-float") as session:
        chosen = session.cuda_forms()
    assert tuple(chosen) == session.functions
    assert set(chosen.values()) == {"float-float"}


def test_a_session_tells_the_form():
    with patched("corem", cuda_form="double") as session:
        assert set(session.cuda_forms().values()) == {"double"}
        assert "cuda" not in repr(session)
    with patched("std", cuda_form="float-float") as session:
        assert session.cuda_forms() == {}
    session = patched("corem", cuda_form="float-float")
    assert "cuda=float-float" in repr(session)
    with pytest.raises(SessionStateError, match="was not entered yet"):
        session.cuda_forms()


def test_a_session_of_another_form_compiles_anew():
    with patched("corem", cuda_form="double"):
        outer = follower.active
        with patched("corem", functions=("exp",), cuda_form="float-float"):
            assert follower.active.key != outer.key
            assert len(follower.active.parts) == 2
        assert follower.active.key == outer.key


def test_the_key_follows_the_sources_of_the_other_form(tmp_path, monkeypatch):
    """libdevice of the float-float form is made again when its sources change."""
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "cache"))
    for name, extra in (("mine", 'float_float = "../pairs"\n'), ("pairs", "")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "udf.toml").write_text(
            f'[library]\nname = "{name}"\nversion = "1"\n{extra}'
            '[functions.exp.float32]\nsource = "e.c"\nscalar = "f"\n'
        )
        (folder / "e.c").write_text("float f(float x) { return x; }\n")
    build = build_library(tmp_path / "mine")
    keys = (("exp", "float32"),)
    double, pairs = Part(build, keys), Part(build, keys, "float-float")
    assert cuda_id([double]) == selection_id([double]) == selection_id([pairs])
    first = cuda_id([pairs])
    assert first != cuda_id([double])
    (tmp_path / "pairs" / "e.c").write_text("float f(float x) { return x + 1.0f; }\n")
    assert cuda_id([pairs]) not in (first, cuda_id([double]))
    from pytest_udftorch.swap.compiled.triton import stock_libdevice

    stock = stock_libdevice(triton.__file__)
    assert libdevice_for((pairs,), stock) != libdevice_for((double,), stock)


@pytest.mark.parametrize("paths", ['scalar = "f"', 'fast = "quick"\naccurate = "f"'])
def test_a_udf_may_hand_structures_to_its_functions(paths, ptx, kernel_file, tmp_path):
    """The LLVM of Triton 3.6 ends the process where one is a parameter of a GPU's function."""
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "structures"\nversion = "1"\n'
        f'[functions.exp.float32]\nsource = "e.c"\n{paths}\nmax_ulp = 9\n'
    )
    (tmp_path / "e.c").write_text(
        # Of a small structure LLVM makes numbers.
        "struct words { unsigned long w[5]; };\n"
        "static __attribute__((noinline)) double whole(struct words a, int n) {\n"
        "  double s = 0;\n"
        "  a.w[n & 3] += 3;\n"
        "  for (int i = 0; i < 5; ++i) s += a.w[i] * (double)a.w[(i + (n & 3)) % 5];\n"
        "  return s; }\n"
        "float f(float x) { struct words a = {{1, x, 2, 3, 4}};\n"
        "  return (float)(whole(a, (int)x) + whole(a, 2)); }\n"
        "float quick(float x, int *hard) { *hard = x > 1; return 1 + x; }\n"
    )
    kernels = kernel_file("""

@triton.jit
def of_exp(p, o):
    tl.store(o, libdevice.exp(tl.load(p)))
""")
    with patched(tmp_path):
        text = ptx(kernels.of_exp)
    assert re.search(r"\.func .*\bwhole", text)
    assert not re.search(r"\.param \.align \d+ \.b8 \w+_param_\d", text)


def test_the_timed_kernel_holds_the_function_it_names(ptx):
    """What ``udftorch setup cuda-form`` runs on a GPU, compiled for one that is not there."""
    from pytest_udftorch.measure.timing import cuda_forms as cuda_timing

    for name in cuda_timing.DOMAINS:
        with patched("corem", cuda_form="float-float"):
            text = ptx(cuda_timing.apply_function, capability=89, WHICH=name, BLOCK=128)
        assert f"udf_{name}f_in_double" in text


def test_timings_are_averaged_as_ratios():
    from pytest_udftorch.measure.timing.cuda_forms import FormTiming, mean_ns

    timings = [
        FormTiming("exp", {"double": 4.0, "float-float": 1.0}),
        FormTiming("log", {"double": 1.0, "float-float": 1.0}),
    ]
    assert timings[0].ratio == 4.0
    assert mean_ns(timings) == pytest.approx({"double": 2.0, "float-float": 1.0})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_timing_without_a_gpu_is_refused(capsys):
    assert main(["setup", "cuda-form"]) == MISUSE
    assert "torch sees none" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_both_forms_are_timed_and_stored(tmp_path, monkeypatch, capsys):
    from pytest_udftorch.swap.toolchain.cuda_form import measurements

    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path))
    assert main(["setup", "cuda-form"]) == 0
    assert "faster:" in capsys.readouterr().out
    assert set(measurements()) == {torch.cuda.get_device_name()}
