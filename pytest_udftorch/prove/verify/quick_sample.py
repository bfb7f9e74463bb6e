# SPDX-License-Identifier: Apache-2.0
"""A sample of inputs in seconds: where functions go wrong, if they do. It proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.errors import VerifyError
from pytest_udftorch.prove.exact import strategies
from pytest_udftorch.prove.exact.formats import FORMATS, canonical, describe
from pytest_udftorch.prove.exact.rounding import fractional_errors, mpfr_rounded
from pytest_udftorch.prove.verify.candidate import OPERATOR, STOCK, chosen_form
from pytest_udftorch.prove.verify.certificate import ulp_text
from pytest_udftorch.prove.verify.torch_candidate import operator_candidate, operator_results
from pytest_udftorch.swap.library.description import UdfFunction, find_library
from pytest_udftorch.swap.library.symbols import KNOWN
from pytest_udftorch.swap.toolchain.shared_library import Build, build_library

FLOAT32: Final = FORMATS["float32"]
#: Inputs of the strata that are drawn at random, each. MPFR takes some microseconds for one.
COUNT: Final = 4096
#: Inputs in each binade of either sign.
_IN_BINADE: Final = 8

Encoded = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Stratum:
    """What a sample of one kind of inputs showed.

    Attributes:
        name: of the kind.
        inputs: how many there were.
        against: results beyond the claim; None if nothing is claimed.
        wrong: results that are not correctly rounded.
        largest: the largest error, in ULP.
        where: the input of the first result beyond the claim, or of the largest error.
    """

    name: str
    inputs: int
    against: int | None
    wrong: int
    largest: float
    where: str


@dataclass(frozen=True, repr=False)
class Sample(Result):
    """What a sample of a function's inputs showed.

    Attributes:
        name: library, function and form.
        max_ulp: the claim, or None.
        strata: one for each kind of inputs.
    """

    name: str
    max_ulp: float | None
    strata: tuple[Stratum, ...]

    @property
    def against(self) -> int:
        """How many results are beyond the claim."""
        return sum(stratum.against or 0 for stratum in self.strata)

    def failures(self) -> list[str]:
        """Return what contradicts the claim, one sentence each."""
        return [
            f"{self.name}: {s.against:,} of {s.inputs:,} results are against the claim of "
            f"{self.max_ulp:g} ULP ({s.name}), the first at {s.where}."
            for s in self.strata
            if s.against
        ]

    def _shown(self) -> Shown:
        total = sum(s.inputs for s in self.strata)
        claim = f"claim {self.max_ulp:g} ULP" if self.max_ulp is not None else "no claim"
        rows = [
            (
                s.name, f"{s.inputs:,}", "-" if s.against is None else f"{s.against:,}",
                f"{s.wrong:,}", f"{ulp_text(s.largest)} ULP", s.where,
            )
            for s in self.strata
        ]  # fmt: skip
        header = (
            "inputs", "number", "against the claim", "not correctly rounded", "largest error", "at",
        )  # fmt: skip
        title = f"{self.name}, {claim}: a sample of {total:,} inputs, no certificate"
        return Shown(title, header, rows, ruled=False)

    def document(self) -> dict[str, Any]:
        """Return the counts of each kind of inputs as plain data."""
        return asdict(self)


def sample(library: str, function: str, form: str | None = None, seed: int = 0) -> Sample:
    """Run a function of a library on a sample of float32 inputs, and judge each result by MPFR.

    Args:
        library: name or path of a UDF library, or ``std``.
        function: torch's name.
        form: ``array`` or ``operator``; by default ``operator`` for ``std``, else ``array``.
        seed: of what is drawn at random.

    Raises:
        VerifyError: the library is one of those that PyTorch ships and that are no UDF library, or
            the function has no float32 form; a sample does not go through such a form. The errors
            of ``find_library``, ``build_library`` and ``read_hard_cases``.
    """
    if library in STOCK:
        raise VerifyError(
            f"{library} is not a UDF library, and --quick samples those, and std. Leave out "
            "--quick to run it over all inputs."
        )
    described = find_library(library)
    described.select((function,))
    stock = described.stock
    forms = (OPERATOR,) if stock else ("array", OPERATOR)
    form = chosen_form(form, forms, forms[0], f"a sample of {described.name}")
    udf = described.functions.get((function, "float32"))
    if udf is None and not stock:
        raise VerifyError(
            f"UDF library {described.name!r} has no float32 {function!r} to sample. "
            "Name another function; udftorch libraries lists them."
        )
    run: Callable[[list[Encoded]], Encoded]
    if form == OPERATOR:
        candidate = operator_candidate(described, function, "float32", form)

        def run(columns: list[Encoded]) -> Encoded:
            return operator_results(candidate, tuple(columns))
    else:
        build = build_library(described)

        def run(columns: list[Encoded]) -> Encoded:
            return _array_results(build, function, columns)

    bound = udf.max_ulp if udf is not None else None
    strata = [
        _judge(name, function, columns, run(columns), bound)
        for name, columns in _strata(function, udf, seed).items()
    ]
    return Sample(f"{described.name} {function} float32 {form}", bound, tuple(strata))


def _array_results(build: Build, function: str, columns: list[Encoded]) -> Encoded:
    columns = [np.ascontiguousarray(column) for column in columns]
    out = np.empty_like(columns[0])
    pointers = [column.ctypes.data for column in (*columns, out)]
    build.array_function(function)(out.size, *pointers, 0)
    return out


def _strata(function: str, udf: UdfFunction | None, seed: int) -> Mapping[str, list[Encoded]]:
    """Return name of a stratum -> its inputs, a column for each argument."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Encoded]] = {}
    if KNOWN[function].arity == 1:
        found["all exponents"] = [_binades(rng)]
        found["boundaries"] = [_boundaries(function)]
        if function in ("sin", "cos", "tan"):
            found["near multiples of pi/2"] = [
                strategies.sample_inputs(function, COUNT, seed=seed, kinds=("pi",))
            ]
        found["few bits set"] = [
            strategies.sample_inputs(function, COUNT, seed=seed, kinds=("structured",))
        ]
    else:
        binades, special = _binades(rng), _special()
        found["all exponents"] = [binades, rng.permutation(binades)]
        found["boundaries"] = [c.ravel() for c in np.meshgrid(special, special)]
    if udf is not None and udf.hard_cases is not None:
        found["hard cases"] = _hard(udf)
    columns = range(KNOWN[function].arity)
    found["random"] = [rng.integers(0, 1 << 32, COUNT, dtype=np.uint32) for _ in columns]
    return found


def _binades(rng: np.random.Generator) -> Encoded:
    """Return inputs of both signs in every binade: its ends, and some between them."""
    starts = np.arange(0, 512, dtype=np.uint32) << np.uint32(23)
    inside = rng.integers(0, 1 << 23, (starts.size, _IN_BINADE - 2), dtype=np.uint32)
    ends = np.tile(np.array([0, (1 << 23) - 1], np.uint32), (starts.size, 1))
    return np.asarray(starts[:, None] | np.hstack([ends, inside]), np.uint32).ravel()


def _special() -> Encoded:
    """Return zeros, infinities, NaNs, ones, and the ends of subnormal and normal numbers."""
    ends = [0, 1, FLOAT32.min_normal - 1, FLOAT32.min_normal, 0x3F800000, FLOAT32.infinity - 1]
    magnitudes = [*ends, 0x3F7FFFFF, 0x3F800001, 0x40000000, FLOAT32.infinity, FLOAT32.nan]
    return np.array([m | s for m in magnitudes for s in (0, FLOAT32.sign_bit)], np.uint32)


def _boundaries(function: str) -> Encoded:
    """Return the neighbours of where the result changes its kind, and special values."""
    centres = np.array([*strategies.thresholds(function), *_special()], np.int64)
    offsets = np.arange(-strategies.NEIGHBOURS, strategies.NEIGHBOURS + 1)
    near = (centres[:, None] + offsets) % (1 << 32)
    return np.unique(near).astype(np.uint32)


def _hard(udf: UdfFunction) -> list[Encoded]:
    """Return the cases that the library lists; with their neighbours, for one argument."""
    arity = KNOWN[udf.name].arity
    assert udf.hard_cases is not None
    cases = strategies.read_hard_cases(udf.hard_cases, arity)
    if arity > 1:
        return list(cases.T)
    near = (cases.astype(np.int64)[:, None] + np.arange(-2, 3)) % (1 << 32)
    return [np.unique(near).astype(np.uint32)]


def _judge(
    name: str, function: str, columns: list[Encoded], got: Encoded, bound: float | None
) -> Stratum:
    inputs: list[Any] = list(columns)
    got = canonical(got, FLOAT32)
    wrong = got != mpfr_rounded(function, inputs, FLOAT32)
    errors = fractional_errors(got, inputs, FLOAT32, function)
    # A result without an error, such as a NaN in the place of a number, is beyond any claim.
    beyond = wrong if bound is not None and bound <= 0.5 else ~(errors <= (bound or 0.0))
    finite = np.where(np.isfinite(errors), errors, -1.0)
    at = int(np.argmax(beyond)) if bound is not None and beyond.any() else int(np.argmax(finite))
    return Stratum(
        name,
        got.size,
        None if bound is None else int(beyond.sum()),
        int(wrong.sum()),
        max(0.0, float(finite.max())),
        ", ".join(describe(int(column[at]), FLOAT32) for column in columns),
    )
