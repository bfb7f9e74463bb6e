# SPDX-License-Identifier: Apache-2.0
"""Examples in docstrings as code of the API reference. Griffe loads this (mkdocs.yml).

Lines that begin with ``>>>`` are an example for doctest wherever they stand. Griffe shows them as
code in a section of examples alone, and Markdown takes them for quotations elsewhere.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any


def fenced(text: str) -> str:
    """Return a docstring with its examples in fences, without the flags of doctest.

    An example goes on to the next empty line, with what it prints.
    """
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        words = line.lstrip()
        if words.startswith(">>>") and not fence:
            fence = line[: len(line) - len(words)] + "```"
            lines.append(f"{fence}pycon")
        elif fence and not words:
            lines.append(fence)
            fence = ""
        lines.append(re.sub(r"\s*# doctest: \+\w+$", "", line) if fence else line)
    return "\n".join([*lines, fence] if fence else lines)


with contextlib.suppress(ImportError):  # only the site needs it
    import griffe

    class Examples(griffe.Extension):  # type: ignore[misc,unused-ignore]
        """Fences the examples of every docstring that Griffe reads."""

        def on_instance(self, *, obj: Any, **_: Any) -> None:
            """Change a docstring before it is parsed."""
            if obj.docstring is not None and ">>>" in obj.docstring.value:
                obj.docstring.value = fenced(obj.docstring.value)
