# SPDX-License-Identifier: Apache-2.0
"""The swapped functions as LLVM bitcode, for compilers that can inline them.

A *selection* says which functions come from which build. Its folder in the cache holds the
linked bitcode of their scalar and vector forms, the map for the pass ``udf-replace``, and a
C++ compiler: a script that calls clang with the pass. The folder's name is a hash of everything
that it depends on, so a cache that is keyed by the compiler's path keeps different functions
apart. The script makes the bitcode when it first compiles something.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import CacheError, CompilerNotFoundError, NativeError, SourceError
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, FUNCTIONS, forms
from pytest_udftorch.swap.native.manifest import link_inputs, observe_source, team_source
from pytest_udftorch.swap.native.runtime import pass_plugin
from pytest_udftorch.swap.toolchain.cache import cache_folder, fill, let_go, sha256_of
from pytest_udftorch.swap.toolchain.compiler import (
    FLAGS,
    Compiler,
    check_openmp,
    find_compiler,
    tool,
)
from pytest_udftorch.swap.toolchain.job import Step, run_stages
from pytest_udftorch.swap.toolchain.selection import Part, cuda_id
from pytest_udftorch.swap.toolchain.shared_library import build_library, compile_steps

_SCRIPT: Final = "udf-clang++"
_BITCODE: Final = "bitcode"
_SUMS: Final = "SHA256SUMS"
#: Linked into everything: see ``native/c/team.c``.
_TEAM: Final = "team.o"

#: Function -> the first LLVM version that has an intrinsic for it. Compilers turn calls of libm
#: into intrinsics.
_INTRINSICS: Final = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log10", "sin", "cos", "pow"), 16),
    **dict.fromkeys(("tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"), 19),
    "atan2": 20,
}


def targets(function: str, dtype: str, cpu_level: str) -> dict[str, str]:
    """Return symbol or intrinsic -> form, for the map of ``udf-replace``."""
    known = FUNCTIONS[function]
    symbols = known.symbols(dtype)
    _, llvm = pass_plugin()
    intrinsic = _INTRINSICS.get(function, llvm + 1) <= llvm
    found: dict[str, str] = {}
    for form in forms(dtype, cpu_level):
        if form != "array":
            names = list(symbols[form])
            if intrinsic:
                lanes = form if form != "scalar" else ""
                names.append(f"llvm.{function}.{lanes}f{dtype[5:]}")
            found.update(dict.fromkeys(names, known.export(dtype, form)))
    return found


def compiler_for(parts: tuple[Part, ...]) -> Path:
    """Return the C++ compiler whose code calls the functions of a selection.

    If there is no clang, or it lacks OpenMP, the result is a script that says so whenever it is to
    compile something.

    Raises:
        CacheError: the cache folder cannot be written.
        CompilerNotFoundError: ``UDFTORCH_CLANG`` names no usable clang.
    """
    try:
        compiler = find_compiler()
    except (CompilerNotFoundError, NativeError) as error:
        if os.environ.get("UDFTORCH_CLANG"):
            raise
        return _compiler_that_is_missing(str(error))
    try:
        check_openmp(compiler)
    except CompilerNotFoundError as error:
        return _compiler_that_is_missing(str(error))
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
    # Code that counts asks the runtime for its cells. It is loaded in this process, but other
    # processes, into which Inductor loads code to try it, have to find it.
    counting = []
    if any(part.build.profiled for part in parts):
        for path in link_inputs():
            counting += [path, f"-Wl,-rpath,{Path(path).parent}"]
    maker = shlex.join((sys.executable, "-m", __name__))
    text = (
        "#!/bin/sh\n"
        "# clang++ with the functions of a UDF library in place of the C library's.\n"
        "here=${0%/*}\n"
        'case "$*" in --version|-v|-dumpversion|-print-*) ;; *)\n'
        f'(cd "$here/{_BITCODE}" && sha256sum --status -c {_SUMS}) 2>/dev/null || '
        f'{maker} "$here" || exit 1\n'
        f'export UDFTORCH_REPLACE_MAP="$here/{_BITCODE}/map.json"\n'
        'case " $* " in *" -c "*|*" -E "*|*" c++-header "*) ;; '
        f'*) set -- "$@" "$here/{_BITCODE}/{_TEAM}" {shlex.join(counting)};; esac;;\n'
        "esac\n"
        f"exec {shlex.quote(str(compiler.path))} --driver-mode=g++ "
        f'-fpass-plugin={shlex.quote(str(compiler.plugin))} "$@"\n'
    )
    # Inductor keeps precompiled headers by the compiler's path, and clang rejects one whose headers
    # have been installed again since.
    torch = importlib.util.find_spec("torch")
    installed = [torch.origin, os.stat(torch.origin).st_mtime_ns] if torch and torch.origin else []
    # The script and the description name files outside the cache, which lie elsewhere in another
    # installation.
    facts = json.dumps([cuda_id(parts), description, text, installed])
    folder = cache_folder() / f"compiler-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    def make(scratch: Path) -> dict[str, Any]:
        (scratch / "selection.json").write_text(json.dumps(description, indent=1))
        (scratch / _SCRIPT).write_text(text, encoding="utf-8")
        (scratch / _SCRIPT).chmod(0o700)
        return {"script": _SCRIPT}

    _left.pop(folder, None)
    fill(folder, make)
    return folder / _SCRIPT


#: Compilers that no session has any more, the one that was left longest ago first.
_left: Final[dict[Path, None]] = {}

#: So many of them stay as they are, since suites switch between a few selections.
_MOST_LEFT: Final = 8


def leave(script: Path) -> None:
    """Give up a compiler that :func:`compiler_for` returned; one that compiled nothing is removed.

    Each choice of functions has one, with an open file and a folder.
    """
    _left.pop(script.parent, None)
    _left[script.parent] = None
    while len(_left) > _MOST_LEFT:
        folder = next(iter(_left))
        del _left[folder]
        let_go(folder, remove=not (folder / _BITCODE).exists())


def _compiler_that_is_missing(why: str) -> Path:
    """Return a script that fails with a reason, and that says its version like a compiler.

    What needs no C++ compiler, such as Inductor's code for GPUs, then works.
    """
    sentence = (
        "TorchInductor cannot compile C++ in this session: clang would put the library's functions "
        f"into the code. {why} `udftorch doctor` tries what works here."
    )
    text = (
        "#!/bin/sh\n"
        "# Stands for a compiler that is not installed, or lacks a part.\n"
        'case "$*" in --version|-v|-dumpversion) echo "clang is not complete"; exit 0;; esac\n'
        f"echo {shlex.quote(sentence)} >&2\nexit 1\n"
    )
    folder = cache_folder() / f"compiler-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def make(scratch: Path) -> dict[str, Any]:
        (scratch / _SCRIPT).write_text(text, encoding="utf-8")
        (scratch / _SCRIPT).chmod(0o700)
        return {"script": _SCRIPT}

    fill(folder, make)
    return folder / _SCRIPT


def make_bitcode(folder: Path) -> None:
    """Make the bitcode and the map of a selection, unless they exist and are intact.

    Raises:
        SourceError: a source does not compile, or has changed since.
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
        sums = [f"{sha256_of(scratch / n)}  {n}\n" for n in ("map.json", "udf.bc", _TEAM)]
        (scratch / _SUMS).write_text("".join(sums), encoding="utf-8")
        return {}

    fill(home, make)


def _compile(
    scratch: Path, description: list[dict[str, Any]], compiler: Compiler
) -> dict[str, str]:
    """Make ``udf.bc`` in the scratch folder, and return the targets of the map."""
    steps: list[Step] = []
    texts: dict[str, str] = {}
    replaced: dict[str, str] = {}
    counter: Step | None = None
    for part in description:
        level = part["cpu_level"]
        build = build_library(Path(part["library"]), level, profiled=part["profiled"])
        if build.build_id != part["build_id"]:
            raise SourceError(
                f"UDF library {build.library.name!r} was changed while a session has it open. "
                "Open a new session: compiled models and eager operators would differ."
            )
        flags = (*FLAGS, *CPU_LEVELS[level][0])
        functions = [build.library.functions[name, dtype] for name, dtype in part["functions"]]
        for function in functions:
            replaced |= targets(function.name, function.dtype, level)
        more, manifests = compile_steps(
            build.library, functions, level, compiler, flags,
            profiled=build.profiled, bitcode=True, first=len(steps),
        )  # fmt: skip
        steps += more
        texts |= manifests
        if build.profiled and counter is None:
            source = observe_source()[0]
            arguments = (*flags, "-emit-llvm", "-c", str(source), "-o", "observe.bc")
            counter = Step(compiler.path, arguments, source)
    if counter is not None:
        steps.append(counter)
    pieces = [step.arguments[-1] for step in steps]
    arguments = ("-O2", "-fPIC", "-c", str(team_source()), "-o", str(scratch / _TEAM))
    steps.append(Step(compiler.path, arguments, team_source()))
    link = Step(tool(compiler, "llvm-link"), (*pieces, "-o", str(scratch / "udf.bc")))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        run_stages([steps, [link]], texts, Path(folder), failed)
    return replaced


def failed(step: Step, message: str) -> SourceError:
    """Return an error that quotes the command of a step and what the tool wrote."""
    command = shlex.join([str(step.tool), *step.arguments])
    return SourceError(f"{command}\nfailed:\n{message}")


if __name__ == "__main__":
    make_bitcode(Path(sys.argv[1]))
