# SPDX-License-Identifier: Apache-2.0
"""The fixture ``udf_golden``: which file belongs to a test, and whether to check or to store."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_udftorch.diagnose.golden.check import (
    Judgement,
    check_callable,
    check_golden,
    store_golden,
)
from pytest_udftorch.errors import GoldenError
from pytest_udftorch.plugin.parameters import FIXTURE

if TYPE_CHECKING:
    import torch


class GoldenValues:
    """Checks computations of one test against golden values, or stores these."""

    def __init__(self, test: Any, library: str, *, update: bool) -> None:
        self._folder = test.path.parent / "golden" / test.path.stem
        self._test, self._library, self._update = _name(test), library, update
        self._used: set[str] = set()

    def __call__(
        self,
        computation: Callable[..., Any],
        inputs: Sequence[Any] | torch.Tensor = (),
        *,
        name: str = "",
        truth: Callable[..., Any] | None = None,
        digests: bool = False,
    ) -> Judgement:
        """Run a computation and compare its result with what is stored.

        Args:
            computation: a module, or a callable that returns tensors.
            inputs: its positional arguments, a tuple; or a single tensor.
            name: tells several checks of one test apart.
            truth: what to run in float64 for the truth, if the computation itself cannot: the
                eager model of a compiled one, for example.
            digests: keep the bits of this platform too; other bits on the same platform fail.

        Raises:
            GoldenError: the computation cannot be called, nothing is stored, the file cannot be
                used, or a name is used twice.
            GoldenMismatchError: the result is farther from the truth than rounding explains.
        """
        __tracebackhide__ = True
        check_callable(computation)
        if name in self._used:
            raise GoldenError(
                f"Two checks of this test have the name {name!r}. Give each a name= of its own."
            )
        self._used.add(name)
        parts = filter(None, (self._test, re.sub(r"[^A-Za-z0-9._-]", "_", name)))
        path = self._folder / f"{'-'.join(parts)}.json"
        if self._update:
            return store_golden(
                path, computation, inputs, truth=truth, digests=digests, library=self._library
            )
        if not path.exists():
            raise GoldenError(
                f"No golden values are stored for this check: {path} is missing. Run the test once "
                "with --udf-golden-update, look at the file, and keep it with the code."
            )
        return check_golden(path, computation, inputs, library=self._library)


def _name(test: pytest.Item) -> str:
    """Return a test's name without that of its library: all libraries have the same truth."""
    name = test.name
    callspec = getattr(test, "callspec", None)
    label = callspec.params.get(FIXTURE) if callspec is not None else None
    if callspec is not None and label is not None:
        words = str(callspec.id)
        rest = words.removeprefix(str(label)).removeprefix("-")
        name = name.removesuffix(f"[{words}]") + (f"[{rest}]" if rest else "")
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_")
