# SPDX-License-Identifier: Apache-2.0
"""A selection: which functions come from which build, and what names it.

The name is a hash of the content, so a cache keyed by it keeps different functions apart.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.toolchain.cuda_form import DOUBLE, FLOAT_FLOAT, resolved_form
from pytest_udftorch.swap.toolchain.shared_library import Build

# Part of the name: raise it when the script or the map of ``bitcode`` changes.
_VERSION: Final = 14


@dataclass(frozen=True)
class Part:
    """Functions taken from one build.

    Attributes:
        build: the compiled library.
        functions: (torch's name, dtype) of each.
        cuda_form: the form asked for on GPUs: ``double``, ``float-float`` or ``auto``.
    """

    build: Build
    functions: tuple[tuple[str, str], ...]
    cuda_form: str = DOUBLE


def selection_id(parts: Iterable[Part]) -> str:
    """Return 16 hex digits that name a selection by its content."""
    facts = [_VERSION, *((p.build.build_id, p.functions) for p in parts)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def cuda_sources(part: Part) -> list[tuple[UdfLibrary, tuple[tuple[str, str], ...]]]:
    """Return libraries with the float32 functions of a part that a GPU gets from each."""
    library = part.build.library
    keys = tuple(key for key in part.functions if key[1] == "float32")
    if library.float_float is None or resolved_form(part.cuda_form) != FLOAT_FLOAT:
        return [(library, keys)] if keys else []
    pairs = find_library(library.float_float)
    inside = tuple(key for key in keys if key in pairs.functions)
    outside = tuple(key for key in keys if key not in pairs.functions)
    return [(source, found) for source, found in ((pairs, inside), (library, outside)) if found]


def cuda_doubles(part: Part) -> tuple[tuple[str, str], ...]:
    """Return the float64 functions of a part that a GPU can get: those with two paths in C."""
    known = part.build.library.functions
    return tuple(
        key
        for key in part.functions
        if key[1] == "float64" and known[key].fast and known[key].source.suffix == ".c"
    )


def cuda_forms(part: Part) -> dict[str, str]:
    """Return float32 function -> the form that a GPU gets, ``double`` or ``float-float``."""
    forms = {}
    for library, keys in cuda_sources(part):
        form = DOUBLE if library is part.build.library else FLOAT_FLOAT
        forms.update(dict.fromkeys(keys, form))
    return {key[0]: forms[key] for key in part.functions if key in forms}


def cuda_id(parts: Iterable[Part]) -> str:
    """Return 16 hex digits that name, by its content, a selection as GPUs get it."""
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
