# SPDX-License-Identifier: Apache-2.0
"""Inputs worth testing: samples for large checks, Hypothesis strategies for small ones.

Uniform random reals miss almost everything of interest in a floating-point function. This
module draws inputs by encoding (every exponent alike), near the encodings where the result
changes its kind, from lists of hard-to-round cases, near multiples of pi/2, and from
significands with few bits set, where exact and half-way cases lie.

Hypothesis and gmpy2 are imported on first use.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pytest_udftorch.errors import LibraryError
from pytest_udftorch.prove.exact.formats import FORMATS, encode
from pytest_udftorch.prove.exact.rounding import correctly_rounded

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Kind = Literal["encodings", "binades", "structured", "thresholds", "pi"]

FLOAT32: Final = FORMATS["float32"]
#: How many encodings on either side of a threshold or a near-multiple are worth a test.
NEIGHBOURS: Final = 32

_HARD_LINE = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,8})")


def read_hard_cases(path: Path, arity: int = 1) -> npt.NDArray[np.uint32]:
    """Read float32 encodings in hex, one input a line; ``#`` starts a comment.

    Args:
        path: the ``hard.txt`` beside a function.
        arity: encodings on each line.

    Returns:
        uint32 array, of shape (cases,) for one argument and (cases, arity) for more.

    Raises:
        LibraryError: there is no such file, a line is not an encoding, or there is no case.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LibraryError(f"Cannot read the hard cases in {path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        matches = [_HARD_LINE.fullmatch(word) for word in words]
        if len(words) != arity or not all(matches):
            raise LibraryError(
                f"{path}:{number}: {line.strip()!r} is not {arity} float32 "
                f"encoding{'s' * (arity > 1)} in hex, such as {' '.join(['3f800001'] * arity)}."
            )
        rows.append([int(m[1], 16) for m in matches if m])
    if not rows:
        raise LibraryError(f"{path} holds no case. Fill it or remove it from udf.toml.")
    cases = np.array(rows, dtype=np.uint32)
    return cases[:, 0] if arity == 1 else cases


# Where a function changes its kind ---------------------------------------------------


def _kinds(function: str, inputs: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Classify the correctly rounded results: NaN, infinity, zero, subnormal, 1, x, other."""
    x = inputs.astype(np.uint32).view(np.float32)
    result = correctly_rounded(x, function=function).astype(np.uint32)
    magnitude = result & np.uint32(FLOAT32.sign_bit - 1)
    conditions = [
        magnitude > FLOAT32.infinity,
        magnitude == FLOAT32.infinity,
        magnitude == 0,
        magnitude < FLOAT32.min_normal,
        magnitude == encode(1.0, FLOAT32),
        magnitude == (inputs & np.uint32(FLOAT32.sign_bit - 1)),
    ]
    kinds = np.select(conditions, range(len(conditions)), len(conditions))
    return np.where(result >= FLOAT32.sign_bit, -1 - kinds, kinds).astype(np.int64)


def _kind(function: str, encoding: int) -> int:
    return int(_kinds(function, np.array([encoding], dtype=np.uint32))[0])


def _next_change(function: str, low: int, high: int) -> int:
    """Bisect for an encoding in (low, high] whose predecessor has the kind of ``low``."""
    before = _kind(function, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _kind(function, middle) == before:
            low = middle
        else:
            high = middle
    return high


@functools.cache
def thresholds(function: str) -> tuple[int, ...]:
    """Return the float32 encodings before which the result changes its kind.

    The function finds them: it compares the kind of the correctly rounded result (NaN,
    infinite, zero, subnormal, +-1, equal to the input, other, with its sign) between the
    starts of neighbouring binades, and locates each change by bisection. Among them are the
    overflow and underflow thresholds of exp and the ends of the domain of log.
    """
    step = FLOAT32.min_normal
    ends = FLOAT32.infinity
    probes = np.array(
        [s + e for s in (0, FLOAT32.sign_bit) for e in (*range(0, ends + 1, step), ends + 1)],
        dtype=np.uint32,
    )
    kinds = _kinds(function, probes)
    changed = np.flatnonzero(kinds[:-1] != kinds[1:])
    found: list[int] = []
    for start, end in zip(probes[changed].tolist(), probes[changed + 1].tolist(), strict=True):
        # One binade may hold several changes: exp goes from normal through subnormal to zero.
        low = start
        while _kind(function, low) != _kind(function, end):
            low = _next_change(function, low, end)
            found.append(low)
    return tuple(sorted(set(found)))


# Near multiples of pi/2 --------------------------------------------------------------


def _half_pi() -> Fraction:
    import gmpy2

    # The largest float32 has 128 integer bits, and its remainder modulo pi/2 must have more
    # than 24 + 30 correct bits (the closest number comes within 2**-30 of a multiple).
    numerator, denominator = gmpy2.context(precision=400).const_pi().as_integer_ratio()
    return Fraction(int(numerator), int(denominator)) / 2


@functools.cache
def nearest_to_half_pi() -> tuple[int, ...]:
    """Return, for every binade from 1 up, float32 encodings closest to a multiple of pi/2.

    Kahan's method (Muller, Elementary Functions, section 11.3): the closest significands
    are among the denominators of the convergents of the continued fraction of
    2**e / (pi/2), and small multiples of them.
    """
    half_pi = _half_pi()
    best: set[int] = set()
    for exponent in range(-23, 105):
        scale = Fraction(2) ** exponent / half_pi
        distance = {m: abs(m * scale - round(m * scale)) for m in _near_integers(scale)}
        closest = sorted(distance, key=distance.__getitem__)[:4]
        best.update(int(encode(math.ldexp(m, exponent), FLOAT32)) for m in closest)
    return tuple(sorted(best))


def _near_integers(scale: Fraction) -> set[int]:
    """Return 24-bit significands m for which m * scale is close to an integer."""
    smallest, largest = 1 << 23, (1 << 24) - 1
    found: set[int] = set()
    rest, before, current = scale, 0, 1
    while current <= largest:
        first = -(-smallest // current) * current
        found.update(range(first, min(first + 8 * current, largest + 1), current))
        rest = 1 / (rest - math.floor(rest))
        before, current = current, before + math.floor(rest) * current
    return found


# Samples -----------------------------------------------------------------------------


def sample_inputs(
    function: str,
    count: int,
    *,
    seed: int,
    kinds: Sequence[Kind] = ("encodings", "binades", "structured", "thresholds", "pi"),
) -> npt.NDArray[np.uint32]:
    """Return ``count`` float32 encodings, an equal share of each kind, reproducibly.

    Kinds: ``encodings`` (uniform over all 2**32), ``binades`` (uniform over exponents from
    2**-32 to 2**32, where the functions vary most), ``structured`` (significands with at
    most four bits set, or all but four), ``thresholds`` (around ``thresholds(function)``)
    and ``pi`` (around multiples of pi/2).
    """
    rng = np.random.default_rng(seed)
    makers: dict[Kind, Callable[[np.random.Generator, int], npt.NDArray[np.uint32]]] = {
        "encodings": lambda rng, count: rng.integers(0, 1 << 32, count, dtype=np.uint32),
        "binades": _sample_binades,
        "structured": _sample_structured,
        "thresholds": functools.partial(_sample_near, thresholds(function)),
        "pi": _sample_pi,
    }
    shares = np.full(len(kinds), count // len(kinds))
    shares[: count - int(shares.sum())] += 1
    parts = [makers[kind](rng, int(share)) for kind, share in zip(kinds, shares, strict=True)]
    return np.concatenate(parts)


def _with_exponents(
    rng: np.random.Generator, fraction: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    count = fraction.size
    exponent = rng.integers(127 - 32, 127 + 32, count, dtype=np.uint32)
    sign = rng.integers(0, 2, count, dtype=np.uint32)
    return np.asarray(sign << 31 | exponent << 23 | fraction, dtype=np.uint32)


def _sample_binades(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint32]:
    return _with_exponents(rng, rng.integers(0, 1 << 23, count, dtype=np.uint32))


def _sample_structured(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint32]:
    bits = rng.integers(0, 24, (4, count), dtype=np.uint32)
    used = np.arange(4)[:, None] < rng.integers(0, 5, count)
    powers = np.where(used & (bits < 23), np.uint32(1) << bits, np.uint32(0)).astype(np.uint32)
    fraction = np.bitwise_or.reduce(powers, axis=0)
    flip = rng.integers(0, 2, count).astype(bool)
    return _with_exponents(rng, np.where(flip, fraction ^ np.uint32(0x7FFFFF), fraction))


def _sample_near(
    centres: Sequence[int], rng: np.random.Generator, count: int
) -> npt.NDArray[np.uint32]:
    chosen = rng.choice(np.array(centres, dtype=np.int64), count)
    moved = chosen + rng.integers(-NEIGHBOURS, NEIGHBOURS + 1, count)
    return (moved % (1 << 32)).astype(np.uint32)


def _sample_pi(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint32]:
    hard = _sample_near(nearest_to_half_pi(), rng, count - count // 2)
    multiples = np.floor(np.exp2(rng.uniform(0, 24, count // 2)))
    centres = (multiples * (np.pi / 2)).astype(np.float32).view(np.uint32)
    near = (centres + rng.integers(-2, 3, centres.size)).astype(np.uint32)
    sign = rng.integers(0, 2, count, dtype=np.uint32) << np.uint32(31)
    return np.asarray(np.concatenate([hard, near]) ^ sign, dtype=np.uint32)


# Strategies --------------------------------------------------------------------------


def _to_float32(encoding: int) -> np.float32:
    scalar: np.float32 = np.array([encoding], dtype=np.uint32).view(np.float32)[0]
    return scalar


def by_encoding() -> SearchStrategy[np.float32]:
    """Draw all float32 encodings alike: zeros, subnormals, infinities, NaNs with payloads too."""
    from hypothesis import strategies as st

    return st.integers(0, 2**32 - 1).map(_to_float32)


def near(centres: Sequence[int]) -> SearchStrategy[np.float32]:
    """Draw float32 numbers within ``NEIGHBOURS`` encodings of one of ``centres``."""
    from hypothesis import strategies as st

    return st.builds(
        lambda centre, offset: _to_float32((centre + offset) % 2**32),
        st.sampled_from(list(centres)),
        st.integers(-NEIGHBOURS, NEIGHBOURS),
    )


def near_thresholds(function: str) -> SearchStrategy[np.float32]:
    """Draw numbers around overflow, underflow, subnormal results, poles and ends of the domain."""
    return near(thresholds(function))


def near_half_pi() -> SearchStrategy[np.float32]:
    """Draw numbers around those closest to multiples of pi/2, of either sign."""
    centres = nearest_to_half_pi()
    return near([*centres, *(c | FLOAT32.sign_bit for c in centres)])


def hard_cases(path: Path) -> SearchStrategy[np.float32]:
    """Draw the inputs that a ``hard.txt`` lists, and their neighbours."""
    return near([int(case) for case in read_hard_cases(path)])


def few_significand_bits() -> SearchStrategy[np.float32]:
    """Draw significands with few bits set, any sign and exponent: exact and half-way cases."""
    from hypothesis import strategies as st

    def build(sign: int, exponent: int, bits: set[int]) -> np.float32:
        return _to_float32(sign << 31 | exponent << 23 | sum(1 << b for b in bits))

    bits = st.sets(st.integers(0, 22), max_size=4)
    return st.builds(build, st.integers(0, 1), st.integers(0, 254), bits)


def float32_inputs(function: str, hard: Path | None = None) -> SearchStrategy[np.float32]:
    """Join all strategies of this module that suit ``function``."""
    from hypothesis import strategies as st

    parts: list[SearchStrategy[Any]] = [
        by_encoding(),
        near_thresholds(function),
        few_significand_bits(),
    ]
    if function in ("sin", "cos", "tan"):
        parts.append(near_half_pi())
    if hard is not None:
        parts.append(hard_cases(hard))
    return st.one_of(parts)
