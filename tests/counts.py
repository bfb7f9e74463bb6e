# SPDX-License-Identifier: Apache-2.0
"""Cells, operators and events counted from real arrays by NumPy, as the native side counts.

``Recorder.call`` runs a function over an array and counts what it sees; ``net`` runs a small
network of the usual layers with random weights, forward and backward, through it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import erf

from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout

FUNCTIONS = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "tanh": np.tanh,
    "erf": erf,
    "pow": np.power,
}


def histogram(values: np.ndarray) -> np.ndarray:
    """Count values by sign and floor(log2|x|), as hist_in and hist_out do."""
    x = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    exponents = np.frexp(np.abs(x))[1] - 1
    bins = np.clip(exponents + layout.HIST_OFFSET, 0, layout.HIST_BINS - 1)
    counts = np.zeros((2, layout.HIST_BINS), np.uint64)
    np.add.at(counts, (np.signbit(x).astype(int), bins), 1)
    return counts


def specials(values: np.ndarray) -> dict[str, int]:
    tiny = np.finfo(values.dtype).tiny
    size = np.abs(values)
    return {
        "zero": int((values == 0).sum()),
        "subnormal": int(((size > 0) & (size < tiny)).sum()),
        "pos_inf": int((values == np.inf).sum()),
        "neg_inf": int((values == -np.inf).sum()),
        "nan": int(np.isnan(values).sum()),
    }


class Recorder:
    """Counts calls into the records of one process."""

    def __init__(self) -> None:
        self.strings = layout.StringTable()
        self.rows: dict[tuple[int, ...], np.ndarray] = {}
        self.contexts: dict[tuple[int, int, int], list[float]] = {}
        self.event_rows: list[tuple[Any, ...]] = []
        self.clocks = record.clocks()

    def call(
        self,
        function: str,
        *arrays: np.ndarray,
        module: str = "",
        operator: str = "",
        stage: str = "forward",
        form: str = "v16",
        timed: bool = False,
        within: bool = False,
    ) -> np.ndarray:
        """Run ``function`` and count it as one call of ``operator``; return the results.

        ``within``: it is a further function of the same call of the operator.
        """
        operator = operator or f"aten::{function}"
        start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        with np.errstate(all="ignore"):
            result = np.asarray(FUNCTIONS[function](*arrays), arrays[0].dtype)
        end = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.count(
            function, arrays, result, start, end, module, operator, stage, form,
            timed=timed, within=within,
        )  # fmt: skip
        return result

    def count(
        self,
        function: str,
        arrays: tuple[np.ndarray, ...],
        result: np.ndarray,
        start: int,
        end: int,
        module: str,
        operator: str,
        stage: str,
        form: str,
        *,
        timed: bool,
        within: bool,
    ) -> None:
        ids = self.strings.id
        context = (ids(operator), ids(module), layout.STAGES.index(stage))
        key = (
            ids(function), layout.CELL_DTYPES.index(result.dtype.name),
            layout.CELL_FORMS.index(form), layout.DEVICES.index("cpu"), context[2], *context[:2],
        )  # fmt: skip
        if key not in self.rows:
            cell = self.rows[key] = layout.empty_cells(1)
            for name, value in zip(layout.CELL_KEY, key, strict=True):
                cell[name] = value
        cell = self.rows[key]
        given = np.concatenate([a.ravel() for a in arrays])
        cell["calls"] += 1
        cell["elements"] += result.size
        cell["hist_elements"] += result.size
        flags = 0
        sides = {"in": given, "out": result}
        found = {side: specials(values) for side, values in sides.items()}
        for side, values in sides.items():
            numbers = values[~np.isnan(values)]
            if numbers.size:
                cell[f"{side}_min"] = np.minimum(cell[f"{side}_min"], numbers.min())
                cell[f"{side}_max"] = np.maximum(cell[f"{side}_max"], numbers.max())
            for what, number in found[side].items():
                cell[f"{side}_{what}"] += number
            cell[f"hist_{side}"][0] += histogram(values)
        has = {
            side: {
                "nan": n["nan"], "inf": n["pos_inf"] + n["neg_inf"],
                "subnormal": n["subnormal"], "zero": n["zero"],
            }
            for side, n in found.items()
        }  # fmt: skip
        for what in ("nan", "inf", "subnormal"):
            name = f"made_{what}_ns"
            if has["out"][what] and not has["in"][what] and not cell[name]:
                cell[name] = end
        for bit, name in enumerate(layout.EVENT_FLAGS):
            side, what = name.split("_")
            flags |= bool(has[side][what]) << bit
        if timed:
            cell["time_ns"] += end - start
            cell["timed_elements"] += result.size
        totals = self.contexts.setdefault(context, [0, 0.0])
        totals[0] += not within
        totals[1] += end - start if timed else 0
        limits = []
        for values in (given, result):
            numbers = values[~np.isnan(values)]
            limits += [numbers.min(), numbers.max()] if numbers.size else [np.inf, -np.inf]
        self.event_rows.append(
            (
                start,
                end,
                1,
                key[0],
                key[1],
                context[2],
                *context[:2],
                result.size,
                *limits,
                flags,
                0,
            )
        )

    @property
    def cells(self) -> np.ndarray:
        return np.concatenate([layout.empty_cells(0), *self.rows.values()])

    @property
    def operators(self) -> np.ndarray:
        rows = [(*key, 0, (0,) * 6, *totals) for key, totals in self.contexts.items()]
        return np.array(rows, layout.OPERATOR)

    @property
    def events(self) -> np.ndarray:
        return np.array(self.event_rows, layout.EVENT)

    def write(self, path: Any, meta: Mapping[str, Any] | None = None, scope: str = "") -> None:
        with record.ProfileWriter(
            path, self.strings, {"clocks": self.clocks, **(meta or META)}
        ) as writer:
            writer.cells(self.cells, scope)
            writer.operators(self.operators, scope)
            writer.events(self.events)


META = {
    "library": "corem",
    "version": "1",
    "build_id": "0123456789ab",
    "cpu_level": "avx512",
    "torch": "2.15.0",
    "depth": "timed",
    "stride": 1,
}


def net(recorder: Recorder, *, steps: int = 2, seed: int = 0, scale: float = 1.0) -> None:
    """Run a small network over random inputs.

    Args:
        recorder: counts what the functions see.
        steps: forward and backward passes.
        seed: of weights and inputs.
        scale: of the inputs of the gate; 40 makes its exp overflow float32.
    """
    random = np.random.default_rng(seed)
    f32 = np.float32

    def weights(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(f32)

    first, second, gate, last = (
        weights(64, 96), weights(96, 48), weights(48, 48), weights(48, 10)
    )  # fmt: skip
    for _ in range(steps):
        x = random.standard_normal((32, 64)).astype(f32) * f32(3)
        h = x @ first
        elu = recorder.call(
            "expm1", np.minimum(h, f32(0)), module="features.1", operator="aten::elu", timed=True
        )
        h = np.where(h > 0, h, elu)
        g = h @ second
        phi = recorder.call(
            "erf", g / f32(np.sqrt(2)), module="features.3", operator="aten::gelu", timed=True
        )
        g = g * (phi + 1) / f32(2)
        s = (g @ gate) * f32(scale)
        e = recorder.call("exp", -s, module="gate", operator="aten::sigmoid", timed=True)
        with np.errstate(all="ignore"):
            g = g / (1 + e)
            z = g @ last
        shifted = z - z.max(axis=1, keepdims=True)
        e = recorder.call("exp", shifted, module="", operator="aten::_log_softmax", timed=True)
        total = e.sum(axis=1)
        lse = recorder.call(
            "log", total, operator="aten::_log_softmax", form="scalar", timed=True, within=True
        )
        recorder.call(
            "exp", shifted - lse[:, None], operator="aten::_log_softmax_backward_data",
            stage="backward", timed=True,
        )  # fmt: skip
        recorder.call(
            "exp", np.minimum(x @ first, f32(0)), module="features.1",
            operator="aten::elu_backward", stage="backward", timed=True,
        )  # fmt: skip
