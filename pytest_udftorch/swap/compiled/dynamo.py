# SPDX-License-Identifier: Apache-2.0
"""Dynamo under a session: it compiles no kernel of the session's that runs between its graphs.

Where a graph breaks, Dynamo compiles each frame that Python enters. A kernel in Python that the
dispatcher calls there is such a frame, although no user wrote it.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.swap.overrides.active import Active, Change
from pytest_udftorch.swap.overrides.undo import Undo

#: The folder that kernels lead through. Operators of users lie outside of it.
_FOLDER: Final = Path(__file__).parents[1]


@functools.cache
def _paths() -> tuple[str, ...]:
    """Return the folder, and that of Triton's code which launches a kernel."""
    found = [_FOLDER]
    triton = importlib.util.find_spec("triton")
    if triton is not None:
        found += [Path(place, "compiler") for place in triton.submodule_search_locations or ()]
    return tuple(f"{path}/" for path in found)


def _skip_kernels(rules: Any, active: Active, undo: Undo) -> None:
    undo.later(lambda: compat.skip_frames(rules, _paths(), skip=False))
    compat.skip_frames(rules, _paths(), skip=True)


CHANGES: Final[dict[str, Change]] = {compat.DYNAMO_RULES: _skip_kernels}
