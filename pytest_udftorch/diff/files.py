# SPDX-License-Identifier: Apache-2.0
"""What a command line names as a run: a function in a file, or a script."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from pytest_udftorch.errors import DiffRunError
from pytest_udftorch.reach.counted import load_make


def load(where: str, arguments: Sequence[str] = ()) -> Callable[[], Any]:
    """Return what makes the run that ``model.py:make`` or ``train.py`` names.

    Args:
        where: a file and a function in it, or a script, which runs as ``__main__``.
        arguments: of the script. What it prints is not shown.

    Raises:
        CoverageError: there is no such function.
        DiffRunError: there is no such script, or a function got arguments.
    """
    path = Path(where)
    if path.suffix != ".py":
        if arguments:
            raise DiffRunError(
                f"{where} is a function, which takes no arguments ({' '.join(arguments)}). Options "
                "of udftorch stand before it."
            )
        return load_make(where)
    if not path.is_file():
        raise DiffRunError(f"There is no script {path} to run.")

    def script() -> None:
        folder = str(path.resolve().parent)
        with (
            mock.patch.object(sys, "argv", [str(path), *arguments]),
            mock.patch.object(sys, "path", [folder, *sys.path]),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise DiffRunError(f"{path} ended with {end.code!r}.") from end

    return lambda: script
