# SPDX-License-Identifier: Apache-2.0
"""``udftorch run``: one session in each Python process of a program, from torch's import on.

The program runs in an interpreter of its own, which replaces this one. Two variables, which its
subprocesses inherit, open the session: ``PYTHONPATH`` begins with a folder whose
``sitecustomize.py`` Python runs at the start of a process, and ``UDFTORCH_RUN`` holds the arguments
of ``patched``. Nothing is loaded until a process imports torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from pytest_udftorch.base import plain_data
from pytest_udftorch.errors import SessionStateError
from pytest_udftorch.swap.overrides.import_hook import ImportHook

if TYPE_CHECKING:
    from pytest_udftorch.swap.session.session import Session

VARIABLE: Final = "UDFTORCH_RUN"

_FOLDER: Final = Path(__file__).parent / "at_start"


def environment(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment in which each process opens a session.

    Args:
        arguments: of ``patched``, as plain data for JSON.

    Raises:
        SessionStateError: this interpreter was told not to read it.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise SessionStateError(
            "python -E, -I and -S switch off the start-up file through which udftorch run opens "
            "sessions. Leave these options out."
        )
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [path for path in paths if path and path != str(_FOLDER)]
    return {
        **os.environ,
        VARIABLE: json.dumps(arguments),
        "PYTHONPATH": os.pathsep.join([str(_FOLDER), *rest]),
    }


def interpreter() -> list[str]:
    """Return the command of this interpreter, with the options that it was given."""
    options = takewhile(lambda w: w not in ("-c", "-m", sys.argv[0]), sys.orig_argv[1:])
    return [sys.executable, *options]


def start() -> None:
    """Open the session once torch is imported."""
    if VARIABLE in os.environ:
        hook = ImportHook(_open, frozenset(["torch"]))
        sys.meta_path.insert(0, hook)


def _open(_: ModuleType) -> None:
    import atexit

    session = asked()
    session.__enter__()
    atexit.register(session.close)


def asked() -> Session:
    """Return the session, not yet entered, that the variable describes.

    Raises:
        SessionStateError: it does not hold the arguments of ``patched``.
        UdfError: ``patched`` refuses them.
    """
    from pytest_udftorch.swap.session.session import patched

    text = os.environ.get(VARIABLE, "")
    try:
        return patched(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise SessionStateError(
            f"{VARIABLE}={plain_data.shown(text)} does not hold the arguments of patched() as "
            f"JSON: {error}. `udftorch run` sets it; unset it elsewhere."
        ) from error
