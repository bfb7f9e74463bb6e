# SPDX-License-Identifier: Apache-2.0
"""The swapped functions as LLVM bitcode, for compilers that can take them inside.

A *selection* says which functions come from which build. Its folder in the cache holds the
linked bitcode of their scalar and vector forms, the map for the pass ``udf-replace``, and a
C++ compiler: a script that calls clang with the pass. The name of the folder is a hash of all
that it depends on, so whoever keys a cache by the compiler's path keeps different functions
apart.
The bitcode is made when the script first compiles something.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.build.cache import cache_folder, fill, sha256_of
from pytest_udftorch.build.job import Step, run_stages
from pytest_udftorch.build.selection import Part, cuda_id
from pytest_udftorch.build.shared import (
    Build,
    build_library,
    by_source,
    include_flags,
    library_manifest,
)
from pytest_udftorch.build.toolchain import FLAGS, Compiler, find_compiler, run, tool
from pytest_udftorch.errors import CacheError, SourceCompileError
from pytest_udftorch.library.description import UdfLibrary
from pytest_udftorch.library.symbols import CPU_LEVELS, FUNCTIONS, forms
from pytest_udftorch.native.manifest import instrument_manifest, link_inputs, observe_source
from pytest_udftorch.native.runtime import pass_plugin

_SCRIPT: Final = "udf-clang++"
_BITCODE: Final = "bitcode"
_SUMS: Final = "SHA256SUMS"

#: Functions that LLVM has intrinsics for, and since which version; a compiler turns calls of
#: libm into them.
_INTRINSICS: Final = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log10", "sin", "cos", "pow"), 16),
    **dict.fromkeys(("tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"), 19),
    "atan2": 20,
}
_LETTERS: Final = {"float32": "f32", "float64": "f64"}


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


def compiler_for(parts: tuple[Part, ...]) -> Path:
    """Return the C++ compiler whose code calls the functions of a selection.

    Raises:
        CacheError: the cache folder cannot be written.
        CompilerNotFoundError, CompilerTooOldError: see ``toolchain.find_compiler``.
    """
    compiler = find_compiler()
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
        f'(cd "$here/{_BITCODE}" && sha256sum --status -c {_SUMS}) 2>/dev/null || '
        f'{maker} "$here" || exit 1\n'
        f'export UDFTORCH_REPLACE_MAP="$here/{_BITCODE}/map.json";;\n'
        "esac\n"
        'case " $* " in *" -c "*|*" -E "*|*" c++-header "*) ;; '
        f'*) set -- "$@" {inputs};; esac\n'
        f"exec {shlex.quote(str(compiler.path))} --driver-mode=g++ "
        f'-fpass-plugin={shlex.quote(str(compiler.plugin))} "$@"\n'
    )
    # The script and the description name files outside the cache, which another installation
    # has elsewhere.
    facts = json.dumps([cuda_id(parts), description, text, _torch_installed()])
    folder = cache_folder() / f"compiler-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    def make(scratch: Path) -> dict[str, Any]:
        (scratch / "selection.json").write_text(json.dumps(description, indent=1))
        (scratch / _SCRIPT).write_text(text, encoding="utf-8")
        (scratch / _SCRIPT).chmod(0o700)
        return {"script": _SCRIPT}

    fill(folder, make)
    return folder / _SCRIPT


def _torch_installed() -> list[str | int]:
    """Return where torch is installed, and when it was.

    Inductor keeps precompiled headers by the compiler's path, and clang rejects one whose
    headers have been installed again since.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    return [spec.origin, os.stat(spec.origin).st_mtime_ns]


def make_bitcode(folder: Path) -> None:
    """Make the bitcode and the map of a selection, unless they are there and intact.

    Raises:
        SourceCompileError: a source does not compile, or was changed since.
        CompilerNotFoundError: llvm-link is not beside the compiler.
        CacheError: the folder is not a selection's, or cannot be written.
    """
    try:
        description = json.loads((folder / "selection.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CacheError(f"{folder} holds no selection: {error}. Delete it.") from error
    home = folder / _BITCODE

    def make(scratch: Path) -> dict[str, Any]:
        replaced = _compile(scratch, description, find_compiler())
        facts = {"bitcode": str(home / "udf.bc"), "targets": replaced}
        (scratch / "map.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
        sums = [f"{sha256_of(scratch / n)}  {n}\n" for n in ("map.json", "udf.bc")]
        (scratch / _SUMS).write_text("".join(sums), encoding="utf-8")
        return {}

    fill(home, make)


def _compile(
    scratch: Path, description: list[dict[str, Any]], compiler: Compiler
) -> dict[str, str]:
    """Make ``udf.bc`` in the scratch folder, and return the targets of the map."""
    jobs: list[list[str]] = []
    replaced: dict[str, str] = {}
    observed = False
    with tempfile.TemporaryDirectory(dir=scratch) as pieces:
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
            jobs += bitcode_jobs(
                Path(pieces), len(jobs), build, build.library, keys, compiler, flags
            )
            if build.profiled and not observed:
                observed = True
                jobs.append(
                    [
                        str(compiler.path), *flags, "-emit-llvm", "-c", str(observe_source()[0]),
                        "-o", f"{pieces}/observe.bc",
                    ]
                )  # fmt: skip
        steps = [Step(Path(job[0]), tuple(job[1:])) for job in jobs]
        link = (*(job[-1] for job in jobs), "-o", str(scratch / "udf.bc"))
        run_stages([steps, [Step(tool(compiler, "llvm-link"), link)]], scratch, _failed)
    return replaced


def bitcode_jobs(
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
    jobs = []
    sources = by_source(library.functions[key] for key in keys)
    for number, (source, functions) in enumerate(sources.items(), start=first):
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
                str(compiler.path), *flags, *include_flags(library), *compiler.plugin_flags,
                *options, "-emit-llvm", "-c", str(source), "-o", str(piece),
            ]
        )  # fmt: skip
    return jobs


def _run(command: list[str]) -> str:
    done = run(command)
    if done.returncode != 0:
        raise _failed(Step(Path(command[0]), tuple(command[1:])), done.stderr.strip())
    return done.stdout


def _failed(step: Step, message: str) -> SourceCompileError:
    command = shlex.join([str(step.tool), *step.arguments])
    return SourceCompileError(f"{command}\nfailed:\n{message}")


if __name__ == "__main__":
    make_bitcode(Path(sys.argv[1]))
