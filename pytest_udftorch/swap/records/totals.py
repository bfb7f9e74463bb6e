# SPDX-License-Identifier: Apache-2.0
"""Cells of a profile, added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.layout import DEVICES, Records

#: What is shown in place of a layer for code outside every nn.Module.
NO_MODULE: Final = "(no module)"

#: What is shown in place of an operator for calls outside of all of them.
NO_OPERATOR: Final = "(no operator)"

#: The names by which special values are shown.
KINDS: Final = {"nan": "NaN", "inf": "inf", "subnormal": "subnormal", "zero": "zero"}

Kind = Literal["nan", "inf", "subnormal"]


class ProfileData(Protocol):
    """What the texts and exports of a profile read: see :class:`.profile.Profile`."""

    @property
    def processes(self) -> tuple[Mapping[str, Any], ...]:
        """What the header of each process says."""

    @property
    def strings(self) -> Mapping[int, str]:
        """Id -> string."""

    @property
    def cells(self) -> Records:
        """Records of dtype CELL."""

    @property
    def operators(self) -> Records:
        """Records of dtype OPERATOR."""

    @property
    def events(self) -> Records:
        """Records of dtype EVENT."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is missing."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the first process says of itself."""

    @property
    def label(self) -> str:
        """The name of the library."""

    @property
    def time_ns(self) -> float:
        """Time in all functions."""

    def rows(self, *key: str) -> list[Row]:
        """Return the cells added up for each value of ``key``."""

    def texts(self, name: str, rows: Records) -> list[str]:
        """Return what the numbers in a field stand for."""

    def summary(self) -> dict[str, Any]:
        """Return the totals per function."""


#: What must be the same in profiles that are added up.
IDENTITY: Final = ("library", "version", "build_id", "cpu_level", "torch", "depth", "stride")


@dataclass(frozen=True, repr=False)
class Row(Result):
    """The sum of some cells, and how often operators that used the function ran.

    Attributes:
        key: which function, dtype, form, device, stage, operator and module; the names that were
            summed over are missing.
        cell: one CELL; its ids are meaningless where ``key`` has no such name.
        operator_calls: calls of operators in which one of the functions was used.
        operator_time_ns: time of these calls with everything in them; 0 unless timed.
    """

    key: Mapping[str, str]
    cell: np.void
    operator_calls: int
    operator_time_ns: float

    def _shown(self) -> Shown:
        notes = [self.specials_text] if self.specials_text else []
        title = f"{self.name!r}: {self.calls:,} calls, {self.elements:,} elements"
        return Shown(title, notes=notes)

    @property
    def name(self) -> str:
        """The key as one text."""
        usual = {"device": DEVICES[:1], "dtype": ("float32", "any")}
        missing = {"module": NO_MODULE, "operator": NO_OPERATOR}
        parts = [
            text or missing.get(name, "(none)")
            for name, text in self.key.items()
            if text not in usual.get(name, ())
        ]
        return " ".join(parts)

    @property
    def function_name(self) -> str:
        """The function, with its dtype and device where they are not float32 and the CPU."""
        names = ("function", "dtype", "device")
        return replace(self, key={name: self.key[name] for name in names}).name

    @property
    def layer(self) -> str:
        """The module, or what is shown in its place."""
        return self.key.get("layer") or self.key["module"] or NO_MODULE

    @property
    def calls(self) -> int:
        """Calls of the functions' forms: one may take 1, 8 or any number of elements."""
        return int(self.cell["calls"])

    @property
    def elements(self) -> int:
        """Elements that went through the functions."""
        return int(self.cell["elements"])

    @property
    def time_ns(self) -> float:
        """Time in the functions, summed over threads; 0 unless timed."""
        return float(self.cell["time_ns"])

    def limits(self, side: Literal["in", "out"]) -> tuple[float, float] | None:
        """Return the least and the largest value; None if there were only NaNs."""
        low, high = float(self.cell[f"{side}_min"]), float(self.cell[f"{side}_max"])
        return None if low > high else (low, high)

    def special(self, side: Literal["in", "out"], kind: str) -> int:
        """Return how many values were ``zero``, ``subnormal``, ``inf`` or ``nan``."""
        names = ("pos_inf", "neg_inf") if kind == "inf" else (kind,)
        return sum(int(self.cell[f"{side}_{name}"]) for name in names)

    def made(self, kind: Kind) -> bool:
        """Tell whether a block had one among its outputs but none among its inputs."""
        return bool(self.cell[f"made_{kind}_ns"])

    @property
    def specials_text(self) -> str:
        """The special values that stand out, as ``inf 0→3``."""
        parts = []
        for kind, text in KINDS.items():
            before, after = self.special("in", kind), self.special("out", kind)
            if before != after or (kind != "zero" and before):
                parts.append(f"{text} {before:,}→{after:,}")
        return ", ".join(parts)

    def document(self) -> dict[str, Any]:
        """Return plain data, with infinities as the strings ``inf`` and ``-inf``."""
        found: dict[str, Any] = dict(self.key)
        found["operator_calls"] = self.operator_calls
        if self.operator_time_ns:
            found["operator_time_ns"] = self.operator_time_ns
        return found | cell_dict(self.cell)


@dataclass(frozen=True, repr=False)
class First(Result):
    """The first time that a function made a NaN, an infinity or a subnormal number.

    Attributes:
        kind: ``nan``, ``inf`` or ``subnormal``.
        function, dtype, form, device, operator, module, stage: which function, and where.
        time_ns: when, in ns of UTC since 1970.
        after_s: when, in seconds since the profile began.
        line: the line of Python that called the operator, such as ``model.py:8, in forward: ...``;
            empty if it is unknown, as on GPUs and outside of operators that are followed.
    """

    kind: str
    function: str
    dtype: str
    form: str
    device: str
    operator: str
    module: str
    stage: str
    time_ns: int
    after_s: float
    line: str = ""

    def text(self) -> str:
        """Return what made it, where, and when."""
        kind = self.dtype if self.device == DEVICES[0] else f"{self.dtype}, {self.device}"
        return (
            f"{self.function} ({kind}) in {self.operator or 'no operator'}, layer "
            f"{self.module or NO_MODULE}, {self.stage}, after {self.after_s:.3f} s"
            + (f", at {self.line}" if self.line else "")
        )

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def grouped(rows: Records, key: Sequence[str]) -> tuple[Records, NDArray[np.intp]]:
    """Return rows in the order of their keys, and where each group starts."""
    if not key or not len(rows):
        return rows, np.arange(min(1, len(rows)))
    rows = rows[np.lexsort([rows[name] for name in reversed(key)])]
    keys = np.stack([rows[name].astype(np.int64) for name in key])
    return rows, np.concatenate([[0], np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(0)) + 1])


def add_cells(cells: Records, key: Sequence[str] = layout.CELL_KEY) -> Records:
    """Return one cell for each value of ``key``, ordered by it.

    Other fields of the key keep the value of the first cell.
    """
    rows, starts = grouped(cells, key)
    found = rows[starts].copy()
    if not len(rows):
        return found
    for name in layout.COUNTS:
        found[name] = np.add.reduceat(rows[name], starts, axis=0)
    for name in layout.MINIMA:
        found[name] = np.minimum.reduceat(rows[name], starts)
    for name in layout.MAXIMA:
        found[name] = np.maximum.reduceat(rows[name], starts)
    never = np.iinfo(np.uint64).max
    for name in layout.FIRSTS:
        times = np.minimum.reduceat(np.where(rows[name] == 0, never, rows[name]), starts)
        found[name] = np.where(times == never, 0, times)
    return found


def add_operators(operators: Records) -> Records:
    """Return one OPERATOR for each context, ordered by it."""
    rows, starts = grouped(operators, layout.OPERATOR_KEY)
    found = rows[starts].copy()
    if len(rows):
        for name in ("calls", "time_ns"):
            found[name] = np.add.reduceat(rows[name], starts)
    return found


def to_utc(rows: Records, names: Iterable[str], meta: Mapping[str, Any]) -> Records:
    """Return rows whose times are UTC instead of CLOCK_MONOTONIC; 0 stays 0."""
    offset = utc_offset(meta)
    rows = rows.copy()
    for name in names:
        times = rows[name].astype(np.int64)
        rows[name] = np.where(times == 0, 0, times + offset).astype(np.uint64)
    return rows


def utc_offset(meta: Mapping[str, Any]) -> int:
    """Return what to add to CLOCK_MONOTONIC, in ns, to get UTC."""
    clocks = meta["clocks"]
    return int(clocks["realtime_ns"]) - int(clocks["monotonic_ns"])


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def cell_dict(cell: np.void) -> dict[str, Any]:
    """Return the figures of a cell as plain data, without its key and histograms."""
    found: dict[str, Any] = {"calls": int(cell["calls"]), "elements": int(cell["elements"])}
    for side in ("in", "out"):
        low, high = float(cell[f"{side}_min"]), float(cell[f"{side}_max"])
        found[f"{side}_min"] = None if low > high else _number(low)
        found[f"{side}_max"] = None if low > high else _number(high)
        for name in layout.SPECIALS:
            found[f"{side}_{name}"] = int(cell[f"{side}_{name}"])
    for name in layout.FIRSTS:
        found[name] = int(cell[name]) or None
    found["time_ns"] = float(cell["time_ns"])
    found["timed_elements"] = int(cell["timed_elements"])
    return found
