# SPDX-License-Identifier: Apache-2.0
"""How near erfinv and lgamma in float32 come to the exact results over a session's functions.

    python -m benches.experiments.special_functions [--store FILE]

Stock computes both with functions of their own, a session by formulas over its functions of
float32. lgamma asks for the logarithm of a mantissa, between the roots of 1/2 and 2, since what the
rounding of a logarithm loses is in proportion to it. The column ``whole`` says what the logarithm
of the whole number would lose: Stirling's series (Abramowitz and Stegun, 6.1.41) in double, rounded
once, but for the logarithm, a result of float32.

As a control the same series gets the logarithm in double. It has to be right then, but for results
half way between two numbers: what is lost is lost by the logarithm's rounding.

Below -1/2 lgamma has roots, where no formula over rounded functions has digits. Errors there are in
units of numbers no smaller than one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from benches.experiments import command
from pytest_udftorch import patched

LIBRARY: Final = "corem"
COUNT: Final = 1 << 20
#: Bernoulli numbers over 2k (2k - 1).
SERIES: Final = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)

#: The row that the series alone computes.
_SERIES: Final = "lgamma, 16 to 2^100"

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


def rounded_log(x: Tensor) -> Tensor:
    """Return the logarithm in float32 of doubles that float32 holds, as doubles."""
    return torch.log(x.float()).double()


def lgamma(x: Tensor, log: Function) -> Tensor:
    """Return Stirling's series.

    Args:
        x: doubles of at least 16, where seven terms are exact to 2^-50.
        log: the logarithm.
    """
    series = sum(term / x ** (2 * k + 1) for k, term in enumerate(SERIES))
    return (x - 0.5) * (log(x) - 1) + (math.log(2 * math.pi) - 1) / 2 + series


def samples() -> dict[str, tuple[Function, Tensor]]:
    """Return name of a row -> operator of torch, and arguments."""
    generator = torch.Generator().manual_seed(0)

    def uniform() -> Tensor:
        return torch.rand(COUNT, generator=generator)

    return {
        "erfinv, -1/2 to 1/2": (torch.erfinv, uniform() - 0.5),
        "erfinv, 1/2 to 1 - 2^-23": (torch.erfinv, 1 - torch.exp2(-1 - 22 * uniform())),
        "lgamma, -8 to -1/2": (torch.lgamma, -0.5 - 7.5 * uniform()),
        "lgamma, 0 to 1/2": (torch.lgamma, 0.5 * uniform()),
        "lgamma, 1/2 to 5/2": (torch.lgamma, 0.5 + 2 * uniform()),
        "lgamma, 5/2 to 16": (torch.lgamma, 2.5 + 13.5 * uniform()),
        _SERIES: (torch.lgamma, torch.exp2(4 + 96 * uniform())),
    }


def error(result: Tensor, exact: Tensor, least: float = 0.0) -> dict[str, float]:
    """Return the largest error in units in the last place, and the share above a half.

    Args:
        result: float32.
        exact: doubles.
        least: the unit is that of a number no smaller.
    """
    unit = torch.exp2(exact.abs().clamp_min(least).log2().floor() - 23)
    ulp = ((result.double() - exact).abs() / unit)[exact != 0]
    return {"max_ulp": ulp.max().item(), "wrong": (ulp > 0.5 + 2**-20).double().mean().item()}


def measure() -> dict[str, Any]:
    """Return the errors of stock, of the session, and of the control."""
    rows = {}
    for name, (operator, x) in samples().items():
        exact = operator(x.double())
        least = 1.0 if x[0] < -0.5 else 0.0
        row = {"stock": error(operator(x), exact, least)}
        with patched(LIBRARY):
            row["session"] = error(operator(x), exact, least)
            if name == _SERIES:
                row["whole"] = error(lgamma(x.double(), rounded_log).float(), exact)
        if name == _SERIES:
            row["control"] = error(lgamma(x.double(), torch.log).float(), exact)
        rows[name] = row
    return {"library": LIBRARY, "arguments": COUNT, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("special_functions", __doc__)

    def judge(figures: dict[str, Any]) -> bool:
        for name, row in figures["rows"].items():
            shown = (f"{n} {e['max_ulp']:.2f} ulp, {e['wrong']:.2%} wrong" for n, e in row.items())
            print(f"{name:22}", *shown, sep="; ")
        return all(
            row.get("control", {"wrong": 0})["wrong"] == 0 for row in figures["rows"].values()
        )

    return command.run("special_functions", parser.parse_args(arguments), measure, judge)


if __name__ == "__main__":
    sys.exit(main())
