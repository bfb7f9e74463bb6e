# SPDX-License-Identifier: Apache-2.0
"""From UDF sources to one shared library per (UDF library, CPU level), cached by content.

One clang command compiles each C source with the pass plugin, in which ``udf-widen`` makes the
vector and array forms. The commands run side by side, and lld links the objects. The key covers
the sources, every flag, the compiler, the plugin and the CPU level.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pytest_udftorch import errors
from pytest_udftorch.swap.library.description import (
    DESCRIPTION_FILE,
    UdfFunction,
    UdfLibrary,
    find_library,
)
from pytest_udftorch.swap.library.symbols import C_TYPES, KNOWN, SINCOS, forms, processor_of
from pytest_udftorch.swap.native.manifest import instrument_manifest, link_inputs, observe_source
from pytest_udftorch.swap.native.runtime import address, load_built, pass_plugin
from pytest_udftorch.swap.toolchain import llvmlite_forms
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.cache import cache_folder, state_of, turn
from pytest_udftorch.swap.toolchain.compiler import (
    FLAGS,
    LINK_FLAGS,
    Compiler,
    find_compiler,
    resolve_cpu_level,
)
from pytest_udftorch.swap.toolchain.job import Job, Step, available, obtain, read_report
from pytest_udftorch.swap.toolchain.watchers import watch_forms


@dataclass(frozen=True)
class Build:
    """A compiled UDF library.

    Attributes:
        library: what was compiled.
        cpu_level: ``baseline``, ``avx2`` or ``avx512``.
        build_id: first 16 hex digits of the SHA-256 over everything that the result depends on.
        path: the shared library.
        seconds: how long the compilation took when it was made, in seconds of wall-clock time.
        profiled: True if its forms count what goes in and out (``udf-instrument``).
        watching: function, dtype and form -> address of what counts, if the library itself cannot.
    """

    library: UdfLibrary
    cpu_level: str
    build_id: str
    path: Path
    seconds: float
    profiled: bool = False
    watching: Mapping[tuple[str, str, str], int] | None = field(default=None, compare=False)

    def load(self) -> ctypes.CDLL:
        """Load the library into the process, where it stays: a thread may be inside it.

        Raises:
            NativeError: the cached file cannot be loaded.
        """
        if self.path.name == llvmlite_forms.OBJECT:
            return cast(ctypes.CDLL, llvmlite_forms.load(self.path))
        return load_built(self.path)

    def forms(self, function: str, dtype: str) -> dict[str, int]:
        """Return form -> address for one function.

        Raises:
            UnknownFunctionError: the library does not have it.
        """
        if (function, dtype) not in self.library.functions:
            raise errors.UnknownFunctionError(
                f"UDF library {self.library.name!r} has no {dtype} {function!r}. "
                f"{errors.nearest(function, self.library.function_names)}"
            )
        wanted = forms(dtype, self.cpu_level)
        if self.watching is not None:
            return {form: self.watching[function, dtype, form] for form in wanted}
        lib, known = self.load(), KNOWN[function]
        return {form: address(lib, known.export(dtype, form)) for form in wanted}

    def sincos(self, dtype: str) -> int:
        """Return the address of the joint form, or 0 if sin or cos is not in the library."""
        if not _has_sincos(self.library, dtype):
            return 0
        return address(self.load(), f"__udf_{SINCOS[dtype]}")

    def array_function(self, function: str, dtype: str = "float32") -> Any:
        """Return the array form as a ctypes function ``(n, *inputs, output, mode)``.

        Pointers are passed as integers (``tensor.data_ptr()``, ``array.ctypes.data``).
        """
        arity = KNOWN[function].arity if function in KNOWN else 1
        pointers = (ctypes.c_void_p,) * (arity + 1)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, *pointers, ctypes.c_int64)
        return kind(self.forms(function, dtype)["array"])

    def scalar_function(self, function: str, dtype: str = "float32") -> Any:
        """Return the scalar form as a ctypes function of ``c_float`` or ``c_double``."""
        real = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
        kind = ctypes.CFUNCTYPE(real, *(real,) * KNOWN[function].arity)
        return kind(self.forms(function, dtype)["scalar"])


# Building ----------------------------------------------------------------------------

_built: dict[tuple[object, ...], Build] = {}


def build_library(
    which: str | Path | UdfLibrary, cpu_level: str | None = None, *, profiled: bool = False
) -> Build:
    """Compile a UDF library, or take it from the builds that were shipped, or from the cache.

    Several processes and threads may call this at once: one compiles, the others wait.

    Args:
        which: the library, its name, or its folder.
        cpu_level: ``baseline``, ``avx2`` or ``avx512``; by default the best of this CPU.
        profiled: also run the pass ``udf-instrument``; another build under another id.

    Raises:
        UnknownLibraryError, LibraryError: see ``description.find_library``.
        CompilerNotFoundError: no usable clang, and no finished build.
        SourceError: a source does not compile; the message is the compiler's. Or it cannot be read;
            a UDF is missing from its source or has the wrong C type.
        CompilerStoppedError: a tool crashed, was killed or took too long.
        CacheError: the cache cannot be written, or the build in it belongs to another user.
        CpuLevelError: see ``toolchain.resolve_cpu_level``.
    """
    library = find_library(which)
    if library.stock:
        raise errors.UnknownFunctionError(
            f"UDF library {library.name!r} stands for the stock functions: there is nothing to "
            "build. Choose another library."
        )
    level = resolve_cpu_level(cpu_level)
    state = (profiled, *_state(library, level))
    with turn():
        if state not in _built:
            _built[state] = _obtained(library, level, profiled)
        return _built[state]


def _obtained(library: UdfLibrary, level: str, profiled: bool) -> Build:
    try:
        made = obtain(_maker(library, level, profiled), find_compiler)
    except errors.CompilerNotFoundError as error:
        # A clang that is named is the only one that is wanted.
        if os.environ.get("UDFTORCH_CLANG"):
            raise
        if not llvmlite_forms.applies(library):
            kind = f"{level}, counting its calls" if profiled else level
            raise type(error)(
                f"UDF library {library.name!r} has to be compiled for {kind}: "
                f"{prebuilt.lacking()} {error}"
            ) from error
        plain = Build(library, level, *llvmlite_forms.build(library, level))
        return _counted(plain, error) if profiled else plain
    return Build(library, level, made.build_id, made.path, made.facts["seconds"], profiled)


def _counted(plain: Build, error: errors.UdfError) -> Build:
    """Return a build whose forms are called by functions that count."""
    addresses = {
        (function, dtype, form): place
        for function, dtype in plain.library.functions
        for form, place in plain.forms(function, dtype).items()
    }
    try:
        made, watching = watch_forms(addresses, plain.cpu_level, plain.build_id)
    except errors.CompilerNotFoundError:
        raise type(error)(
            f"UDF library {plain.library.name!r} works here without clang, but its calls cannot be "
            "counted: what counts them was not shipped with this installation, and is compiled. "
            f"Leave the profile out, or install a compiler. {error}"
        ) from error
    build_id = hashlib.sha256(f"{plain.build_id} {made}".encode()).hexdigest()[:16]
    return replace(plain, build_id=build_id, profiled=True, watching=watching)


def available_library(
    which: str | Path | UdfLibrary, cpu_level: str | None = None, *, profiled: bool = False
) -> str:
    """Return where :func:`build_library` would get a build; see ``job.available``.

    Raises:
        As :func:`build_library`, apart from what compiling can raise.
    """
    level = resolve_cpu_level(cpu_level)
    return available(_maker(find_library(which), level, profiled), find_compiler)


def _state(library: UdfLibrary, level: str) -> tuple[object, ...]:
    """Return what must be unchanged if a build of this process is to be used again.

    It compares states of files. Contents name the build in the cache, but every test may enter a
    session, which must not read every source.
    """
    files = []
    for path in (*library.description_files(), *library.source_files()):
        try:
            files.append((path, *state_of(os.stat(path))))
        except OSError as error:
            raise errors.SourceError(
                f"A source of UDF library {library.name!r} cannot be read: {error}. Put it back, "
                "or take its name out of the library."
            ) from error
    chosen = (os.environ.get("UDFTORCH_CLANG"), os.environ.get(prebuilt.VARIABLE))
    return (level, cache_folder(), *chosen, *files)


def _maker(library: UdfLibrary, level: str, profiled: bool) -> Callable[[Compiler], Job]:
    return lambda compiler: library_job(library, level, compiler, profiled=profiled)


def library_job(
    library: UdfLibrary,
    level: str,
    compiler: Compiler,
    *,
    profiled: bool = False,
    more: Sequence[str] = (),
    link: Sequence[str] = LINK_FLAGS,
    check: Callable[[str, Path], None] | None = None,
) -> Job:
    """Return the job that makes a library.

    Args:
        library: it has functions.
        level: a CPU level of any processor.
        compiler: clang with the pass plugin.
        profiled: let the functions count.
        more: flags behind those of the level.
        link: flags of the linker.
        check: gets the name of the library and the folder that it lies in, and raises an error
            to refuse it; by default the library is loaded.
    """
    machine = (*FLAGS, *processor_of(level).cpu_levels[level][0], *more)
    functions = library.functions.values()
    steps, texts = compile_steps(library, functions, level, compiler, machine, profiled=profiled)
    texts["sincos.c"] = "".join(_sincos_source(d) for d in SINCOS if _has_sincos(library, d))
    for source in (Path("sincos.c"), *observe_source()[: int(profiled)]):
        arguments = (*machine, "-c", str(source), "-o", f"{len(steps)}.o")
        steps.append(Step(compiler.path, arguments, source))
    output = f"lib{re.sub(r'[^A-Za-z0-9_.-]', '_', library.name)}-{level}.so"
    objects = [f"{i}.o" for i in range(len(steps))]
    libraries = link_inputs() if profiled else []
    linked = Step(compiler.path, (*objects, *libraries, *link, "-o", output))
    facts = {"library": library.name, "cpu_level": level, "flags": machine}
    return Job(
        kind="",
        compiler=compiler,
        stages=(tuple(steps), (linked,)),
        output=output,
        failed=functools.partial(_failed, library, compiler),
        texts=texts,
        root=library.folder,
        homes=homes_of(library),
        inputs=[*library.source_files(), *(observe_source() if profiled else ())],
        covers=library.name,
        facts={**facts, "version": library.version, "compiler": compiler.version},
        check=functools.partial(
            check or functools.partial(_check, library, level, profiled), output
        ),
        what=f"{library.name} for {level}{', counting' if profiled else ''}",
    )


def compile_steps(
    library: UdfLibrary,
    functions: Iterable[UdfFunction],
    level: str,
    compiler: Compiler,
    flags: Sequence[str],
    *,
    profiled: bool = False,
    bitcode: bool = False,
    first: int = 0,
) -> tuple[list[Step], dict[str, str]]:
    """Return steps that compile functions of a library, one for each source.

    Args:
        library: it has the functions.
        functions: what to compile.
        level: CPU level; it decides which vector forms are made.
        compiler: clang with the pass plugin.
        flags: its flags.
        profiled: let the functions count.
        bitcode: make bitcode instead of objects, without array forms, which libtorch alone calls.
        first: number of the first piece; the names of its files begin with it.

    Returns:
        The steps, whose last argument is the piece, and the texts of the manifests they read.
    """
    by_source: dict[Path, list[UdfFunction]] = {}
    for function in functions:
        by_source.setdefault(function.source, []).append(function)
    steps: list[Step] = []
    texts: dict[str, str] = {}
    kind = ("-emit-llvm",) if bitcode else ()
    for number, (source, inside) in enumerate(by_source.items(), start=first):
        widened, watched = library_manifest(inside, level), instrument_manifest(inside, level)
        if bitcode:
            for entry in widened["functions"]:
                del entry["forms"]["array"]
            watched["watch"] = [e for e in watched["watch"] if e["form"] != "array"]
        texts[f"{number}.json"] = json.dumps(widened)
        options = ["-mllvm", f"-udf-widen-manifest={number}.json"]
        if profiled:
            texts[f"{number}-watch.json"] = json.dumps(watched)
            options += ["-mllvm", f"-udf-instrument-manifest={number}-watch.json"]
            options += ["-mllvm", "-udf-report=report.jsonl"]
        before = dict.fromkeys(path for f in inside for path in f.before(level))
        options += [word for path in before for word in ("-include", str(path))]
        arguments = (
            *flags, *include_flags(library), *compiler.plugin_flags, *options, *kind,
            "-c", str(source), "-o", f"{number}.{'bc' if bitcode else 'o'}",
        )  # fmt: skip
        steps.append(Step(compiler.path, arguments, source))
    return steps, texts


def homes_of(library: UdfLibrary) -> dict[str, str | None]:
    """Return the folders that a library's sources lie in; see ``job.Job``."""
    others = {str(d): f"INCLUDE-{i}-{library.name}" for i, d in enumerate(library.include_dirs)}
    return {**others, str(library.folder): f"LIBRARY-{library.name}"}


def include_flags(library: UdfLibrary) -> list[str]:
    """Return the flags that give a library's sources its headers and macros."""
    folders = [f"-I{d}" for d in (library.folder, *library.include_dirs)]
    return [*folders, *(f"-D{macro}" for macro in library.defines)]


def library_manifest(functions: Iterable[UdfFunction], level: str) -> dict[str, Any]:
    """Return what udf-widen is to make, in the format that docs/swap/passes.md describes."""
    return {
        "functions": [
            {
                "name": KNOWN[f.name].c_name(f.dtype),
                "type": C_TYPES[f.dtype],
                "arity": KNOWN[f.name].arity,
                "scalar": f.scalar,
                "short": f.short,
                "quick": f.quick_at(level),
                "fast": f.fast,
                "accurate": f.accurate,
                "forms": {
                    form: KNOWN[f.name].export(f.dtype, form) for form in forms(f.dtype, level)
                },
            }
            for f in functions
        ]
    }


def _check(library: UdfLibrary, level: str, profiled: bool, output: str, folder: Path) -> None:
    """Refuse a build in which a form is missing, or which would count nothing."""
    lib = load_built(folder / output)
    for name, dtype in library.functions:
        for form in forms(dtype, level):
            symbol = KNOWN[name].export(dtype, form)
            if not hasattr(lib, symbol):
                raise errors.SourceError(
                    f"The build of {library.name!r} lacks {symbol}: the pass udf-widen did not "
                    "run. Reinstall pytest_udftorch, whose plugin is incomplete."
                )
    if not profiled:
        return
    done = {e["symbol"] for e in read_report(folder) if e["pass"] == "udf-instrument"}
    manifest = instrument_manifest(library.functions.values(), level)
    missing = sorted({e["symbol"] for e in manifest["watch"]} - done)
    if missing:
        raise errors.SourceError(
            f"The build of {library.name!r} does not count the calls of {', '.join(missing)}: the "
            "pass udf-instrument did not run. Reinstall pytest_udftorch, whose plugin is "
            "incomplete."
        )


def _has_sincos(library: UdfLibrary, dtype: str) -> bool:
    return {("sin", dtype), ("cos", dtype)} <= set(library.functions)


def _sincos_source(dtype: str) -> str:
    real = C_TYPES[dtype]
    sin, cos = (KNOWN[name].export(dtype, "scalar") for name in ("sin", "cos"))
    return (
        f"{real} {sin}({real}); {real} {cos}({real});\n"
        '__attribute__((visibility("default")))\n'
        f"void __udf_{SINCOS[dtype]}({real} x, {real} *s, {real} *c)\n"
        f"{{ *s = {sin}(x); *c = {cos}(x); }}\n"
    )


def _failed(library: UdfLibrary, compiler: Compiler, step: Step, message: str) -> errors.UdfError:
    if step.source is None:
        return errors.SourceError(
            f"UDF library {library.name!r} does not link:\n{message}\n"
            "A UDF may call its own sources and libm, nothing else."
        )
    if "unable to load plugin" in message:
        _, major = pass_plugin()
        return errors.CompilerNotFoundError(
            f"{compiler.path} ({compiler.version}) cannot load the pass plugin {compiler.plugin}, "
            f"which is built for LLVM {major}:\n{message}\nUse a clang whose LLVM is a shared "
            f"library, such as that of the package clang-{major}, or reinstall pytest_udftorch "
            "with the development files of this clang's LLVM."
        )
    if "udf-widen:" in message:
        return errors.SourceError(
            f"{step.source} does not define what {library.folder / DESCRIPTION_FILE} names:\n"
            f"{message}\nA UDF is 'float f(float)', and a fast path 'float f(float, int *hard)'. "
            "Write double for float64, and one more argument for functions of two."
        )
    return errors.SourceError(
        f"{step.source} of UDF library {library.name!r} does not compile. The compiler says:\n"
        f"{message}"
    )
