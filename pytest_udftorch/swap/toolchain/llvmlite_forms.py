# SPDX-License-Identifier: Apache-2.0
"""The forms of a UDF in LLVM's text, made by llvmlite where there is no clang.

``udf-widen`` runs inside clang. llvmlite, which comes with Numba, has an optimiser and a code
generator but loads no pass plugin. A UDF that is one scalar function needs no more: each form here
is a loop over elements that calls it. LLVM inlines the call, and its loop vectoriser widens the
loop if it can. What it cannot widen stays a loop of scalar calls. It executes the same IEEE
operations in the same order either way, so the forms give the bits of those that the pass makes.

There is no linker either, so the result stays an object file, which LLVM's own loader (MCJIT) puts
into the process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import NativeError, SourceError
from pytest_udftorch.swap.library.description import UdfFunction, UdfLibrary
from pytest_udftorch.swap.library.symbols import C_TYPES, KNOWN, SINCOS, forms, processor_of
from pytest_udftorch.swap.toolchain import cache
from pytest_udftorch.swap.toolchain.progress import Progress

OBJECT: Final = "forms.o"

#: Raise it when the forms change: it is part of the key.
_VERSION: Final = 1

#: Numbers of metadata above those that LLVM gives to a UDF's own.
_METADATA: Final = 1_000_000

#: Object -> what keeps its code in the process.
_loaded: Final[dict[Path, Loaded]] = {}


def applies(library: UdfLibrary) -> bool:
    """Tell whether every function is one scalar function in LLVM's text, and llvmlite is there."""
    functions = library.functions
    plain = all(f.scalar and f.source.suffix == ".ll" for f in functions.values())
    plain = plain and len({f.source for f in functions.values()}) == len(functions)
    joint = any({("sin", d), ("cos", d)} <= set(functions) for d in SINCOS)
    return bool(functions) and plain and not joint and _there()


@functools.cache
def _there() -> bool:
    try:
        binding()
    except SourceError:
        return False
    return True


@functools.cache
def binding() -> Any:
    """Return ``llvmlite.binding``, ready for this processor.

    Raises:
        SourceError: it cannot be imported.
    """
    try:
        from llvmlite import binding as llvm
    except ImportError as error:
        raise SourceError(
            f"llvmlite, which comes with Numba, cannot be imported: {error}. Install it: pip "
            "install numba"
        ) from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def optimize(module: Any, machine: Any, level: int) -> None:
    """Run LLVM's default pipeline of a level over a module."""
    llvm = binding()
    tuning = llvm.create_pipeline_tuning_options(speed_level=level)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = level > 2
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)


def build(library: UdfLibrary, level: str) -> tuple[str, Path, float]:
    """Return id, object and seconds of the forms of a library, from the cache if they are there.

    Args:
        library: one to which this module ``applies``.
        level: CPU level.

    Raises:
        SourceError: llvmlite cannot read the library's text.
        CacheError: the cache cannot be written.
    """
    llvm = binding()
    texts = [
        f"{function.source.read_text(encoding='utf-8')}\n{text_of(function, level)}"
        for function in library.functions.values()
    ]
    said = [_VERSION, list(llvm.llvm_version_info), level, _processor(level), texts]
    key = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    folder = cache.cache_folder() / f"forms-{key}"

    def make(scratch: Path) -> Mapping[str, Any]:
        start = time.perf_counter()
        with Progress(f"compiling {library.name} for {level} with llvmlite", 1):
            (scratch / OBJECT).write_bytes(_compiled(library, texts, level))
        seconds = round(time.perf_counter() - start, 3)
        version = ".".join(map(str, llvm.llvm_version_info))
        return {
            "library": library.name, "version": library.version, "cpu_level": level,
            "compiler": f"llvmlite, LLVM {version}", "file": OBJECT, "seconds": seconds,
        }  # fmt: skip

    facts = cache.fill(folder, make)
    return key, folder / OBJECT, facts["seconds"]


def _processor(level: str) -> str:
    flags = processor_of(level).cpu_levels[level][0]
    named = [f.removeprefix("-march=") for f in flags if f.startswith("-march=x86")]
    return named[0] if named else "generic"


def _compiled(library: UdfLibrary, texts: Sequence[str], level: str) -> bytes:
    llvm = binding()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=_processor(level), opt=3, reloc="pic", codemodel="default"
    )
    try:
        module = llvm.parse_assembly("")
        for text in texts:
            module.link_in(llvm.parse_assembly(text))
    except RuntimeError as error:
        raise SourceError(
            f"llvmlite cannot read UDF library {library.name!r}: {error} Install clang, lld and "
            "LLVM's tools, or a Numba whose LLVM is nearer to what the text was made for."
        ) from error
    for function in library.functions.values():
        scalar = module.get_function(function.scalar)
        scalar.linkage = "internal"
        scalar.add_function_attribute("alwaysinline")
    optimize(module, machine, 3)
    return bytes(machine.emit_object(module))


# The forms -------------------------------------------------------------------------------


def text_of(function: UdfFunction, level: str) -> str:
    """Return LLVM's text of the forms of a function, which call its scalar function."""
    return "\n".join(_forms(function, level))


def _forms(function: UdfFunction, level: str) -> Iterator[str]:
    known = KNOWN[function.name]
    real, inner = C_TYPES[function.dtype], str(function.scalar)
    bits = processor_of(level).cpu_levels[level][2]
    # Without these two a vector of 512 bits would be passed in two registers.
    width = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    for number, form in enumerate(forms(function.dtype, level)):
        name = known.export(function.dtype, form)
        metadata = _METADATA + 100 * (function.dtype == "float64") + 10 * number
        if form == "scalar":
            yield from _scalar(name, inner, real, known.arity, width)
        elif form == "array":
            yield from _array(name, inner, real, known.arity, width, metadata)
        else:
            yield from _vector(name, inner, real, known.arity, width, metadata, int(form[1:]))


def _scalar(name: str, inner: str, real: str, arity: int, attributes: str) -> Iterator[str]:
    given = ", ".join(f"{real} %x{i}" for i in range(arity))
    yield f"define {real} @{name}({given}) {attributes} {{"
    yield f"  %y = call {real} @{inner}({given})"
    yield f"  ret {real} %y"
    yield "}"


def _array(
    name: str, inner: str, real: str, arity: int, attributes: str, metadata: int
) -> Iterator[str]:
    pointers = "".join(f"ptr %a{i}, " for i in range(arity))
    yield f"define void @{name}(i64 %n, {pointers}ptr %out, i64 %mode) {attributes} {{"
    yield "entry:"
    yield "  %some = icmp sgt i64 %n, 0"
    yield "  br i1 %some, label %loop, label %done"
    yield from _loop(inner, real, arity, "%n", metadata)
    yield "done:"
    yield "  ret void"
    yield "}"
    yield from _hints(metadata, short=False)


def _vector(
    name: str, inner: str, real: str, arity: int, attributes: str, metadata: int, lanes: int
) -> Iterator[str]:
    kind = f"<{lanes} x {real}>"
    given = ", ".join(f"{kind} %v{i}" for i in range(arity))
    yield f"define {kind} @{name}({given}) {attributes} {{"
    yield "entry:"
    for i in range(arity):
        yield f"  %a{i} = alloca {kind}"
        yield f"  store {kind} %v{i}, ptr %a{i}"
    yield f"  %out = alloca {kind}"
    yield "  br label %loop"
    yield from _loop(inner, real, arity, str(lanes), metadata)
    yield "done:"
    yield f"  %y = load {kind}, ptr %out"
    yield f"  ret {kind} %y"
    yield "}"
    yield from _hints(metadata, short=True)


def _loop(inner: str, real: str, arity: int, count: str, metadata: int) -> Iterator[str]:
    """Yield a loop that writes the function of ``%a0`` (and ``%a1``) to ``%out``."""
    group = f"!llvm.access.group !{metadata}"
    yield "loop:"
    yield "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]"
    for i in range(arity):
        yield f"  %p{i} = getelementptr inbounds {real}, ptr %a{i}, i64 %i"
        yield f"  %x{i} = load {real}, ptr %p{i}, {group}"
    given = ", ".join(f"{real} %x{i}" for i in range(arity))
    yield f"  %r = call {real} @{inner}({given})"
    yield f"  %q = getelementptr inbounds {real}, ptr %out, i64 %i"
    yield f"  store {real} %r, ptr %q, {group}"
    yield "  %next = add nuw nsw i64 %i, 1"
    yield f"  %more = icmp slt i64 %next, {count}"
    yield f"  br i1 %more, label %loop, label %done, !llvm.loop !{metadata + 1}"


def _hints(metadata: int, *, short: bool) -> Iterator[str]:
    """Yield metadata of a loop: no element depends on another, as ``out`` is an input or apart."""
    own, first = metadata + 1, metadata + 2
    hints = [f'!"llvm.loop.parallel_accesses", !{metadata}', '!"llvm.loop.mustprogress"']
    if short:  # it would be unrolled before it could be widened
        hints.append('!"llvm.loop.unroll.disable"')
    yield f"!{metadata} = distinct !{{}}"
    listed = ", ".join(f"!{first + i}" for i in range(len(hints)))
    yield f"!{own} = distinct !{{!{own}, {listed}}}"
    for i, hint in enumerate(hints):
        yield f"!{first + i} = !{{{hint}}}"


# Loading ---------------------------------------------------------------------------------


class Loaded:
    """The functions of an object in this process, by attribute, as in a ``ctypes.CDLL``."""

    def __init__(self, path: Path) -> None:
        llvm = binding()
        machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
        try:
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
            self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_path(str(path)))
            self._engine.finalize_object()
        except (RuntimeError, OSError) as error:
            raise NativeError(
                f"The cached build {path} cannot be loaded: {error}. Delete its folder; the next "
                "run builds it again."
            ) from error

    def __getattr__(self, name: str) -> ctypes.c_void_p:
        found = self._engine.get_function_address(name)
        if not found:
            raise AttributeError(name)
        return ctypes.c_void_p(found)


def load(path: Path) -> Loaded:
    """Load an object into the process, where it stays: a thread may be inside it.

    Raises:
        NativeError: it cannot be loaded.
    """
    with cache.turn():
        if path not in _loaded:
            _loaded[path] = Loaded(path)
        return _loaded[path]
