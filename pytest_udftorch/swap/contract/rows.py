# SPDX-License-Identifier: Apache-2.0
"""Norms and softmax of dense rows on the CPU, by the loops of ``contract_rows.h``."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final

from pytest_udftorch.swap.contract.native import Contract
from pytest_udftorch.swap.cpu.loops import Loops
from pytest_udftorch.swap.cpu.operators import cpu_operators


class _Rows(ctypes.Structure):
    """``struct rows`` of ``contract_rows.h``, field for field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "n", "channels")),
        *((name, ctypes.c_void_p) for name in (
            "x", "grad", "weight", "bias", "mean", "rstd", "y", "second",
            "exp", "log",
        )),
        ("eps", ctypes.c_double),
        ("next", ctypes.c_int64),
        ("failed", ctypes.c_int64),
    )  # fmt: skip


@functools.cache
def _operator(name: str) -> bytes:
    return f"aten::{name}".encode()


def dense(*tensors: Any) -> bool:
    """Tell whether tensors are on the CPU with rows side by side in memory."""
    return all(not t.is_cuda and t.is_contiguous() for t in tensors if t is not None)


#: Functions that softmax calls.
FUNCTIONS: Final = ("exp", "log")


def functions(operator: str) -> dict[str, int] | None:
    """Return the addresses of the sessions' functions, if softmax is to call them itself.

    Without them, and where a profile counts what they do, it calls torch's operators.
    """
    return None if (loops := cpu_operators.loops) is None else _addresses(loops, operator)


@functools.lru_cache(maxsize=16)
def _addresses(loops: Loops, operator: str) -> dict[str, int] | None:
    if not loops.held.issuperset(FUNCTIONS) or loops.threads(operator, FUNCTIONS).within:
        return None
    return dict(zip(FUNCTIONS, loops.addresses(FUNCTIONS), strict=True))


def run(
    made: Contract, name: str, rows: int, n: int, *, channels: int = 1, eps: float = 0.0,
    called: dict[str, int] | None = None, **tensors: Any,
) -> None:  # fmt: skip
    """Call a function of rows.

    Args:
        made: the compiled contract.
        name: the function, without ``fast_``.
        rows: the number of rows; those of batch norm are the channels of each sample.
        n: their length.
        channels: the number of channels.
        eps: what is added to a variance.
        called: what ``functions`` returns.
        tensors: dense tensors of float32 for the members of ``struct rows``, or None.
    """
    places = {key: t.data_ptr() for key, t in tensors.items() if t is not None}
    given = _Rows(rows=rows, n=n, channels=channels, eps=eps, **places, **(called or {}))
    threads = ctypes.byref(made.threads(_operator(name)))
    if getattr(made.library, f"fast_{name}")(ctypes.byref(given), threads):
        raise MemoryError(f"There is no memory for some rows of {n} elements.")
