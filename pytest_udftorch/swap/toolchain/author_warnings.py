# SPDX-License-Identifier: Apache-2.0
"""What a compiler warned of, passed on to the author of a source: each warning once.

A source is compiled for several CPU levels, with and without counters, for the same warning. What
is in the build cache is not compiled again, and says nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_udftorch.swap.library.description import shipped_folder

#: What a compiler says of a line: the file, the place in it, and the warning.
_PLACED: Final = re.compile(r"^(/[^:\n]+:\d+(?::\d+)?: warning: .*)$", re.MULTILINE)
#: What it says of the loops that ``udf-widen`` makes, which stand in no file.
_NOT_VECTORISED: Final = re.compile(r"^warning: loop not vectorized", re.MULTILINE)
_MANIFEST: Final = "-udf-widen-manifest="

#: Warnings that this process has passed on.
_said: Final[set[str]] = set()


def pass_on(message: str, source: Path, arguments: Sequence[str], texts: Mapping[str, str]) -> None:
    """Show warnings on standard error, but those of sources that come with this package.

    Args:
        message: what the compiler wrote.
        source: what it compiled.
        arguments: its arguments.
        texts: name -> text of the files of the build, among them the pass's manifest.
    """
    found = _PLACED.findall(message)
    if _NOT_VECTORISED.search(message):
        found += _slow_paths(source, arguments, texts)
    # Whoever uses a library of this package is not the author of its sources.
    ours = f"{shipped_folder()}{os.sep}"
    for line in found:
        if line not in _said and not line.startswith(ours):
            _said.add(line)
            with contextlib.suppress(OSError, ValueError):  # nobody reads it
                print(f"udftorch: {line}", file=sys.stderr, flush=True)


def _slow_paths(source: Path, arguments: Sequence[str], texts: Mapping[str, str]) -> Iterator[str]:
    manifest = next((a[len(_MANIFEST) :] for a in arguments if a.startswith(_MANIFEST)), "")
    functions = json.loads(texts[manifest])["functions"] if manifest in texts else []
    # LLVM does not say which: of several in a file, one or more.
    names = [f[path] for f in functions for path in ("quick", "fast") if f.get(path)]
    where = "this path" if len(names) == 1 else "one of the paths of this file, perhaps this one"
    text = source.read_text(encoding="utf-8", errors="replace")
    for name in names:
        before = re.split(rf"\b{re.escape(name)}\s*\(", text, maxsplit=1)[0]
        line = before.count("\n") + 1 if before != text else 1
        yield (
            f"{source}:{line}: warning: loop not vectorized: {name}: LLVM cannot make vector "
            f"code of {where}, so its vector forms take one element at a time. Write "
            "selects (a < b ? x : y) in the place of jumps, loops and calls."
        )
