# SPDX-License-Identifier: Apache-2.0
"""What ran beside the sessions of a run with the stock functions, as far as that shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.startup import VARIABLE

# Python imports each of these with the first process that it starts in this way.
_STARTED: Final = {
    "multiprocessing.popen_spawn_posix": "spawn",
    "multiprocessing.popen_forkserver": "forkserver",
}


def notes() -> list[str]:
    """Return a sentence for each gap."""
    found = []
    ways = [way for module, way in _STARTED.items() if module in sys.modules]
    if ways and VARIABLE not in os.environ:
        found.append(
            f"multiprocessing started processes with {' and '.join(ways)}, which begin with the "
            "stock functions. `udftorch run --udf-lib=... -m pytest` opens the session in them too."
        )
    for path, symbols in sorted(_extensions().items()):
        found.append(
            f"{path.name} is C++ code of another package, which calls {', '.join(sorted(symbols))} "
            "itself rather than through torch; these calls kept the stock functions."
        )
    return found


def _extensions() -> dict[Path, set[str]]:
    """Return the loaded extensions of torch, with the math functions that each calls."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    paths = {path.name: path for path in _loaded() if not _within(path, Path(torch.__path__[0]))}
    found: dict[Path, set[str]] = {}
    for slot in runtime().find(list(binder().symbols), list(paths)):
        found.setdefault(paths[slot.object], set()).add(slot.symbol)
    return {path: symbols for path, symbols in found.items() if _is_linked_with_torch(path)}


def _loaded() -> Iterator[Path]:
    """Yield the native modules of Python, and what ``torch.ops.load_library`` loaded."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".so"):
            yield Path(file)
    yield from map(Path, sys.modules["torch"].ops.loaded_libraries)


def _within(path: Path, folder: Path) -> bool:
    return folder.resolve() in path.resolve().parents


def _is_linked_with_torch(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return b"libc10.so" in content or b"libtorch" in content
