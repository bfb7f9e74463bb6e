"""The swapped functions as LLVM bitcode, for compilers that can take them inside.

A *selection* says which functions come from which build. Its folder in the cache holds the
linked bitcode of their scalar and vector forms, the map for the pass ``udf-replace``, and a
C++ compiler: a script that calls clang with the pass. The name of the folder is a hash of the
contents, so whoever keys a cache by the compiler's path keeps different functions apart.
The bitcode is made when the script first compiles something.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.build import (
    FLAGS,
    Build,
    Compiler,
    build_library,
    cache_folder,
    find_compiler,
    library_manifest,
)
from pytest_udftorch.errors import CacheError, CompilerNotFoundError, SourceCompileError
from pytest_udftorch.library import UdfFunction
from pytest_udftorch.native import pass_plugin
from pytest_udftorch.symbols import CPU_LEVELS, FUNCTIONS, forms

# Part of the key: raise it when the script or the map below changes.
_VERSION: Final = 3

#: Functions that LLVM has intrinsics for; a compiler turns calls of libm into them.
_INTRINSICS: Final = frozenset(
    ("exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh",
     "asin", "acos", "atan", "pow", "atan2")
)  # fmt: skip
_LETTERS: Final = {"float32": "f32", "float64": "f64"}


@dataclass(frozen=True)
class Part:
    """Functions taken from one build.

    Attributes:
        build: the compiled library.
        functions: (torch's name, dtype) of each.
    """

    build: Build
    functions: tuple[tuple[str, str], ...]


def targets(function: str, dtype: str, cpu_level: str) -> dict[str, str]:
    """Return symbol or intrinsic -> form, for the map of ``udf-replace``."""
    known = FUNCTIONS[function]
    found: dict[str, str] = {}
    available = forms(dtype, cpu_level)
    for form, names in known.symbols(dtype).items():
        if form in available and form != "array":
            found.update(dict.fromkeys(names, known.export(dtype, form)))
    if function in _INTRINSICS:
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
    folder = cache_folder() / f"compiler-{selection_id(parts)}"
    script = folder / "udf-clang++"
    if script.is_file():
        return script
    compiler = find_compiler()
    plugin, _ = pass_plugin()
    description = [
        {
            "library": str(part.build.library.folder),
            "build_id": part.build.build_id,
            "cpu_level": part.build.cpu_level,
            "functions": part.functions,
        }
        for part in parts
    ]
    maker = " ".join(map(shlex.quote, (sys.executable, "-m", __name__, str(folder))))
    text = (
        "#!/bin/sh\n"
        "# clang++ with the functions of a UDF library in place of the C library's.\n"
        f"here={shlex.quote(str(folder))}\n"
        'case "$*" in --version|-v|-dumpversion|-print-*) ;; *)\n'
        f'[ -e "$here/udf.bc" ] || {maker} || exit 1\n'
        'export UDFTORCH_REPLACE_MAP="$here/map.json";;\n'
        "esac\n"
        f"exec {shlex.quote(str(compiler.path))} --driver-mode=g++ "
        f'-fpass-plugin={shlex.quote(str(plugin))} "$@"\n'
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "selection.json", json.dumps(description, indent=1))
        _write(script, text, mode=0o755)
    except OSError as error:
        raise CacheError(
            f"The build cache {folder.parent} cannot be written: {error}. Set "
            "UDFTORCH_CACHE_DIR to a folder that can."
        ) from error
    return script


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file that other processes see whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, mode)
    os.replace(name, path)


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
            _run([str(_llvm_link(compiler)), *map(str, pieces), "-o", str(linked)])
            _write(
                folder / "map.json",
                json.dumps({"bitcode": str(folder / "udf.bc"), "targets": replaced}, indent=1),
            )
            linked.replace(folder / "udf.bc")


def _compile(
    scratch: Path, description: list[dict[str, Any]], compiler: Compiler
) -> tuple[list[Path], dict[str, str]]:
    """Return one bitcode file for each source, and the targets of the map."""
    plugin, _ = pass_plugin()
    jobs: list[list[str]] = []
    pieces: list[Path] = []
    replaced: dict[str, str] = {}
    for part in description:
        level = part["cpu_level"]
        build = build_library(Path(part["library"]), level)
        library = build.library
        if build.build_id != part["build_id"]:
            raise SourceCompileError(
                f"UDF library {library.name!r} was changed while a session has it open. Open a "
                "new session: compiled models and eager operators would differ."
            )
        includes = [f"-I{d}" for d in (library.folder, *library.include_dirs)]
        by_source: dict[Path, list[UdfFunction]] = {}
        for name, dtype in part["functions"]:
            function = library.functions[name, dtype]
            by_source.setdefault(function.source, []).append(function)
            replaced |= targets(name, dtype, level)
        for source, functions in by_source.items():
            piece = scratch / f"{len(jobs)}.bc"
            manifest = piece.with_suffix(".json")
            document = library_manifest(functions, level)
            for entry in document["functions"]:
                del entry["forms"]["array"]
            manifest.write_text(json.dumps(document), encoding="utf-8")
            jobs.append(
                [
                    str(compiler.path), *FLAGS, *CPU_LEVELS[level][0], *includes,
                    f"-fpass-plugin={plugin}", "-Xclang", "-load", "-Xclang", str(plugin),
                    "-mllvm", f"-udf-widen-manifest={manifest}",
                    "-emit-llvm", "-c", str(source), "-o", str(piece),
                ]
            )  # fmt: skip
            pieces.append(piece)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(_run, jobs))
    return pieces, replaced


def _llvm_link(compiler: Compiler) -> Path:
    beside = compiler.path.resolve().parent / "llvm-link"
    if not beside.is_file():
        raise CompilerNotFoundError(
            f"There is no llvm-link beside {compiler.path}. Install LLVM's tools of the same "
            "version (the package llvm-<version>)."
        )
    return beside


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SourceCompileError(f"{shlex.join(command)}\nfailed:\n{done.stderr.strip()}")


if __name__ == "__main__":
    make_bitcode(Path(sys.argv[1]))
