# SPDX-License-Identifier: Apache-2.0
"""Copies of CUDA's ``libdevice`` whose functions are the swapped ones.

The scalar forms are compiled once more, for NVPTX, and put into a copy of the bitcode library
``libdevice`` that triton ships, in place of the bodies of ``__nv_expf`` and its kin.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

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

#: What follows the compilation of parts. Divisions and roots are replaced in fast paths only,
#: whose error bounds leave room for two units in the last place.
_SPLIT_PASSES: Final = ("udf-branchless", "internalize", "globaldce", "verify")


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
    bitcode, replaced = _link_udfs(scratch, parts, compiler)
    _refuse_calls_into_nowhere(compiler, bitcode)
    mapping, out = scratch / "map.json", scratch / "libdevice.10.bc"
    mapping.write_text(json.dumps({"bitcode": str(bitcode), "targets": replaced}))
    # udf-replace forbids inlining where a later run of it has to find the function, and here is
    # none. A call for each element would leave a thread's elements nothing to overlap with.
    inlined = [
        f"{option}={symbol}:{attribute}"
        for symbol in sorted(set(replaced.values()))
        for option, attribute in (
            ("-force-remove-attribute", "noinline"),
            ("-force-attribute", "alwaysinline"),
        )
    ]
    whole = ",".join(f"__nv_{known.c_name('float32')}" for known in FUNCTIONS.values())
    report = scratch / "report.jsonl"
    try:
        _opt(
            compiler, ("udf-split", "udf-replace", "forceattrs", "verify"), stock, out,
            f"-udf-split-functions={whole}", f"-udf-replace-map={mapping}",
            f"-udf-report={report}", *inlined,
        )  # fmt: skip
    except SourceCompileError as error:
        raise LibdeviceError(
            f"The functions cannot be put into {stock}, which comes with triton: {error}\n"
            f"It needs an LLVM that reads it; {compiler.version} is used here."
        ) from error
    bodies = {line["target"] for line in _read_report(report) if line["bodies"]}
    if missing := sorted(set(replaced) - bodies):
        raise LibdeviceError(
            f"{stock}, which comes with triton, does not define {', '.join(missing)}: Triton "
            "kernels would go on calling something else. Choose other functions."
        )
    return out


def _link_udfs(
    scratch: Path, parts: tuple[Part, ...], compiler: Compiler
) -> tuple[Path, dict[str, str]]:
    """Return the bitcode of the functions and their parts, and the targets of the map."""
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
            pool.map(lambda path: _split_paths(scratch, compiler, flags, path[0], path[1]), paths)
        )
    bitcode = scratch / "udf.bc"
    linked = [*(job[-1] for job in jobs), *map(str, pieces)]
    _run([str(tool(compiler, "llvm-link")), *linked, "-o", str(bitcode)])
    return bitcode, replaced


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
    compiled, out = source.with_suffix(".bc"), scratch / f"split-{c_name}-parts.bc"
    _run(
        [
            str(compiler.path), *flags, *(f"-I{d}" for d in folders), "-emit-llvm", "-c",
            str(source), "-o", str(compiled),
        ]
    )  # fmt: skip
    _opt(
        compiler, _SPLIT_PASSES, compiled, out,
        f"-udf-branchless-functions={exported['value']},{exported['hard']}",
        f"-internalize-public-api-list={','.join(exported.values())}",
    )  # fmt: skip
    return out


def _refuse_calls_into_nowhere(compiler: Compiler, bitcode: Path) -> None:
    report = bitcode.with_suffix(".jsonl")
    try:
        _opt(compiler, ("udf-gpu-calls",), bitcode, None, f"-udf-report={report}")
    except SourceCompileError as error:
        missing = [name for line in _read_report(report) for name in line["missing"]]
        if not missing:
            raise
        raise LibdeviceError(
            f"A UDF calls {', '.join(missing)}, which a GPU does not have. Write it without the "
            "C library, or leave the function out of sessions that use Triton."
        ) from error


def _opt(
    compiler: Compiler, passes: Iterable[str], source: Path, out: Path | None, *options: str
) -> None:
    """Run passes of LLVM and of the plugin over bitcode.

    Raises:
        SourceCompileError: a pass reports an error.
    """
    plugin, _ = pass_plugin()
    end = ["-disable-output"] if out is None else ["-o", str(out)]
    _run(
        [
            str(tool(compiler, "opt")), f"-load-pass-plugin={plugin}",
            f"-passes={','.join(passes)}", *options, str(source), *end,
        ]
    )  # fmt: skip


def _read_report(path: Path) -> list[dict[str, Any]]:
    """Return the lines that passes wrote (``-udf-report``); none if nothing was done."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
