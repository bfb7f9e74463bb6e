# SPDX-License-Identifier: Apache-2.0
"""Whether the files of a UDF library are as they were: asked at each entry of a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from pytest_udftorch.base.newest import Newest
from pytest_udftorch.swap.library.description import UdfLibrary, files_below
from pytest_udftorch.swap.native.runtime import runtime

#: What C++ of operators may include.
_SOURCES: Final = (".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".inc")

#: So many libraries are remembered.
_LIBRARIES: Final = 64


def _paths(library: UdfLibrary) -> Iterator[str]:
    """Yield the files that a build or an import may read, and the folders where some may appear."""
    yield from library.description_files()
    yield from library.source_files()
    folders = [library.folder, *library.include_dirs]
    for udf in (udf for those in library.operators.values() for udf in those):
        for path in (udf.source, udf.python):
            if path is not None:
                yield str(path)
        if udf.source is not None:
            folders.append(udf.source.parent)
            yield from files_below(udf.source.parent, _SOURCES)
    for folder in dict.fromkeys(folders):
        for root, below, _ in os.walk(folder):
            below[:] = [name for name in below if name != "__pycache__"]
            yield root


class _States:
    """The files of one library, and the state in which they were listed."""

    def __init__(self, library: UdfLibrary) -> None:
        self.library = library  # keeps it, so that no other one gets its id
        paths = sorted(set(_paths(library)))
        self.packed = b"".join(os.fsencode(path) + b"\0" for path in paths)
        self.count = len(paths)
        self.listed = self.now()

    def now(self) -> int:
        return runtime().states(self.packed, self.count)


_known: Final[Newest[int, _States]] = Newest(_LIBRARIES)


def files_state(library: UdfLibrary) -> int:
    """Return a number that is another one once a file of a library has changed, come or gone."""
    states = _known.get(id(library))
    if states is not None:
        now = states.now()
        if now == states.listed:
            return now
    states = _known[id(library)] = _States(library)
    return states.listed
