# SPDX-License-Identifier: Apache-2.0
"""What is in a new library that somebody starts from?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import LibraryError, UnknownFunctionError, nearest
from pytest_udftorch.swap.library.fpcore import c_function, read_fpcore
from pytest_udftorch.swap.library.symbols import FUNCTIONS

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
#: What stands for the library's name in the files of the template.
_PLACEHOLDER: Final = "@LIBRARY@"


def _template() -> dict[str, str]:
    sources = files(__name__).joinpath("template").iterdir()
    return {s.name.removesuffix(".in"): s.read_text(encoding="utf-8") for s in sources}


def of_fpcore(text: str) -> dict[str, str]:
    """Return the files of a library with the functions of a text of FPCore, named as torch's.

    Raises:
        SourceError: it is no FPCore, or uses what is not taken here.
        UnknownFunctionError: torch has no such function of as many arguments.
    """
    cores = read_fpcore(text)
    lines = ["[library]", f'name = "{_PLACEHOLDER}"', 'version = "0.1"']
    found = {}
    for core in cores:
        known = FUNCTIONS.get(core.name)
        if known is None or known.arity != len(core.arguments):
            raise UnknownFunctionError(
                f"(FPCore {core.name or '...'} ({' '.join(core.arguments)}) ...): torch calls no "
                f"such function. Name one, behind FPCore. {nearest(core.name, FUNCTIONS)}"
            )
        file, symbol = f"{core.name}.c", f"{_PLACEHOLDER}_{core.name}f"
        found[file] = c_function(core, symbol)
        lines += ["", f"[functions.{core.name}.float32]", f'source = "{file}"']
        lines += [f'scalar = "{symbol}"', "# max_ulp = what `udftorch verify` finds"]
    return {"udf.toml": "\n".join(lines) + "\n", **found}


def make(folder: Path, texts: Mapping[str, str] | None = None) -> list[Path]:
    """Write a library into a new or empty folder, whose name is the library's.

    Args:
        folder: the library's.
        texts: name of a file -> what is in it; by default those of a library to start from.
            ``@LIBRARY@`` stands for the library's name.

    Returns:
        The files.

    Raises:
        LibraryError: the name is none for a library, the folder holds something, or it cannot
            be written.
    """
    folder = folder.absolute()
    name = folder.name
    if not _NAME.fullmatch(name):
        raise LibraryError(
            f"{name!r} is not a name for a library. Use letters, digits, _ and -, and begin with a "
            "letter: udftorch new my_math."
        )
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise LibraryError(
                f"{folder} is there already, and holds something. Name a new folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
        made = []
        for file, text in sorted((texts or _template()).items()):
            path = folder / file
            # In C a name has no -.
            text = text.replace(f"{_PLACEHOLDER}_", f"{name.replace('-', '_')}_")
            text = text.replace(_PLACEHOLDER, name)
            whole_file.write(path, text)
            made.append(path)
    except OSError as error:
        raise LibraryError(
            f"Cannot write the library {folder}: {error.strerror or error}. Name another folder."
        ) from error
    return made
