# SPDX-License-Identifier: Apache-2.0
"""A form of a UDF library as a candidate."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from pytest_udftorch.errors import UnknownFunctionError
from pytest_udftorch.prove.verify.candidate import Candidate, chosen_form, file_sha256
from pytest_udftorch.prove.verify.reference.checker import compile_shared, included_files
from pytest_udftorch.swap.library.description import UdfFunction, UdfLibrary
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, KNOWN, forms
from pytest_udftorch.swap.toolchain.compiler import FLAGS, resolve_cpu_level
from pytest_udftorch.swap.toolchain.shared_library import Build, build_library, include_flags

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def source_sha256(library: UdfLibrary, function: str) -> str:
    """Return the SHA-256 over what a function is compiled from.

    These are its C source and the headers of the library that it includes, without comments
    and with white space collapsed, and the names of its entry points. A certificate is valid
    as long as this digest stays the same. Paths in files of their own are left out, because they
    are part of some forms alone; see ``short_sha256`` and ``quick_sha256``.

    Raises:
        PackageMissingError, NativeError: see ``included_files``.
    """
    digest = hashlib.sha256()
    if library.defines:
        digest.update(repr(library.defines).encode())
    for dtype in ("float32", "float64"):
        described = library.functions.get((function, dtype))
        if described is None:
            continue
        entry: tuple[str | None, ...]
        entry = (dtype, described.scalar, described.fast, described.accurate)
        if described.quick is not None:
            entry += (described.quick, *(described.quick_levels or ()))
        if described.short is not None and described.short_source is None:
            entry += (described.short,)
        digest.update(repr(entry).encode())
        digest.update(_texts(library, described.source))
    return digest.hexdigest()


def short_sha256(library: UdfLibrary, function: str) -> str | None:
    """Return the SHA-256 over what the short path of a float32 function is compiled from.

    The run of a scalar form is valid as long as this digest stays the same too. None if there is no
    short path, or none in a file of its own.

    Raises:
        PackageMissingError, NativeError: see ``included_files``.
    """
    described = library.functions[function, "float32"]
    if described.short is None or described.short_source is None:
        return None
    return _path_sha256(library, described.short, described.short_source)


def quick_sha256(library: UdfLibrary, function: str, cpu_level: str) -> str | None:
    """Return the SHA-256 over what the quick path of a CPU level alone is compiled from.

    The runs of the vector and array forms of that level are valid as long as this digest stays the
    same too. None if the level has no such path.

    Raises:
        PackageMissingError, NativeError: see ``included_files``.
    """
    own = library.functions[function, "float32"].own_quick(cpu_level)
    return None if own is None else _path_sha256(library, *own)


def _path_sha256(library: UdfLibrary, name: str, source: Path) -> str:
    """Return the SHA-256 over a path in a file of its own: its entry point, and what it reads."""
    digest = hashlib.sha256(repr(name).encode())
    digest.update(_texts(library, source))
    return digest.hexdigest()


def _texts(library: UdfLibrary, source: Path) -> bytes:
    """Return a source and the library's headers that it includes, without comments."""
    found = []
    for path in included_files(source, (library.folder, *library.include_dirs)):
        text = _COMMENT.sub(" ", path.read_text(encoding="utf-8"))
        name = os.path.relpath(path, library.folder)
        found.append(f"\0{name}\0{' '.join(text.split())}")
    return "".join(found).encode()


def udf_candidate(
    library: UdfLibrary, function: str, form: str | None, cpu_level: str | None, count_hard: bool
) -> Candidate:
    """Build a library and return one form of a function; see ``find_candidate``."""
    library.select((function,))
    level = resolve_cpu_level(cpu_level)
    what = f"{library.name} at CPU level {level}"
    form = chosen_form(form, forms("float32", level), "array", what)
    if (function, "float32") not in library.functions:
        raise UnknownFunctionError(f"UDF library {library.name!r} has no float32 {function!r}.")
    described = library.functions[function, "float32"]
    build = build_library(library, level)
    facts = json.loads((build.path.parent / "build.json").read_text(encoding="utf-8"))
    return Candidate(
        library=library.name,
        version=library.version,
        function=function,
        dtype="float32",
        form=form,
        cpu_level=level,
        symbol=KNOWN[function].export("float32", form),
        build_id=build.build_id,
        library_sha256=file_sha256(build.path),
        source_sha256=source_sha256(library, function),
        compiler=facts["compiler"],
        claim=described.claim or library.claim,
        max_ulp=described.max_ulp,
        path=build.path,
        hard_counter=_hard_counter(build, described) if count_hard else None,
        short_sha256=short_sha256(library, function) if form == "scalar" else None,
        quick_sha256=quick_sha256(library, function, level) if form != "scalar" else None,
    )


def _hard_counter(build: Build, function: UdfFunction) -> Path | None:
    """Compile a loop that counts the inputs for which the fast path reports "hard"."""
    if function.fast is None:
        return None
    two = KNOWN[function.name].arity == 2
    text = (
        f'#include "{function.source}"\n'
        '__attribute__((visibility("default")))\n'
        "int64_t udfref_hard(int64_t n, const float *a, const float *b) {\n"
        "  int64_t count = 0;\n"
        "  (void)b;\n"
        "  for (int64_t i = 0; i < n; i++) {\n"
        "    int hard = 0;\n"
        f"    {function.fast}(a[i], {'b[i], ' if two else ''}&hard);\n"
        "    count += hard != 0;\n"
        "  }\n"
        "  return count;\n"
        "}\n"
    )
    library = build.library
    flags = [f for f in FLAGS if f not in ("-femit-all-decls", "-Wall")]
    flags += [*CPU_LEVELS[build.cpu_level][0], *include_flags(library), "-include", "stdint.h"]
    return compile_shared(
        f"hard-{function.name}", {"hard.c": text}, tuple(flags), ("-lm",),
        {str(library.folder): f"LIBRARY-{library.name}"},
    )  # fmt: skip
