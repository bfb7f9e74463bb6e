# SPDX-License-Identifier: Apache-2.0
"""Which libraries and functions the options and the markers choose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_udftorch.errors import UdfError
from pytest_udftorch.plugin.options import MARKER, Options
from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.session.option_values import as_path_or_name
from pytest_udftorch.swap.session.session import Session, patched, whole_functions
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level


# Compared by identity: Targets makes only one of equal targets.
@dataclass(frozen=True, eq=False)
class Target:
    """A library and the functions of it that a test runs under.

    Attributes:
        library: the UDF library.
        functions: torch's names, or None for all that the library has.
        path: the folder as an absolute path if the library was chosen by path.
        composites: whether activations are correctly rounded as a whole.
    """

    library: UdfLibrary
    functions: tuple[str, ...] | None
    path: Path | None
    composites: bool

    def open(
        self, options: Options, profile: str | None = None, out: Path | None = None
    ) -> Session:
        """Return a session of this target, not yet entered."""
        chosen: Any = {"profile": profile or False, "cuda_form": options.cuda_form}
        chosen |= {
            "ranks": "error" if options.strict else "warn",
            "exclusive": options.exclusive,
            "composites": self.composites,
        }
        level = options.cpu_level
        return patched(self.library, self.functions, cpu_level=level, profile_out=out, **chosen)


class Targets:
    """What the user chose for the run, and what a marker chooses for a test.

    Attributes:
        chosen: id -> target, from the command line or the ini file.
    """

    def __init__(self, options: Options) -> None:
        self.chosen: dict[str, Target] = {}
        self._options = options
        self._known: dict[tuple[Path, tuple[str, ...] | None, bool], Target] = {}

    def choose(self) -> None:
        """Find the libraries and functions of the options.

        Raises:
            UdfError: there is no such library, function or CPU level.
        """
        names = self._options.functions
        targets = []
        for which in self._options.libraries:
            library = find_library(which)
            if names is not None:
                library.select(names)
            targets.append(self._target(library, which, names, self._options.composites))
        if self._options.cpu_level is not None:
            resolve_cpu_level(self._options.cpu_level)
        self.chosen = _by_id(targets)

    def _target(
        self,
        library: UdfLibrary,
        which: str | Path | None,
        functions: tuple[str, ...] | None,
        composites: bool,
    ) -> Target:
        """Return the one target of a folder and a selection of functions."""
        if composites:
            whole_functions(library)
        path = which if isinstance(which, Path) else None
        target = Target(library, functions, path, composites)
        return self._known.setdefault((library.folder, functions, composites), target)

    def of(self, item: pytest.Item) -> Mapping[str, Target]:
        """Return id -> target for a test, from its closest marker or else from the options.

        Raises:
            UdfError: the marker is wrong; the message names the test.
        """
        mark = item.get_closest_marker(MARKER)
        if mark is None:
            return self.chosen
        try:
            return self._marked(mark, item.path.parent)
        except UdfError as error:
            raise UdfError(
                f"{item.nodeid}: the marker {MARKER} cannot be used. {error}\n"
                f'Its form is @pytest.mark.{MARKER}("corem") or '
                f'@pytest.mark.{MARKER}("corem", functions=("exp", "log")).'
            ) from None

    def _marked(self, mark: pytest.Mark, folder: Path) -> Mapping[str, Target]:
        if not mark.args:
            raise UdfError("It names no library.")
        unknown = set(mark.kwargs) - {"functions", "composites"}
        if unknown:
            raise UdfError(
                f"It has no keyword {', '.join(map(repr, sorted(unknown)))}; it has 'functions' "
                "and 'composites'."
            )
        composites = mark.kwargs.get("composites", self._options.composites)
        if not isinstance(composites, bool):
            raise UdfError(f"composites={composites!r} is neither True nor False.")
        targets = []
        for which in mark.args:
            if isinstance(which, str) and which.strip():
                which = as_path_or_name(which, folder)
            elif isinstance(which, Path):
                which = folder / which
            elif isinstance(which, UdfLibrary):
                raise UdfError(
                    f"{which.name!r} was made in Python, and the marker takes names and paths. "
                    "Give it to the fixture patched_libtorch in the test."
                )
            else:
                raise UdfError(f"{which!r} is neither the name nor the path of a library.")
            library = find_library(which)
            names = mark.kwargs.get("functions")
            if names is not None:
                names = library.select(_checked(names))
            targets.append(self._target(library, which, names, composites))
        return _by_id(targets)


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UdfError(f"functions={names!r} is a string; give a sequence: ({names!r},).")
    if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise UdfError(f"functions={names!r} is not a sequence of torch's function names.")
    return tuple(names)


def _by_id(targets: Iterable[Target]) -> dict[str, Target]:
    """Return id -> target; the id is the library's name, numbered from the second on."""
    found: dict[str, Target] = {}
    unique = list(dict.fromkeys(targets))
    names = [re.sub(r"[^A-Za-z0-9_.+-]", "_", t.library.name) for t in unique]
    for name, target in zip(names, unique, strict=True):
        key, number = name, 2
        while key in found or (number > 2 and key in names):
            key, number = f"{name}.{number}", number + 1
        found[key] = target
    return found
