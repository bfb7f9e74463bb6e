# SPDX-License-Identifier: Apache-2.0
"""What is in a new library that somebody starts from?"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Final

from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import LibraryError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
#: What stands for the library's name in the files of the template.
_PLACEHOLDER: Final = "@LIBRARY@"


def make(folder: Path) -> list[Path]:
    """Write a library into a new or empty folder, whose name is the library's.

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
        for source in sorted(files(__name__).joinpath("template").iterdir(), key=lambda f: f.name):
            path = folder / source.name.removesuffix(".in")
            text = source.read_text(encoding="utf-8")
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
