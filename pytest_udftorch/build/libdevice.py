"""Copies of CUDA's ``libdevice`` whose functions are the swapped ones.

The scalar forms are compiled once more, for NVPTX, and put into a copy of the bitcode library
``libdevice`` that triton ships, in place of the bodies of ``__nv_expf`` and its kin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pytest_udftorch.build.bitcode import _run, bitcode_jobs
from pytest_udftorch.build.cache import cache_folder, fill
from pytest_udftorch.build.selection import Part, cuda_id, cuda_sources
from pytest_udftorch.build.toolchain import FLAGS, Compiler, find_compiler, tool
from pytest_udftorch.errors import LibdeviceError, SourceCompileError
from pytest_udftorch.library.description import UdfFunction
from pytest_udftorch.library.symbols import FUNCTIONS
from pytest_udftorch.native.runtime import pass_plugin

#: NVPTX has a fused multiply-add; sources ask for it by the macro that x86 compilers set.
_CUDA_FLAGS: Final = (
    "--target=nvptx64-nvidia-cuda", "-march=sm_80", "-nogpulib", "-ffreestanding",
    "-Wno-unknown-cuda-version", "-D__FMA__=1",
)  # fmt: skip
_NOT_CUDA: Final = frozenset(("-fPIC",))

#: LLVM's intrinsics of functions of math that are no instructions of a GPU, or approximate ones.
_NO_INSTRUCTION: Final = frozenset((*FUNCTIONS, "exp10", "powi", "sincos"))

#: What the kernels of eager CUDA call instead of ``__nv_expf``: the fast path's result, whether
#: it is not to be trusted, and the accurate path's result. A thread then computes the fast
#: paths of its elements side by side, and has one branch for the rare others.
SPLIT: Final = {"value": "float", "hard": "i32", "rest": "float"}

#: Where a function whose fast path leaves it to the accurate one has no value: one that claims to
#: be correctly rounded is NaN there, and a thread need not branch for it. Half of all floats are
#: outside the domain of log. The conditions are false for NaN, which the accurate path answers.
_OUTSIDE: Final = {
    **dict.fromkeys(("log", "log2", "log10"), "x < 0"),
    "log1p": "x < -1",
    "acosh": "x < 1",
    "atanh": "__builtin_fabsf(x) > 1",
}

# Division and square root without a branch, for normal operands (and zero under the root).
# They stand in fast paths only, whose error bounds leave room for two units in the last place.
# The approximations start with 20 bits; one step of third order gives 60.
_BRANCHLESS: Final = {
    "fdiv double (\\S+), (\\S+)": "call double @__udf_divide(double \\1, double \\2)",
    "call double @llvm.sqrt.f64\\(double (\\S+)\\)": "call double @__udf_root(double \\1)",
}
_BRANCHLESS_BODIES: Final = """
declare double @llvm.nvvm.rcp.approx.ftz.d(double)
declare double @llvm.nvvm.rsqrt.approx.d(double)
define internal double @__udf_divide(double %a, double %b) alwaysinline {
  %n = fneg double %b
  %r0 = call double @llvm.nvvm.rcp.approx.ftz.d(double %b)
  %e = call double @llvm.fma.f64(double %n, double %r0, double 1.0)
  %s = call double @llvm.fma.f64(double %e, double %e, double %e)
  %r = call double @llvm.fma.f64(double %r0, double %s, double %r0)
  %q = fmul double %a, %r
  ret double %q
}
define internal double @__udf_root(double %x) alwaysinline {
  %r = call double @llvm.nvvm.rsqrt.approx.d(double %x)
  %s = fmul double %x, %r
  %n = fneg double %s
  %e = call double @llvm.fma.f64(double %n, double %r, double 1.0)
  %p = call double @llvm.fma.f64(double %e, double 0.375, double 0.5)
  %d = fmul double %s, %e
  %y = call double @llvm.fma.f64(double %d, double %p, double %s)
  %zero = fcmp oeq double %x, 0.0
  %root = select i1 %zero, double %x, double %y
  ret double %root
}
"""


def libdevice_for(parts: tuple[Part, ...], stock: Path) -> Path:
    """Return a copy of CUDA's libdevice whose functions are those of a selection.

    Args:
        parts: the selection.
        stock: the ``libdevice.10.bc`` that triton ships.

    Raises:
        LibdeviceError: LLVM cannot read ``stock``, or it lacks a function, or a UDF calls
            something that a GPU does not have.
        SourceCompileError: a source does not compile for NVPTX.
        CacheError: the cache folder cannot be written.
    """
    digest = hashlib.sha256(stock.read_bytes()).hexdigest()
    key = hashlib.sha256(f"{cuda_id(parts)} {digest}".encode()).hexdigest()[:16]
    folder = cache_folder() / f"libdevice-{key}"

    def make(scratch: Path) -> dict[str, str]:
        with tempfile.TemporaryDirectory(dir=scratch) as pieces:
            _make_libdevice(Path(pieces), parts, stock).replace(scratch / "libdevice.10.bc")
        return {"stock_sha256": digest}

    fill(folder, make)
    return folder / "libdevice.10.bc"


def _make_libdevice(scratch: Path, parts: tuple[Part, ...], stock: Path) -> Path:
    compiler = find_compiler()
    flags = (*(f for f in FLAGS if f not in _NOT_CUDA), *_CUDA_FLAGS)
    jobs: list[list[str]] = []
    replaced: dict[str, str] = {}
    paths: list[tuple[UdfFunction, tuple[Path, ...]]] = []
    for part in parts:
        for library, keys in cuda_sources(part):
            jobs += bitcode_jobs(
                scratch, len(jobs), part.build, library, keys, compiler, flags, scalar_only=True
            )
            for name, dtype in keys:
                known, function = FUNCTIONS[name], library.functions[name, dtype]
                c_name = known.c_name(dtype)
                replaced[f"__nv_{c_name}"] = known.export(dtype, "scalar")
                if function.fast and function.source.suffix == ".c":
                    paths.append((function, (library.folder, *library.include_dirs)))
                    replaced |= {f"__nv_udf_{c_name}_{p}": f"__udf_{c_name}_{p}" for p in SPLIT}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(_run, jobs))
        pieces = list(
            pool.map(
                lambda path: _split_paths(scratch, compiler, flags, path[0], path[1]),
                paths,
            )
        )
    stubs, base = scratch / "stubs.ll", scratch / "base.bc"
    stubs.write_text(_split_stubs(), encoding="utf-8")
    bitcode, replaced_in = scratch / "udf.bc", scratch / "replaced.bc"
    out = scratch / "libdevice.10.bc"
    _run(
        [
            str(tool(compiler, "llvm-link")),
            *(job[-1] for job in jobs),
            *map(str, pieces),
            "-o",
            str(bitcode),
        ]
    )
    mapping = scratch / "map.json"
    mapping.write_text(json.dumps({"bitcode": str(bitcode), "targets": replaced}))
    plugin, _ = pass_plugin()
    report = scratch / "report.jsonl"
    try:
        _run([str(tool(compiler, "llvm-link")), str(stock), str(stubs), "-o", str(base)])
        _run(
            [
                str(tool(compiler, "opt")), f"-load-pass-plugin={plugin}",
                "-passes=udf-replace,verify", f"-udf-replace-map={mapping}",
                f"-udf-report={report}", str(base), "-o", str(replaced_in),
            ]
        )  # fmt: skip
    except SourceCompileError as error:
        raise LibdeviceError(
            f"The functions cannot be put into {stock}, which comes with triton: {error}\n"
            f"It needs an LLVM that reads it; {compiler.version} is used here."
        ) from error
    lines = map(json.loads, report.read_text(encoding="utf-8").splitlines())
    bodies = {line["target"] for line in lines if line["bodies"]}
    if missing := sorted(set(replaced) - bodies):
        raise LibdeviceError(
            f"{stock}, which comes with triton, does not define {', '.join(missing)}: Triton "
            "kernels would go on calling something else. Choose other functions."
        )
    _refuse_calls_into_nowhere(compiler, bitcode)
    _inline(compiler, sorted(set(replaced.values())), replaced_in, out)
    return out


def _split_stubs() -> str:
    """Return the parts of every function as LLVM's text, made of libdevice's own functions."""
    lines = []
    for function in FUNCTIONS.values():
        c_name = function.c_name("float32")
        names = "xyz"[: function.arity]
        given = ", ".join(f"float %{n}" for n in names)
        lines.append(f"declare float @__nv_{c_name}({', '.join(['float'] * len(names))})")
        for part, kind in SPLIT.items():
            lines.append(f"define {kind} @__nv_udf_{c_name}_{part}({given}) {{")
            if part == "hard":
                lines.append("  ret i32 0")
            else:
                lines += [f"  %r = call float @__nv_{c_name}({given})", "  ret float %r"]
            lines.append("}")
    return "\n".join(lines) + "\n"


def _split_paths(
    scratch: Path,
    compiler: Compiler,
    flags: Iterable[str],
    function: UdfFunction,
    folders: Iterable[Path],
) -> Path:
    """Compile the fast and the accurate path of a function as functions of their own."""
    known = FUNCTIONS[function.name]
    c_name = known.c_name("float32")
    names = "xyz"[: known.arity]
    given, passed = ", ".join(f"float {n}" for n in names), ", ".join(names)
    exported = {part: f"__udf_{c_name}_{part}" for part in SPLIT}
    outside = _OUTSIDE.get(function.name, "0") if function.max_ulp == 0.5 else "0"
    source = scratch / f"split-{c_name}.c"
    source.write_text(
        f'#include "{function.source}"\n'
        f"float {exported['value']}({given}) {{ int h; float r = {function.fast}({passed}, &h); "
        f'return {outside} ? __builtin_nanf("") : r; }}\n'
        f"int {exported['hard']}({given}) {{ int h; {function.fast}({passed}, &h); "
        f"return {outside} ? 0 : h; }}\n"
        f"float {exported['rest']}({given}) {{ return {function.accurate}({passed}); }}\n",
        encoding="utf-8",
    )
    text, changed = source.with_suffix(".ll"), scratch / f"split-{c_name}-branchless.ll"
    out = source.with_suffix(".bc")
    _run(
        [
            str(compiler.path), *flags, *(f"-I{d}" for d in folders), "-S", "-emit-llvm",
            str(source), "-o", str(text),
        ]
    )  # fmt: skip
    fast = {exported["value"], exported["hard"]}
    changed.write_text(_branchless(text.read_text(encoding="utf-8"), fast))
    _run(
        [
            str(tool(compiler, "opt")), "-passes=internalize,always-inline,globaldce,verify",
            f"-internalize-public-api-list={','.join(exported.values())}", str(changed),
            "-o", str(out),
        ]
    )  # fmt: skip
    return out


def _branchless(text: str, functions: set[str]) -> str:
    """Return LLVM's text with the double divisions and roots of some functions replaced."""
    lines, inside, found = [], False, False
    for line in text.splitlines():
        if line.startswith("define "):
            match = re.search(r"@(\w+)\(", line)
            inside = match is not None and match[1] in functions
        if inside:
            for operation, call in _BRANCHLESS.items():
                line, count = re.subn(operation, call, line)
                found |= count > 0
        lines.append(line)
    if found:
        lines.append(_BRANCHLESS_BODIES)
        if not any(line.startswith("declare double @llvm.fma.f64") for line in lines):
            lines.append("declare double @llvm.fma.f64(double, double, double)")
    return "\n".join(lines) + "\n"


def _inline(compiler: Compiler, symbols: list[str], libdevice: Path, out: Path) -> None:
    """Have the functions inlined into kernels.

    A call for each element leaves a thread's elements nothing to overlap with. The pass
    forbids it where a later run of it has to find the function, and here is none.
    """
    options = [
        f"{option}={symbol}:{attribute}"
        for symbol in symbols
        for option, attribute in (
            ("-force-remove-attribute", "noinline"),
            ("-force-attribute", "alwaysinline"),
        )
    ]
    _run(
        [
            str(tool(compiler, "opt")), "-passes=forceattrs,verify", *options, str(libdevice),
            "-o", str(out),
        ]
    )  # fmt: skip


def _refuse_calls_into_nowhere(compiler: Compiler, bitcode: Path) -> None:
    listing = _run([str(tool(compiler, "llvm-nm")), "--undefined-only", str(bitcode)])
    names = [line.split()[-1] for line in listing.splitlines() if line.strip()]
    # An intrinsic of a function of math ends the process in LLVM's code generator for a GPU.
    text = _run([str(tool(compiler, "opt")), "-S", "-passes=verify", str(bitcode), "-o", "-"])
    called = set(re.findall(r" call [^@\n]*@llvm\.(\w+)\.", text))
    found = {n for n in names if not n.startswith("llvm.")} | (called & _NO_INSTRUCTION)
    if names := sorted(found):
        raise LibdeviceError(
            f"A UDF calls {', '.join(names)}, which a GPU does not have. Write it without the C "
            "library, or leave the function out of sessions that use Triton."
        )
