# SPDX-License-Identifier: Apache-2.0
"""Copies of CUDA's ``libdevice`` whose functions are the swapped ones.

The scalar forms are compiled once more, for NVPTX. They replace the bodies of ``__nv_expf`` and
its kin in a copy of ``libdevice``, the bitcode library that triton ships.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_udftorch.errors import CompilerNotFoundError, CudaFormError, UdfError
from pytest_udftorch.swap.library.description import UdfFunction, UdfLibrary
from pytest_udftorch.swap.library.symbols import FUNCTIONS, KNOWN
from pytest_udftorch.swap.toolchain import bitcode, llvmlite_gpu, pack
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.compiler import ABSENT, FLAGS, Compiler, find_compiler, tool
from pytest_udftorch.swap.toolchain.job import Job, Step, compile_job, obtain, read_report
from pytest_udftorch.swap.toolchain.selection import Part, cuda_doubles, cuda_sources
from pytest_udftorch.swap.toolchain.shared_library import (
    Build,
    compile_steps,
    homes_of,
    include_flags,
)

_OUTPUT: Final = "libdevice.10.bc"

#: NVPTX has a fused multiply-add; sources ask for it by the macro that x86 compilers set.
_FLAGS: Final = (
    *(flag for flag in FLAGS if flag != "-fPIC"),
    "--target=nvptx64-nvidia-cuda", "-march=sm_80", "-nogpulib", "-ffreestanding",
    "-Wno-unknown-cuda-version", "-D__FMA__=1",
)  # fmt: skip

#: What the kernels of eager CUDA call instead of ``__nv_expf``: the fast path's result, whether
#: it is not to be trusted, and the accurate path's result. A thread then computes the fast
#: paths of its elements side by side, and has one branch for the rare others.
SPLIT: Final = {"value": "float", "hard": "i32", "rest": "float"}

#: Function -> the condition under which it has no value. A function that claims to be correctly
#: rounded is NaN there, although its fast path leaves the case to the accurate one, and a thread
#: need not branch for it. Half of all floats are outside the domain of log. The conditions are
#: false for NaN, which the accurate path answers.
_OUTSIDE: Final = {
    **dict.fromkeys(("log", "log2", "log10"), "x < 0"),
    "log1p": "x < -1",
    "acosh": "x < 1",
    "atanh": "__builtin_fabsf(x) > 1",
}

#: The passes that follow the compilation of paths. ``udf-branchless`` replaces divisions and roots
#: in fast paths only, whose error bounds leave room for two units in the last place.
_SPLIT_PASSES: Final = ("udf-branchless", "internalize", "globaldce", "verify")

#: The passes over the linked functions. Structures go by address: the LLVM of Triton 3.6 ends the
#: process where a function of a GPU takes one by value.
_WHOLE: Final = ("udf-by-address", "udf-gpu-calls")


def libdevice_for(parts: tuple[Part, ...], stock: Path) -> Path:
    """Return a copy of CUDA's libdevice whose functions are those of a selection.

    It is ``stock`` itself for a selection without functions for GPUs. float64 functions need a
    compiler: without one they stay those of ``stock``.

    Args:
        parts: the selection.
        stock: the ``libdevice.10.bc`` that triton ships.

    Raises:
        CudaFormError: LLVM cannot read ``stock``, or it lacks a function, or a UDF calls
            something that a GPU does not have.
        SourceError: a source does not compile for NVPTX.
        CompilerNotFoundError: see ``toolchain.find_compiler``.
        CacheError: the cache folder cannot be written.
    """
    chosen = [source for part in parts for source in cuda_sources(part)]
    if doubles_for_gpus(parts):
        return obtain(functools.partial(libdevice_job, parts, stock), find_compiler).path
    if not chosen:
        return stock
    packed = pack.find(chosen, tuple(SPLIT), functools.partial(_pack_recipe, stock))
    if packed:
        return packed
    try:
        return obtain(functools.partial(libdevice_job, parts, stock), find_compiler).path
    except CompilerNotFoundError as error:
        # A clang that is named is the only one that is wanted.
        if os.environ.get("UDFTORCH_CLANG"):
            raise
        if not llvmlite_gpu.serves(chosen):
            libraries = " and ".join(repr(library.name) for library, _ in chosen)
            raise type(error)(
                f"The functions of UDF library {libraries} have to be compiled for GPUs: "
                f"{prebuilt.lacking()} {error}"
            ) from error
    return llvmlite_gpu.copy_with(chosen, stock)


def doubles_for_gpus(parts: Iterable[Part]) -> frozenset[str]:
    """Return the float64 functions of a selection that GPUs get here.

    A machine without a compiler has none: no shipped pack holds float64 functions.
    """
    names = frozenset(name for part in parts for name, _ in cuda_doubles(part))
    if names:
        try:
            find_compiler()
        except CompilerNotFoundError:
            if os.environ.get("UDFTORCH_CLANG"):
                raise
            return frozenset()
    return names


def available_for_gpus(stock: Path) -> str:
    """Return where shipped libraries get their functions for GPUs: ``shipped`` or ``compiler``.

    Raises:
        CompilerNotFoundError: nowhere; see ``toolchain.find_compiler``.
    """
    if prebuilt.stores() and prebuilt.find(_pack_recipe(stock), {}) is not None:
        return "shipped"
    for name in ("opt", "llvm-link"):
        tool(find_compiler(), name)
    return "compiler"


def make_pack(stock: Path) -> None:
    """Make the pack of the shipped libraries for a libdevice; see ``pack``.

    Raises:
        As :func:`libdevice_for`.
    """
    compiler, wanted = find_compiler(), _pack_recipe(stock)
    with prebuilt.recording():  # apart: only the pack is wanted
        copies = [compile_job(libdevice_job((p,), stock, compiler)).path for p in _pack_parts()]
    prebuilt.note(wanted, pack.make(stock, copies, tuple(SPLIT), compiler, wanted), [], {})


def _pack_parts() -> list[Part]:
    """Return each library of a pack whole, in its own form; nothing is built for CPUs."""
    return [
        Part(Build(library, "baseline", "", Path(), 0.0), tuple(library.functions))
        for library in pack.libraries()
    ]


def _pack_recipe(stock: Path) -> str:
    return pack.recipe([libdevice_job((p,), stock, ABSENT).recipe() for p in _pack_parts()])


def libdevice_job(parts: tuple[Part, ...], stock: Path, compiler: Compiler) -> Job:
    """Return the job that makes the copy; see :func:`libdevice_for`."""
    compiled: list[Step] = []
    paths: list[Step] = []
    narrowed: list[Step] = []
    texts: dict[str, str] = {}
    replaced: dict[str, str] = {}
    inputs = {str(stock)}
    homes: dict[str, str | None] = {str(stock.parent): "TRITON"}
    sources = [source for part in parts for source in cuda_sources(part)]
    sources += [(p.build.library, doubles) for p in parts if (doubles := cuda_doubles(p))]
    for library, keys in sources:
        inputs.update(library.source_files())
        homes |= homes_of(library)
        chosen = [library.functions[key] for key in keys]
        # This level has no vector forms, and no quick paths, which are for vectors and CPUs.
        steps, manifests = compile_steps(
            library, chosen, "baseline", compiler, _FLAGS, bitcode=True, first=len(compiled)
        )
        compiled += steps
        texts |= manifests
        for function in chosen:
            known = FUNCTIONS[function.name]
            c_name = known.c_name(function.dtype)
            replaced[f"__nv_{c_name}"] = known.export(function.dtype, "scalar")
            in_parts = function.fast and function.dtype == "float32"
            if in_parts and function.source.suffix == ".c":
                text, separate, narrow = split_paths(library, function, compiler, _FLAGS)
                texts |= text
                paths.append(separate)
                narrowed.append(narrow)
                replaced |= {f"__nv_udf_{c_name}_{p}": f"__udf_{c_name}_{p}" for p in SPLIT}
    texts["map.json"] = json.dumps({"bitcode": "udf.bc", "targets": replaced})
    pieces = [step.arguments[-1] for step in (*compiled, *narrowed)]
    # udf-replace forbids inlining, so that a later run of it finds the function. No later run
    # follows here, and a call for each element would leave a thread's elements nothing to overlap
    # with.
    inlined = [
        f"{option}={symbol}:{attribute}"
        for symbol in sorted(set(replaced.values()))
        for option, attribute in (
            ("-force-remove-attribute", "noinline"),
            ("-force-attribute", "alwaysinline"),
        )
    ]
    whole = ",".join(f"__nv_{known.c_name('float32')}" for known in FUNCTIONS.values())
    options = (f"-udf-split-functions={whole}", "-udf-replace-map=map.json", *inlined)
    passes = ("udf-split", "udf-replace", "forceattrs", "verify")
    return Job(
        kind="libdevice-",
        compiler=compiler,
        stages=(
            (*compiled, *paths),
            tuple(narrowed),
            (Step(tool(compiler, "llvm-link"), (*pieces, "-o", "linked.bc")),),
            (_opt(compiler, _WHOLE, "linked.bc", "udf.bc"),),
            (_opt(compiler, passes, str(stock), _OUTPUT, "-udf-report=report.jsonl", *options),),
        ),
        output=_OUTPUT,
        failed=functools.partial(_failed, stock, compiler),
        texts=texts,
        homes=homes,
        inputs=sorted(inputs),
        facts={"compiler": compiler.version},
        what="functions for GPUs",
        check=functools.partial(_check, stock, replaced),
    )


def composites_for(parts: tuple[Part, ...]) -> Path:
    """Return bitcode for GPUs with activations as functions: ``composite_symbol`` has the names.

    Args:
        parts: the activations of each library; each of them has a fast and an accurate path in C.

    Raises:
        As :func:`libdevice_for`.
    """
    return obtain(functools.partial(composites_job, parts), find_compiler).path


def composite_symbol(function: str, part: str) -> str:
    """Return the name of a part (``SPLIT``) of an activation in :func:`composites_for`."""
    return f"__udf_{KNOWN[function].c_name('float32')}_{part}"


def composites_job(parts: tuple[Part, ...], compiler: Compiler) -> Job:
    """Return the job that makes the bitcode; see :func:`composites_for`."""
    paths: list[Step] = []
    narrowed: list[Step] = []
    texts: dict[str, str] = {}
    inputs: set[str] = set()
    homes: dict[str, str | None] = {}
    for part in parts:
        library = part.build.library
        inputs.update(library.source_files())
        homes |= homes_of(library)
        for key in part.functions:
            text, separate, narrow = split_paths(
                library, library.functions[key], compiler, _FLAGS, branchless=False
            )
            texts |= text
            paths.append(separate)
            narrowed.append(narrow)
    inlined = [
        f"-force-attribute={composite_symbol(name, piece)}:alwaysinline"
        for part in parts
        for name, _ in part.functions
        for piece in SPLIT
    ]
    pieces = [step.arguments[-1] for step in narrowed]
    passes = (*_WHOLE, "forceattrs", "verify")
    return Job(
        kind="composites-",
        compiler=compiler,
        stages=(
            tuple(paths),
            tuple(narrowed),
            (Step(tool(compiler, "llvm-link"), (*pieces, "-o", "linked.bc")),),
            (_opt(compiler, passes, "linked.bc", "composites.bc", *inlined),),
        ),
        output="composites.bc",
        failed=functools.partial(_failed, Path("linked.bc"), compiler),
        texts=texts,
        homes=homes,
        inputs=sorted(inputs),
        facts={"compiler": compiler.version},
        what="activations for GPUs",
    )


def split_paths(
    library: UdfLibrary,
    function: UdfFunction,
    compiler: Compiler,
    flags: Sequence[str],
    *,
    branchless: bool = True,
) -> tuple[dict[str, str], Step, Step]:
    """Return a source that makes functions of a function's paths, and the steps that compile it.

    Args:
        library: has the function.
        function: has a fast and an accurate path.
        compiler: clang with the pass plugin.
        flags: for clang.
        branchless: replace divisions and roots in the fast path, whose bound must have room.
    """
    known = KNOWN[function.name]
    c_name = known.c_name("float32")
    names = "xyz"[: known.arity]
    given, passed = ", ".join(f"float {n}" for n in names), ", ".join(names)
    exported = {part: f"__udf_{c_name}_{part}" for part in SPLIT}
    outside = _OUTSIDE.get(function.name, "0") if function.max_ulp == 0.5 else "0"
    name = f"split-{c_name}"
    first, source, rest, both = function.fast, function.source, function.accurate, ""
    if function.gpu and function.gpu_source:
        first, source, rest = function.gpu, function.gpu_source, "udf_in_double"
        # One call for the few elements that gpu leaves, and not the fast path in each branch.
        both = (
            f"static __attribute__((noinline, cold)) float {rest}({given}) {{ int h; "
            f"float r = {function.fast}({passed}, &h); "
            f"return h ? {function.accurate}({passed}) : r; }}\n"
        )
    text = (
        f'#include "{source}"\n{both}'
        f"float {exported['value']}({given}) {{ int h; float r = {first}({passed}, &h); "
        f'return {outside} ? __builtin_nanf("") : r; }}\n'
        f"int {exported['hard']}({given}) {{ int h; {first}({passed}, &h); "
        f"return {outside} ? 0 : h; }}\n"
        f"float {exported['rest']}({given}) {{ return {rest}({passed}); }}\n"
    )
    arguments = (
        *flags, *include_flags(library), "-emit-llvm", "-c", f"{name}.c", "-o", f"{name}.bc",
    )  # fmt: skip
    chosen = f"-udf-branchless-functions={exported['value']},{exported['hard']}"
    narrow = _opt(
        compiler, _SPLIT_PASSES if branchless else _SPLIT_PASSES[1:],
        f"{name}.bc", f"{name}-parts.bc", *([chosen] if branchless else []),
        f"-internalize-public-api-list={','.join(exported.values())}",
    )  # fmt: skip
    return {f"{name}.c": text}, Step(compiler.path, arguments, function.source), narrow


def _opt(
    compiler: Compiler, passes: Iterable[str], source: str, output: str, *options: str
) -> Step:
    """Return the step that runs passes of LLVM and of the plugin over bitcode."""
    arguments = (f"-load-pass-plugin={compiler.plugin}", f"-passes={','.join(passes)}", *options)
    return Step(tool(compiler, "opt"), (*arguments, source, "-o", output))


def _failed(stock: Path, compiler: Compiler, step: Step, message: str) -> UdfError:
    if missing := re.search(r"udf-gpu-calls: .* calls (.+), which a GPU does not have", message):
        return CudaFormError(
            f"A UDF calls {missing[1]}, which a GPU does not have. Write it without the C "
            "library, or leave the function out of sessions that use Triton."
        )
    error = bitcode.failed(step, message)
    if str(stock) not in step.arguments:
        return error
    return CudaFormError(
        f"The functions cannot be put into {stock}, which comes with triton: {error}\n"
        f"It needs an LLVM that reads it; {compiler.version} is used here."
    )


def _check(stock: Path, replaced: Mapping[str, str], folder: Path) -> None:
    """Refuse a copy in which a function is still the stock one."""
    bodies = {line["target"] for line in read_report(folder) if line["bodies"]}
    if missing := sorted(set(replaced) - bodies):
        raise CudaFormError(
            f"{stock}, which comes with triton, does not define {', '.join(missing)}: Triton "
            "kernels would go on calling something else. Choose other functions."
        )
