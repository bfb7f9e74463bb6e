# SPDX-License-Identifier: Apache-2.0
"""Canary operators: real torch operators on known inputs, to show that a swap reached them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_udftorch.base import compat
from pytest_udftorch.base.compat import import_torch
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.toolchain import golden
from pytest_udftorch.swap.toolchain.golden import ELEMENTS
from pytest_udftorch.swap.toolchain.shared_library import Build


@dataclass(frozen=True)
class Case:
    """Inputs of a canary operator, and the UDF's own results for them.

    Attributes:
        layouts: name of the memory layout -> one tensor of ELEMENTS per argument.
        expected: results of the library's array form, called directly without torch. They are
            those that the library records, if it does (``toolchain.golden``).
        encodings: the bits of ``expected`` as integers.
    """

    layouts: Mapping[str, tuple[Any, ...]]
    expected: Any
    encodings: Any


_cases: dict[tuple[str, str, str], Case] = {}


def case(build: Build, function: str, dtype: str) -> Case:
    """Return the canary inputs of a function and the build's results for them; made once.

    Raises:
        WrongBuildError: the results are not those that the library records.
        LibraryError: what it records cannot be read.
    """
    key = (build.build_id, function, dtype)
    if key not in _cases:
        torch = import_torch()
        golden.check(build, function, dtype)
        inputs = torch.tensor(golden.rows(function), dtype=getattr(torch, dtype), device="cpu")
        spread = torch.stack((inputs, inputs), dim=-1)[..., 0]
        expected = torch.empty_like(inputs[0])
        call = build.array_function(function, dtype)
        call(ELEMENTS, *(row.data_ptr() for row in inputs), expected.data_ptr(), 0)
        encodings = expected.view(torch.int32 if dtype == "float32" else torch.int64)
        layouts = {"contiguous": tuple(inputs), "strided": tuple(spread)}
        _cases[key] = Case(layouts, expected, encodings)
    return _cases[key]


@contextlib.contextmanager
def plain_torch() -> Iterator[Any]:
    """Yield torch without the user's modes, autocast and overrides."""
    torch = import_torch()
    with (
        compat.no_modes(),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        compat.no_torch_function(),
    ):
        yield torch


def put_back_modes() -> Callable[[], None]:
    """Return a callable that sets this thread's modes to what they are now.

    A signal handler that raises inside the end of ``plain_torch`` or of a probe would leave
    gradients, autocast or the overrides off.
    """
    torch = import_torch()
    grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    boards = dispatcher.mode_now()

    def put_back() -> None:
        torch.set_grad_enabled(grad)
        torch.set_autocast_enabled("cpu", autocast)
        dispatcher.set_mode(boards)

    return put_back


def mismatch(
    torch: Any,
    build: Build,
    function: str,
    dtype: str,
    operator: Callable[..., Any] | None = None,
) -> str:
    """Run an operator on every layout; describe the first difference, if any.

    It is ``torch.<function>`` unless another one is given.
    """
    known = case(build, function, dtype)
    operator = operator or getattr(torch, function)
    for layout, rows in known.layouts.items():
        got = operator(*rows)
        encodings = got.view(known.encodings.dtype)
        if not torch.equal(encodings, known.encodings):
            at = int((encodings != known.encodings).to(torch.uint8).argmax())
            values = ", ".join(float(row[at]).hex() for row in rows)
            return (
                f"its {layout} result for {values} is {float(got[at]).hex()}, where the "
                f"UDF gives {float(known.expected[at]).hex()}."
            )
    return ""
