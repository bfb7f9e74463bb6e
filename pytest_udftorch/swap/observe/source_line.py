# SPDX-License-Identifier: Apache-2.0
"""The line of a test or a model that calls the operator which runs, as an editor finds it."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from functools import cache
from pathlib import Path
from typing import Final

_PACKAGE: Final = str(Path(__file__).parents[2])


@cache
def _machinery() -> tuple[str, ...]:
    """Return the folders whose lines are nobody's test or model: torch's, pytest's and ours."""
    found = [_PACKAGE]
    for name in ("torch", "pluggy", "xdist", "runpy", "contextlib"):
        home = getattr(sys.modules.get(name), "__file__", None)
        if home:
            found.append(os.path.dirname(home) if home.endswith("__init__.py") else home)
    if "pytest" in sys.modules:  # its public names come from another folder
        found.append(os.path.dirname(inspect.getfile(sys.modules["pytest"].Session)))
    return tuple(found)


def source_line() -> str:
    """Return ``model.py:8, in forward: return x / x.abs()``; empty if only machinery is running.

    It is the innermost line outside of torch, pytest and this package; in a backward pass on
    the CPU the line that asked for the gradients. A path below the working directory is relative.
    """
    frame = inspect.currentframe()
    skipped = _machinery()
    while frame is not None and frame.f_code.co_filename.startswith((*skipped, "<")):
        frame = frame.f_back
    if frame is None:
        return ""
    path = frame.f_code.co_filename
    text = linecache.getline(path, frame.f_lineno).strip()
    where = f"{path.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno}, in {frame.f_code.co_name}"
    return f"{where}: {text}" if text else where
