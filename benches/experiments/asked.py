# SPDX-License-Identifier: Apache-2.0
"""The target speeds of corem, and the measured speeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Largest ratios to VML's time: for these functions, and for the rest.
VML: Final = (frozenset(("exp", "log", "sin", "cos", "tanh", "log2", "log10")), 1.0, 1.1)
#: The largest geometric mean of the ratios to stock, of operators that torch computes by VML.
VML_MEAN: Final = 0.95
#: Level -> the largest geometric mean of the ratios to Intel's 1-ULP functions.
INTEL_MEAN: Final = {"avx512": 1.0, "avx2": 1.15}
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
        what: function or operator, or what a mean is of.
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
    if (level, widest) != ("avx2", "avx512"):  # VML's code there is for AVX-512
        first, near, far = VML
        yield "vml", near if function in first else far
    yield "sleef u10", SLEEF
    yield "sleef u15", SLEEF
    if level == widest:
        yield "llvm-libc", LLVM_LIBC
        if function == "erf" and level == "avx512":
            yield "intel 1-ulp", INTEL_ERF


def _means(speeds: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the geometric means that have a target."""
    for level, limit in INTEL_MEAN.items():
        found = [e[level] for e in speeds["functions"].values() if level in e]
        ratios = [c["intel 1-ulp"]["corem_over"] for c in found if "intel 1-ulp" in c]
        if ratios:
            what = f"geometric mean of {len(ratios)} functions"
            yield Figure(what, level, "intel 1-ulp", limit, statistics.geometric_mean(ratios))
    by_vml = {
        f"torch.{function}"
        for function, entry in speeds["functions"].items()
        if any("vml" in contenders for contenders in entry.values())
    }
    ratios = [row["corem_over"] for name, row in speeds["operators"].items() if name in by_vml]
    if ratios:
        what = f"geometric mean of {len(ratios)} operators by VML"
        yield Figure(what, "operator", "std", VML_MEAN, statistics.geometric_mean(ratios))


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
    return [*found, *_means(speeds)]
