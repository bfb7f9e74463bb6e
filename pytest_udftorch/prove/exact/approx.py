# SPDX-License-Identifier: Apache-2.0
"""``approx``: a value to compare with ``==`` that allows a number of ULPs."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_udftorch.errors import CheckError
from pytest_udftorch.prove.exact.formats import Encodings, Format, decode, encodings
from pytest_udftorch.prove.exact.rounding import apart, message, ulp_distance


class Approx:
    """What :func:`approx` returns."""

    # Arrays and tensors leave the comparison to this class.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: object, ulp: int, truth: object | None) -> None:
        self.expected, self.ulp, self.truth = expected, ulp, truth

    def __repr__(self) -> str:
        return f"{self.expected!r} within {self.ulp} ULP"

    def __eq__(self, got: object) -> bool:
        return not self.differences(got)

    def differences(self, got: object) -> list[str]:
        """Return why ``got`` is too far, line by line; nothing if it is near enough.

        Raises:
            CheckError: dtype or shape differs; nothing to compare; the dtype is not a
                floating-point format.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        distance = ulp_distance(got, self.expected)
        if distance.size == 0:
            raise CheckError("Both arrays are empty, so the check could not fail.")
        if int(distance.max()) <= self.ulp:
            return []
        (first, fmt), (second, _) = encodings(got), encodings(self.expected)
        worst = int(distance.argmax())
        text = message(
            f"{int((distance > self.ulp).sum()):,} of {distance.size:,} {fmt.name} elements are "
            f"farther than {self.ulp} ULP from what is expected.",
            worst,
            first.shape,
            fmt,
            [("got", first.reshape(-1)), ("want", second.reshape(-1))],
            apart(int(distance.max())),
        )
        return [*text.splitlines(), *self._nearer(first, second, fmt, worst)]

    def _nearer(self, got: Encodings, want: Encodings, fmt: Format, worst: int) -> list[str]:
        """Say which of the two is nearer the truth, in all and at the worst element."""
        if self.truth is None:
            return []
        exact = np.asarray(getattr(self.truth, "numpy", lambda: self.truth)(), np.float64)
        if exact.shape != got.shape:
            raise CheckError(
                f"truth has the shape {list(exact.shape)} and the result {list(got.shape)}. Both "
                "need the same."
            )
        values = (decode(each, fmt) for each in (got, want))
        with np.errstate(invalid="ignore"):
            mine, theirs = (abs(value - exact).reshape(-1) for value in values)
        winner = "got" if mine[worst] < theirs[worst] else "want"
        if mine[worst] == theirs[worst]:
            winner = "neither"
        return [
            f"  truth  {exact.reshape(-1)[worst]:.17g}; nearer at this element: {winner}",
            f"Nearer to the truth: got in {int((mine < theirs).sum()):,} elements, want in "
            f"{int((theirs < mine).sum()):,}.",
        ]


def approx(expected: object, *, ulp: int = 1, truth: object | None = None) -> Any:
    """Return what equals results that are at most ``ulp`` numbers away from ``expected``.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0], np.float32)
    >>> x * np.float32(1 + 2**-23) == approx(x, ulp=1)
    True

    Under pytest, a failing ``assert y == approx(z, ulp=2)`` shows how many elements are too far,
    and the worst one in hex.

    Args:
        expected: float32, float64, float16 or bfloat16 tensor or array of any shape.
        ulp: how many steps from a number to the next are allowed (see ``ulp_distance``).
        truth: float64 tensor or array of the same shape. With it, the message says whether the
            result or ``expected`` is nearer the truth.

    Returns:
        An object whose ``==`` takes a tensor or array of the same dtype and shape and returns a
        bool, and raises CheckError for another dtype or shape.

    Raises:
        CheckError: ``ulp`` is not an integer from 0.
    """
    if isinstance(ulp, bool) or not isinstance(ulp, (int, np.integer)) or ulp < 0:
        raise CheckError(
            f"ulp={ulp!r} is not a number of steps. Give an integer from 0, which asks for equal "
            "values."
        )
    return Approx(expected, int(ulp), truth)
