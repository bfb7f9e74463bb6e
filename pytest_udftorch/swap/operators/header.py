# SPDX-License-Identifier: Apache-2.0
"""``operators.h``: what C++ needs of the rows, as text that a build writes beside its output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pytest_udftorch.swap.operators.row import Row
from pytest_udftorch.swap.operators.rows import ROWS
from pytest_udftorch.swap.operators.scalars import MULTIPLIED_OUT

#: The name of the file.
NAME: Final = "operators.h"


def _macro(head: str, lines: Iterable[str]) -> str:
    return " \\\n".join((f"#define {head}", *(f"  {line}" for line in lines))) + "\n"


def _launched(row: Row, device: str) -> Iterable[tuple[str, str]]:
    """Yield each overload of a row with a kernel in C++, and the expression that makes the kernel.

    On the CPU it is what is overridden there and what a composite overrides.
    """
    ops = (*row.cuda, *row.cpu, *(() if row.whole is None else (row.whole,)))
    for op in ops:
        yield from op.launched if device == "cuda" else op.launched_on_cpu


def kernels() -> Mapping[str, str]:
    """Return the file of the switchboard: overload -> what makes its kernel, exponents of pow."""
    text = ""
    for device in ("cpu", "cuda"):
        known = dict(pair for row in ROWS for pair in _launched(row, device))
        entries = (f'{{"{overload}", {maker}}},' for overload, maker in known.items())
        text += _macro(f"UDFTORCH_{device.upper()}_KERNELS", entries)
    exponents = ", ".join(map(str, sorted(MULTIPLIED_OUT)))
    return {NAME: text + _macro("UDFTORCH_MULTIPLIED_OUT", (exponents,))}


def observer() -> Mapping[str, str]:
    """Return the file of the observer: the kernels with functions in them, and their operators.

    Where a kernel serves an operator in several forms (in place, with out=), the first form names
    the operator.
    """
    lines = []
    for row in ROWS:
        for stub in row.stubs:
            kernel, _, name = stub.partition(":")
            rows = str(kernel.endswith("*")).lower()
            lines.append(f'FOLLOW({kernel.rstrip("*")}, {rows}, "aten::{name or row.name}")')
    return {NAME: _macro("UDFTORCH_FOLLOWED(FOLLOW)", lines)}
