"""The swapped functions as LLVM bitcode, for compilers that can take them inside.

A *selection* says which functions come from which build. Its folder in the cache holds the
linked bitcode of their scalar and vector forms, the map for the pass ``udf-replace``, and a
C++ compiler: a script that calls clang with the pass. The name of the folder is a hash of all
that it depends on, so whoever keys a cache by the compiler's path keeps different functions
apart.
The bitcode is made when the script first compiles something.

For CUDA the scalar forms are compiled once more, for NVPTX, and put into a copy of the bitcode
library ``libdevice`` that triton ships, in place of the bodies of ``__nv_expf`` and its kin.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.build.cache import cache_folder, in_cache
from pytest_udftorch.build.cuda_form import DOUBLE, FLOAT_FLOAT, resolved_form
from pytest_udftorch.build.shared import Build, build_library, library_manifest
from pytest_udftorch.build.toolchain import FLAGS, Compiler, find_compiler, tool
from pytest_udftorch.errors import (
    CacheError,
    LibdeviceError,
    SourceCompileError,
)
from pytest_udftorch.library.description import UdfFunction, UdfLibrary, find_library
from pytest_udftorch.library.symbols import CPU_LEVELS, FUNCTIONS, forms
from pytest_udftorch.native.manifest import instrument_manifest, link_inputs, observe_source
from pytest_udftorch.native.runtime import pass_plugin

# Part of the key: raise it when the script or the map below changes.
_VERSION: Final = 14
_SCRIPT: Final = "udf-clang++"

#: Functions that LLVM has intrinsics for, and since which version; a compiler turns calls of
#: libm into them.
_INTRINSICS: Final = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log10", "sin", "cos", "pow"), 16),
    **dict.fromkeys(("tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"), 19),
    "atan2": 20,
}
_LETTERS: Final = {"float32": "f32", "float64": "f64"}


@dataclass(frozen=True)
class Part:
    """Functions taken from one build.

    Attributes:
        build: the compiled library.
        functions: (torch's name, dtype) of each.
        cuda_form: what was asked for on GPUs: ``double``, ``float-float`` or ``auto``.
    """

    build: Build
    functions: tuple[tuple[str, str], ...]
    cuda_form: str = DOUBLE


def targets(function: str, dtype: str, cpu_level: str) -> dict[str, str]:
    """Return symbol or intrinsic -> form, for the map of ``udf-replace``."""
    known = FUNCTIONS[function]
    found: dict[str, str] = {}
    available = forms(dtype, cpu_level)
    for form, names in known.symbols(dtype).items():
        if form in available and form != "array":
            found.update(dict.fromkeys(names, known.export(dtype, form)))
    _, llvm = pass_plugin()
    if _INTRINSICS.get(function, llvm + 1) <= llvm:
        letters = _LETTERS[dtype]
        found[f"llvm.{function}.{letters}"] = known.export(dtype, "scalar")
        for form in available:
            if form.startswith("v"):
                found[f"llvm.{function}.{form}{letters}"] = known.export(dtype, form)
    return found


def selection_id(parts: Iterable[Part]) -> str:
    """Return 16 hex digits that name a selection by its content."""
    facts = [_VERSION, *((p.build.build_id, p.functions) for p in parts)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def compiler_for(parts: tuple[Part, ...]) -> Path:
    """Return the C++ compiler whose code calls the functions of a selection.

    Raises:
        CacheError: the cache folder cannot be written.
        CompilerNotFoundError, CompilerTooOldError: see ``build.find_compiler``.
    """
    compiler = find_compiler()
    plugin, _ = pass_plugin()
    description = [
        {
            "library": str(part.build.library.folder),
            "build_id": part.build.build_id,
            "profiled": part.build.profiled,
            "cpu_level": part.build.cpu_level,
            "functions": part.functions,
        }
        for part in parts
    ]
    # Code that counts asks the runtime for its cells. This process has it loaded; others, into
    # which Inductor loads code for trial, have to find it.
    counting = []
    if any(part.build.profiled for part in parts):
        for path in link_inputs():
            counting += [path, f"-Wl,-rpath,{Path(path).parent}"]
    inputs = " ".join(map(shlex.quote, counting))
    maker = " ".join(map(shlex.quote, (sys.executable, "-m", __name__)))
    text = (
        "#!/bin/sh\n"
        "# clang++ with the functions of a UDF library in place of the C library's.\n"
        "here=${0%/*}\n"
        'case "$*" in --version|-v|-dumpversion|-print-*) ;; *)\n'
        f'[ -e "$here/udf.bc" ] || {maker} "$here" || exit 1\n'
        'export UDFTORCH_REPLACE_MAP="$here/map.json";;\n'
        "esac\n"
        'case " $* " in *" -c "*|*" -E "*|*" c++-header "*) ;; '
        f'*) set -- "$@" {inputs};; esac\n'
        f"exec {shlex.quote(str(compiler.path))} --driver-mode=g++ "
        f'-fpass-plugin={shlex.quote(str(plugin))} "$@"\n'
    )
    # The files that are named here lie elsewhere, and another installation has its own.
    facts = json.dumps([cuda_id(parts), description, text, _torch_installed()])
    folder = cache_folder() / f"compiler-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    def make(scratch: Path) -> None:
        (scratch / "selection.json").write_text(json.dumps(description, indent=1))
        (scratch / _SCRIPT).write_text(text, encoding="utf-8")
        (scratch / _SCRIPT).chmod(0o755)
        (scratch / "build.json").write_text(json.dumps({"script": _SCRIPT}))

    in_cache(folder, make)
    return folder / _SCRIPT


def _torch_installed() -> list[str | int]:
    """Return where torch is installed, and when it was.

    Inductor keeps precompiled headers by the compiler's path, and clang takes none whose
    headers have been installed again since.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    return [spec.origin, os.stat(spec.origin).st_mtime_ns]


def make_bitcode(folder: Path) -> None:
    """Make ``udf.bc`` and ``map.json`` in the folder of a selection, unless they are there.

    Raises:
        SourceCompileError: a source does not compile, or was changed since.
        CompilerNotFoundError: llvm-link is not beside the compiler.
        CacheError: the folder is not a selection's.
    """
    from filelock import FileLock

    try:
        description = json.loads((folder / "selection.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CacheError(f"{folder} holds no selection: {error}. Delete it.") from error
    with FileLock(folder / "lock"):
        if (folder / "udf.bc").is_file():
            return
        compiler = find_compiler()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            pieces, replaced = _compile(Path(scratch), description, compiler)
            linked = Path(scratch) / "udf.bc"
            _run([str(tool(compiler, "llvm-link")), *map(str, pieces), "-o", str(linked)])
            facts = {"bitcode": str(folder / "udf.bc"), "targets": replaced}
            mapping = Path(scratch) / "map.json"
            mapping.write_text(json.dumps(facts, indent=1), encoding="utf-8")
            mapping.replace(folder / "map.json")
            linked.replace(folder / "udf.bc")


def _compile(
    scratch: Path, description: list[dict[str, Any]], compiler: Compiler
) -> tuple[list[Path], dict[str, str]]:
    """Return one bitcode file for each source, and the targets of the map."""
    jobs: list[list[str]] = []
    replaced: dict[str, str] = {}
    observed = False
    for part in description:
        level = part["cpu_level"]
        build = build_library(Path(part["library"]), level, profiled=part["profiled"])
        if build.build_id != part["build_id"]:
            raise SourceCompileError(
                f"UDF library {build.library.name!r} was changed while a session has it open. "
                "Open a new session: compiled models and eager operators would differ."
            )
        keys = [(name, dtype) for name, dtype in part["functions"]]
        for name, dtype in keys:
            replaced |= targets(name, dtype, level)
        flags = (*FLAGS, *CPU_LEVELS[level][0])
        jobs += _jobs(scratch, len(jobs), build, build.library, keys, compiler, flags)
        if build.profiled and not observed:
            observed = True
            jobs.append(
                [
                    str(compiler.path), *flags, "-emit-llvm", "-c", str(observe_source()[0]),
                    "-o", str(scratch / "observe.bc"),
                ]
            )  # fmt: skip
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(_run, jobs))
    return [Path(job[-1]) for job in jobs], replaced


def _jobs(
    scratch: Path,
    first: int,
    build: Build,
    library: UdfLibrary,
    keys: Iterable[tuple[str, str]],
    compiler: Compiler,
    flags: Iterable[str],
    *,
    scalar_only: bool = False,
) -> list[list[str]]:
    """Return the clang commands that make bitcode of a library's sources; the last word is it.

    The array form is called from libtorch only. With ``scalar_only`` there are no vector
    forms either, and nothing is counted.
    """
    plugin, _ = pass_plugin()
    by_source: dict[Path, list[UdfFunction]] = {}
    for key in keys:
        function = library.functions[key]
        by_source.setdefault(function.source, []).append(function)
    jobs = []
    for number, (source, functions) in enumerate(by_source.items(), start=first):
        piece = scratch / f"{number}.bc"
        manifest, watch = scratch / f"{number}.json", scratch / f"{number}-watch.json"
        document = library_manifest(functions, build.cpu_level)
        for entry in document["functions"]:
            entry["forms"] = {
                form: symbol
                for form, symbol in entry["forms"].items()
                if form == "scalar" or (form != "array" and not scalar_only)
            }
            if scalar_only:
                entry["quick"] = None  # for vectors, and for CPUs with FMA, alone
        manifest.write_text(json.dumps(document), encoding="utf-8")
        options = ["-mllvm", f"-udf-widen-manifest={manifest}"]
        if build.profiled and not scalar_only:
            counted = instrument_manifest(functions, build.cpu_level)
            counted["watch"] = [e for e in counted["watch"] if e["form"] != "array"]
            watch.write_text(json.dumps(counted), encoding="utf-8")
            options += ["-mllvm", f"-udf-instrument-manifest={watch}"]
        jobs.append(
            [
                str(compiler.path), *flags,
                *(f"-I{d}" for d in (library.folder, *library.include_dirs)),
                f"-fpass-plugin={plugin}", "-Xclang", "-load", "-Xclang", str(plugin), *options,
                "-emit-llvm", "-c", str(source), "-o", str(piece),
            ]
        )  # fmt: skip
    return jobs


# CUDA --------------------------------------------------------------------------------

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


def cuda_sources(part: Part) -> list[tuple[UdfLibrary, tuple[tuple[str, str], ...]]]:
    """Return libraries, and which float32 functions of a part a GPU gets from each."""
    library = part.build.library
    keys = tuple(key for key in part.functions if key[1] == "float32")
    if library.float_float is None or resolved_form(part.cuda_form) != FLOAT_FLOAT:
        return [(library, keys)]
    pairs = find_library(library.float_float)
    inside = tuple(key for key in keys if key in pairs.functions)
    outside = tuple(key for key in keys if key not in pairs.functions)
    return [(source, found) for source, found in ((pairs, inside), (library, outside)) if found]


def cuda_forms(part: Part) -> dict[str, str]:
    """Return float32 function -> the form that a GPU gets, ``double`` or ``float-float``."""
    forms = {}
    for library, keys in cuda_sources(part):
        form = DOUBLE if library is part.build.library else FLOAT_FLOAT
        forms.update({name: form for name, _ in keys})
    return {name: forms[name] for name, dtype in part.functions if dtype == "float32"}


def cuda_id(parts: Iterable[Part]) -> str:
    """Return 16 hex digits that name a selection as GPUs get it, by its content."""
    parts = tuple(parts)
    facts: list[Any] = [selection_id(parts)]
    for part in parts:
        for library, keys in cuda_sources(part):
            if library is not part.build.library:
                state = tuple((p, os.stat(p).st_mtime_ns) for p in library.source_files())
                found = [library.functions[key] for key in keys]
                names = [(f.name, f.scalar, f.fast, f.accurate) for f in found]
                facts.append([_content(library.folder, state), names])
    if len(facts) == 1:
        return str(facts[0])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=8)
def _content(folder: Path, state: tuple[tuple[str, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, _ in state:
        digest.update(f"\0{os.path.relpath(path, folder)}\0".encode())
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


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

    def make(scratch: Path) -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as pieces:
            _make_libdevice(Path(pieces), parts, stock).replace(scratch / "libdevice.10.bc")
        (scratch / "build.json").write_text(json.dumps({"stock_sha256": digest}))

    in_cache(folder, make)
    return folder / "libdevice.10.bc"


def _make_libdevice(scratch: Path, parts: tuple[Part, ...], stock: Path) -> Path:
    compiler = find_compiler()
    flags = (*(f for f in FLAGS if f not in _NOT_CUDA), *_CUDA_FLAGS)
    jobs: list[list[str]] = []
    replaced: dict[str, str] = {}
    paths: list[tuple[UdfFunction, tuple[Path, ...]]] = []
    for part in parts:
        for library, keys in cuda_sources(part):
            jobs += _jobs(
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


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SourceCompileError(f"{shlex.join(command)}\nfailed:\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    make_bitcode(Path(sys.argv[1]))
