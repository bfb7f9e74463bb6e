# SPDX-License-Identifier: Apache-2.0
"""Where symbols are called for the first time: in which operator, layer and line of code.

The marking trampolines say that a symbol was called, and the observer, which knows when an operator
ends, says in which one. It follows every operator then, at some 75 ns each. For the line it looks
at the thread's frames in Python, once for each new mark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from pytest_udftorch.errors import UdfError
from pytest_udftorch.swap.counting.modules import ModuleNames
from pytest_udftorch.swap.counting.observer import load_observer
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.records.layout import STAGES

#: What is known of a symbol that nobody saw.
_NOWHERE: Final = ("", "", 0, "")


@contextlib.contextmanager
def sighting() -> Iterator[None]:
    """Note inside where marked symbols are called first.

    Raises:
        UdfError: the observer cannot be had here, or torch refuses it.
    """
    observer, cells = load_observer(), runtime().cells
    with ModuleNames(cells, observer):
        if not observer.start(all_operators=True):
            raise UdfError("torch refused the callbacks of the observer (at::addGlobalCallback).")
        cells.sighting(True)
        try:
            yield
        finally:
            cells.sighting(False)
            observer.stop()


def forget() -> None:
    """Begin anew, for the next test."""
    runtime().cells.sighting(True)


def places(indices: Iterable[int]) -> list[str]:
    """Return where the symbols with these trampolines were called first, as far as is known.

    >>> places([17])  # doctest: +SKIP
    ['aten::log of Net.head, backward']
    """
    found = []
    for index in indices:
        operator, module, stage, _ = runtime().cells.sight(index) or _NOWHERE
        backward = f", {STAGES[stage]}" if STAGES[stage] in ("backward", "optimizer") else ""
        text = operator + (f" of {module}" if module else "")
        if operator and text + backward not in found:
            found.append(text + backward)
    return found


def lines(indices: Iterable[int]) -> list[str]:
    """Return the lines of code that called these symbols first, as far as is known."""
    found = (runtime().cells.sight(index) or _NOWHERE for index in indices)
    return list(dict.fromkeys(line for *_, line in found if line))
