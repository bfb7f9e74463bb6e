# SPDX-License-Identifier: Apache-2.0
"""The line of a test or a model that calls the operator which runs, as an editor finds it."""

from __future__ import annotations

import inspect
import itertools
import linecache
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_udftorch.base import compat

_PACKAGE: Final = str(Path(__file__).parents[1])


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


class SourcePlace(NamedTuple):
    """A line that is being run.

    Attributes:
        path: of the file.
        line: its number.
        function: that it is in.
    """

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return ``model.py:8, in forward: return x / x.abs()``; relative below the folder."""
        text = linecache.getline(self.path, self.line).strip()
        path = self.path.removeprefix(os.getcwd() + os.sep)
        where = f"{path}:{self.line}, in {self.function}"
        return f"{where}: {text}" if text else where


def source_place() -> SourcePlace | None:
    """Return the innermost line outside of torch, pytest and this package; None if there is none.

    In a backward pass on the CPU it is the line that asked for the gradients.
    """
    frame = inspect.currentframe()
    skipped = _machinery()
    while frame is not None and frame.f_code.co_filename.startswith((*skipped, "<")):
        frame = frame.f_back
    if frame is None:
        return None
    return SourcePlace(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def source_line() -> str:
    """Return the text of :func:`source_place`; empty if only machinery is running."""
    place = source_place()
    return "" if place is None else str(place)


#: Nodes whose makers are kept. Older ones are forgotten: their graphs are gone, or very long.
_MOST: Final = 1 << 18


class ForwardCalls:
    """The forward operators that made the nodes of autograd's graph, and the lines that call them.

    ``torch.autograd.detect_anomaly`` says the same of a node.
    """

    def __init__(self) -> None:
        self._running, self._next = compat.running_node(), compat.next_node()
        self._made: dict[int, tuple[str, SourcePlace | None]] = {}
        self._last = -1

    def note(self, operator: Any) -> None:
        """Note the operator that is being called, if autograd made a node for it."""
        # Autograd numbers the node of an operator before it calls the kernel.
        number = self._next() - 1
        if number == self._last:
            return
        self._last = number
        if len(self._made) >= _MOST:
            for old in list(itertools.islice(self._made, _MOST // 2)):
                del self._made[old]
        self._made[number] = str(operator.name()), source_place()

    def running(self) -> str:
        """Return the operator whose gradient is being computed, and its line; empty if none is."""
        node = self._running()
        found = None if node is None else self._made.get(compat.node_number(node))
        if found is None:
            return ""
        operator, place = found
        return operator if place is None else f"{operator} at {place}"
