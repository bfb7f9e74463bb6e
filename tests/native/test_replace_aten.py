# SPDX-License-Identifier: Apache-2.0
"""udf-replace on kernels from ATen's own headers, executed.

The oracle is the same kernels compiled without the pass and linked against a stand-in math
library that forwards each name to the same UDF.
"""

import ctypes
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from toolchain import LEVELS, SOURCES, Level, Llvm, missing_on_cpu

FUNCTIONS = ("expf", "expm1f", "logf")
CAPABILITY = {"avx2": "AVX2", "avx512": "AVX512"}
# As PyTorch compiles its kernels.
FLAGS = ("-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")


@dataclass
class Kernels:
    """The kernels of one shared library."""

    path: Path

    def run(self, name: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
        """The encodings of a kernel's results; two dimensions for log_softmax."""
        out = np.empty_like(x)
        sizes = [ctypes.c_int64(n) for n in x.shape]
        getattr(ctypes.CDLL(str(self.path)), f"aten_{name}")(
            *sizes, ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        )
        return out.view(np.uint32)


@dataclass
class Aten:
    """The kernels in three makes, the names that objects leave to the linker, and the report."""

    level: Level
    replaced: Kernels
    linked: Kernels
    one_bit_wrong: Kernels
    forms: Path
    needs_without: set[str]
    needs_with: set[str]
    report: list[dict[str, object]]


def build_forms(llvm: Llvm, folder: Path, level: Level, manifest: Path, *extra: str) -> Path:
    out = folder / f"forms{len(list(folder.glob('forms*')))}"
    llvm.widen(SOURCES / "aten_udf.c", manifest, out, level, "-c", *extra)
    return out


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == "avx2" else pytest.mark.slow) for name in CAPABILITY
    ],
)
def aten(
    request: pytest.FixtureRequest, llvm: Llvm, tmp_path_factory: pytest.TempPathFactory
) -> Aten:
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    level = LEVELS[request.param]
    why = missing_on_cpu(level)
    if why:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp(f"aten-{level.name}")
    clang = llvm.tool("clang++")

    # The UDFs: bitcode for the pass, objects for the linker.
    entries, targets = [], {}
    lanes = max(level.lanes(32))
    for name in FUNCTIONS:
        forms = {"scalar": f"__udf_{name}", "array": f"__udf_{name}_array"}
        forms |= {f"v{n}": f"__udf_{name}_v{n}" for n in level.lanes(32)}
        udf = {"fast": f"udf_{name}_fast", "accurate": f"udf_{name}_accurate"}
        entries.append({"name": name, "type": "float", "arity": 1, **udf, "forms": forms})
        targets[name] = f"__udf_{name}"
        targets[f"Sleef_{name}{lanes}_u10"] = f"__udf_{name}_v{lanes}"
        if name != "expm1f":  # LLVM has no intrinsic for it
            targets[f"llvm.{name[:-1]}.f32"] = f"__udf_{name}"
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"functions": entries}))
    bitcode = build_forms(llvm, folder, level, manifest, "-emit-llvm")
    right = build_forms(llvm, folder, level, manifest)
    wrong = build_forms(llvm, folder, level, manifest, "-DULP_ERROR_FAST=1")
    map_path, report = folder / "map.json", folder / "report.json"
    map_path.write_text(json.dumps({"bitcode": bitcode.name, "targets": targets}))

    # The kernels: one front-end run, then code with and without the pass.
    raw, stock, replaced = (folder / f"aten.{n}" for n in ("bc", "stock.o", "replaced.o"))
    capability = CAPABILITY[level.name]
    includes = [part for p in cpp_extension.include_paths() for part in ("-isystem", p)]
    machine = [*FLAGS, *level.march]
    llvm.must(
        [
            *(clang, "-std=c++20", *machine, *includes, "-Xclang", "-disable-llvm-passes"),
            *(f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}"),
            *("-emit-llvm", "-c", SOURCES / "aten.cpp", "-o", raw),
        ]
    )
    llvm.must([clang, *machine, "-c", raw, "-o", stock])
    llvm.must(
        [
            *(clang, *machine, *llvm.loads, "-mllvm", f"-udf-replace-map={map_path}"),
            *("-mllvm", f"-udf-report={report}", "-c", raw, "-o", replaced),
        ]
    )
    stand_in = folder / "stand_in.o"
    llvm.must([llvm.tool("clang"), *machine, "-c", SOURCES / "stand_in.c", "-o", stand_in])

    def link(name: str, *objects: Path) -> Kernels:
        out = folder / f"{name}.so"
        llvm.must([clang, "-shared", "-Wl,-Bsymbolic", "-Wl,--no-undefined", *objects, "-o", out])
        return Kernels(out)

    def undefined(path: Path) -> set[str]:
        return {name for name, letter in llvm.symbols(path).items() if letter == "U"}

    return Aten(
        level=level,
        replaced=link("replaced", replaced),
        linked=link("linked", stock, stand_in, right),
        one_bit_wrong=link("wrong", stock, stand_in, wrong),
        forms=link("forms", right).path,
        needs_without=undefined(stock),
        needs_with=undefined(replaced),
        report=[json.loads(line) for line in report.read_text().splitlines()],
    )


def inputs(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(7).normal(0.0, 4.0, shape).astype(np.float32)


KERNELS = {
    "log_softmax": (9, 77),
    "elu": (1003,),
    "exp": (1003,),
    "softplus": (1003,),
}


def math_names(level: Level) -> set[str]:
    lanes = max(level.lanes(32))
    return {*FUNCTIONS, *(f"Sleef_{name}{lanes}_u10" for name in FUNCTIONS)}


def test_stock_kernels_call_libm_and_sleef(aten: Aten) -> None:
    """The control of the next test: these names are there to be replaced."""
    assert math_names(aten.level) <= aten.needs_without


def test_no_call_of_libm_or_sleef_is_left(aten: Aten) -> None:
    assert not math_names(aten.level) & aten.needs_with
    assert not [name for name in aten.needs_with if re.search("exp|log|Sleef", name)]


def test_report_names_what_was_replaced(aten: Aten) -> None:
    replaced = {line["target"] for line in aten.report}
    sleef = {name for name in math_names(aten.level) if name.startswith("Sleef")}
    assert sleef | {"expm1f", "llvm.exp.f32", "llvm.log.f32"} <= replaced
    assert {line["pass"] for line in aten.report} == {"udf-replace"}


@pytest.mark.parametrize("kernel", KERNELS)
def test_results_are_those_of_the_udfs(aten: Aten, kernel: str) -> None:
    x = inputs(*KERNELS[kernel])
    assert np.array_equal(aten.replaced.run(kernel, x), aten.linked.run(kernel, x))


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_wrong_bit_is_found(aten: Aten, kernel: str) -> None:
    """Negative control: another function behind the same names gives other bits."""
    x = inputs(*KERNELS[kernel])
    assert not np.array_equal(aten.replaced.run(kernel, x), aten.one_bit_wrong.run(kernel, x))


def test_elementwise_results_equal_the_array_form(aten: Aten) -> None:
    x = inputs(1003)
    y = np.empty_like(x)
    forms = ctypes.CDLL(str(aten.forms))
    n, mode = ctypes.c_int64(x.size), ctypes.c_int64(0)
    pointers = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)
    forms.__udf_expf_array(n, *pointers, mode)
    assert np.array_equal(aten.replaced.run("exp", x), y.view(np.uint32))
    forms.__udf_expm1f_array(n, *pointers, mode)
    want = np.where(x < 0, y * np.float32(1.5), x)
    assert np.array_equal(aten.replaced.run("elu", x), want.view(np.uint32))
