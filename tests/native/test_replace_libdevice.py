# SPDX-License-Identifier: Apache-2.0
"""udf-replace on CUDA's libdevice: a module of bitcode for another machine, bodies and all."""

import importlib.util
import json
from pathlib import Path

import pytest
from toolchain import Llvm

UDF = """
#define FMA __builtin_fma
static inline unsigned long bits(double x) {
  unsigned long u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}
static inline float udf_expf_fast(float xf, int *hard) {
  double x = xf;
  double t = FMA(x, 0x1.71547652b82fep+0, 0x1.8p52), k = t - 0x1.8p52;
  double r = FMA(k, -0x1.62e42fefa39efp-1, x), p = 1.0 / 120;
  p = FMA(p, r, 1.0 / 24), p = FMA(p, r, 1.0 / 6), p = FMA(p, r, 0.5), p = FMA(p, r, 1.0);
  unsigned long u = bits(FMA(p, r, 1.0)) + (bits(t) << 52);
  *hard = (u & 0x1fffffff) == 0x10000000;
  __builtin_memcpy(&p, &u, sizeof p);
  return (float)p;
}
static float udf_expf_accurate(float x) { return x * 3.0f + 1.0f; }
"""

KERNEL = """
target triple = "nvptx64-nvidia-gpulibs"
declare float @__nv_expf(float)
define void @kernel(ptr %p) {
  %x = load float, ptr %p
  %y = call float @__nv_expf(float %x)
  store float %y, ptr %p
  %product = fmul float %x, 3.0
  %sum = fadd float %product, 1.0
  %q = getelementptr float, ptr %p, i64 1
  store float %sum, ptr %q
  ret void
}
"""


@pytest.fixture
def libdevice() -> Path:
    spec = importlib.util.find_spec("triton")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for found in Path(folder).rglob("libdevice.10.bc"):
            return found
    pytest.skip("triton, whose wheel holds libdevice.10.bc, is not installed")


def ptx(llvm: Llvm, folder: Path, library: Path) -> str:
    """The kernel linked with a libdevice and compiled, products and sums fused at will."""
    kernel, linked, optimised, out = (
        folder / f"kernel.{library.stem}.{n}" for n in ("ll", "linked.bc", "bc", "ptx")
    )
    kernel.write_text(KERNEL)
    llvm.must([llvm.tool("llvm-link"), "--only-needed", kernel, library, "-o", linked])
    llvm.must([llvm.tool("opt"), "-passes=default<O3>", linked, "-o", optimised])
    llvm.must([llvm.tool("llc"), "-mcpu=sm_80", "-O3", "-fp-contract=fast", optimised, "-o", out])
    return out.read_text()


def test_body_of_nv_expf_is_replaced(llvm: Llvm, libdevice: Path, tmp_path: Path) -> None:
    source, bitcode, out = tmp_path / "udf.c", tmp_path / "udf.bc", tmp_path / "replaced.bc"
    source.write_text(UDF)
    manifest, map_path = tmp_path / "manifest.json", tmp_path / "map.json"
    entry = {
        **{"name": "expf", "type": "float", "arity": 1, "forms": {"scalar": "__udf_expf"}},
        **{"fast": "udf_expf_fast", "accurate": "udf_expf_accurate"},
    }
    manifest.write_text(json.dumps({"functions": [entry]}))
    map_path.write_text(
        json.dumps({"bitcode": bitcode.name, "targets": {"__nv_expf": "__udf_expf"}})
    )
    llvm.must(
        [
            *(llvm.tool("clang"), "--target=nvptx64-nvidia-cuda", "-march=sm_80", "-O3"),
            *("-nogpulib", "-ffreestanding", "-ffp-contract=off", "-femit-all-decls"),
            "-Wno-unknown-cuda-version",
            *(*llvm.loads, "-mllvm", f"-udf-widen-manifest={manifest}"),
            *("-emit-llvm", "-c", source, "-o", bitcode),
        ]
    )
    llvm.must(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", "-passes=udf-replace,verify"),
            *(f"-udf-replace-map={map_path}", libdevice, "-o", out),
        ]
    )
    stock, replaced = ptx(llvm, tmp_path, libdevice), ptx(llvm, tmp_path, out)
    assert "ex2.approx" in stock, "the control: libdevice's own code"
    assert "fma.rn.f64" not in stock
    assert "ex2.approx" not in replaced
    assert replaced.count("fma.rn.f64") >= 7
    kernel = replaced[replaced.index(".func kernel") :].partition("\n}")[0]
    assert kernel.count("fma.rn.f32") == 1, "the control: the kernel's own product is fused"
    accurate = replaced[replaced.index("// @udf_expf_accurate") :].partition("\n}")[0]
    # With an older LLVM it is the assembler behind PTX that may still fuse the two.
    assert ("mul.rn.f32" if int(llvm.major) >= 19 else "mul.f32") in accurate
    assert "fma.rn.f32" not in accurate
    assert "__nv_expf," not in kernel, "inlined, as libdevice's own functions are"
