# SPDX-License-Identifier: Apache-2.0
"""The target speeds of corem, and the measured speeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

#: Largest ratios to VML's time: for these functions, and for the rest.
VML: Final = (frozenset(("exp", "log", "sin", "cos", "tanh", "log2", "log10")), 1.0, 1.1)
#: The largest ratio to the time of SLEEF's most accurate form.
SLEEF: Final = 1.0
INTEL_CR: Final = 1.0
#: Intel has no correctly rounded erf; this is against its 1-ULP form, at AVX-512.
INTEL_ERF: Final = 1.0
#: The scalar form.
GLIBC: Final = 1.0
#: Four times as fast, at the widest level.
LLVM_LIBC: Final = 0.25
#: Largest ratios of corem's time to std's, for whole operators.
OPERATORS: Final = dict.fromkeys(
    ("softmax", "log_softmax", "cross entropy", "sigmoid", "silu", "elu", "gelu", "gelu tanh"), 1.0
)


@dataclass(frozen=True)
class Figure:
    """One ratio of times: its target, and what was measured.

    Attributes:
        what: function or operator.
        level: ``avx512``, ``avx2``, ``scalar``, ``memory`` or ``operator``.
        peer: what corem is compared with.
        limit: the largest ratio that meets the target.
        measured: the ratio, median of the rounds.
    """

    what: str
    level: str
    peer: str
    limit: float
    measured: float


def _limits(function: str, level: str, widest: str) -> Iterator[tuple[str, float]]:
    if level == "scalar":
        yield "glibc", GLIBC
        return
    yield "intel-cr", INTEL_CR
    first, near, far = VML
    yield "vml", near if function in first else far
    yield "sleef u10", SLEEF
    yield "sleef u15", SLEEF
    if level == widest:
        yield "llvm-libc", LLVM_LIBC
        if function == "erf":
            yield "intel 1-ulp", INTEL_ERF


def figures(speeds: dict[str, Any]) -> list[Figure]:
    """Return every figure that has a target and is in a stored result of ``speed``."""
    found = []
    for function, entry in speeds["functions"].items():
        widest = next(iter(entry))
        for level, contenders in entry.items():
            for peer, limit in _limits(function, level, widest):
                if peer in contenders:
                    ratio = contenders[peer]["corem_over"]
                    found.append(Figure(function, level, peer, limit, ratio))
    first, near, far = VML
    for name, row in speeds["operators"].items():
        function = name.removeprefix("torch.")
        limit = OPERATORS.get(name) or (near if function in first else far)
        found.append(Figure(name, "operator", "std", limit, row["corem_over"]))
    return found
