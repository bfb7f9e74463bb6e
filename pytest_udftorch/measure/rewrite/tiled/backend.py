# SPDX-License-Identifier: Apache-2.0
"""Backend ``udf_tiled``, and ``tiled`` for functions of tensors, NumPy arrays and dask arrays."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
import torch
from torch import fx

from pytest_udftorch.base import compat
from pytest_udftorch.base.plain_data import shown
from pytest_udftorch.errors import RewriteError, nearest
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.backends import (
    COMMON,
    Candidate,
    announce,
    compile_graph,
    settings,
    terms_of,
)
from pytest_udftorch.measure.rewrite.check import why_wrong
from pytest_udftorch.measure.rewrite.deadline import Deadline
from pytest_udftorch.measure.rewrite.report import GraphReport, count
from pytest_udftorch.measure.rewrite.templates import Firing
from pytest_udftorch.measure.rewrite.tiled import chunks
from pytest_udftorch.measure.rewrite.tiled.parts import Parts, cut
from pytest_udftorch.measure.rewrite.tiled.run import Settings, Tiled, cache_bytes
from pytest_udftorch.measure.rewrite.tiled.schedules import SCHEDULES

pytree: Any = compat.pytree()
_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

#: Rows of the prefix on which a function is checked, in tiles.
_CHECKED_TILES: Final = 3

_DEFAULTS: Final[dict[str, Any]] = {"schedule": "static", "threads": None, "tile_bytes": None}


def chosen(options: Mapping[str, Any]) -> Settings:
    """Return the settings of options.

    Raises:
        RewriteError: an unknown schedule, or a number that is not above 0.
    """
    schedule = options["schedule"]
    if schedule not in SCHEDULES:
        raise RewriteError(f"No schedule {shown(schedule)}. {nearest(str(schedule), SCHEDULES)}")
    for name in ("threads", "tile_bytes", "memory"):
        value = options.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise RewriteError(f"{name}={shown(value)}: give a whole number above 0, or None.")
    threads = options["threads"] or torch.get_num_threads()
    tile_bytes = options["tile_bytes"] or cache_bytes() // 2
    return Settings(schedule, threads, tile_bytes, options.get("memory"))


def with_rows(inputs: Sequence[Any], held: Collection[int]) -> tuple[int, list[int]]:
    """Return the number of rows, and the inputs that have as many: that of the largest one."""
    own = [
        (t.numel(), t.shape[0])
        for n, t in enumerate(inputs)
        if n not in held and isinstance(t, torch.Tensor) and t.dim()
    ]
    rows = max(own, default=(0, 0))[1]
    return rows, [
        n for n, t in enumerate(inputs) if n not in held and t.dim() and t.shape[0] == rows
    ]


def _parts(
    graph: fx.GraphModule, inputs: Sequence[Any], held: Collection[int], report: GraphReport
) -> tuple[Parts, list[int]] | None:
    rows, tiled = with_rows(inputs, held)
    if rows < 2:
        report.left_alone = "no input has rows"
        return None
    if any(isinstance(t, torch.Tensor) and t.device.type != "cpu" for t in inputs):
        report.left_alone = "tiles are for tensors on the CPU"
        return None
    try:
        parts = cut(graph, tiled, rows)
    except RewriteError as error:
        report.left_alone = str(error)
        return None
    joined = [j for j in parts.joins if j]
    report.fired = [Firing("tiles", f"{len(tiled)} inputs; joined: {', '.join(joined) or 'rows'}")]
    return parts, tiled


def tiles(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_tiled``: rows are computed tile by tile, on several threads.

    Options are ``schedule``, ``threads``, ``tile_bytes``, ``gain``, how many times as fast the
    tiles have to be to be kept, and ``strict``.
    """
    wanted = settings("udf_tiled", options, {**_DEFAULTS, **COMMON})

    def rewriter(
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        held: Collection[int],
        report: GraphReport,
        deadline: Deadline,
    ) -> Candidate | None:
        made = _parts(graph, inputs, held, report)
        if made is None:
            return None
        run = Tiled(*made, chosen(wanted))
        return Candidate(graph, False, False, lambda _: run, report.fired)

    terms = terms_of(wanted, lambda: chosen(wanted))
    return compile_graph("udf_tiled", rewriter, module, examples, terms)


class _Function:
    """A function with the tiles that were made of it, by the kinds of its inputs."""

    def __init__(self, function: Callable[..., Any], wanted: Settings, strict: bool) -> None:
        self.function, self.wanted, self.strict = function, wanted, strict
        self.made: dict[Any, Tiled | None] = {}
        #: Kinds of inputs -> the bytes that they and all results need at once.
        self.peaks: dict[Any, int] = {}
        self.lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if any(chunks.is_dask(value) for value in inputs):
            arrays = chunks.aligned(inputs)
            tensors = [chunks.first(a) if chunks.is_dask(a) else _tensor(a) for a in arrays]
            times = max(len(a) / len(a[: a.chunks[0][0]]) for a in arrays if chunks.is_dask(a))
            run = self._for(tensors, times)
            if run is None:
                raise RewriteError(
                    "The function cannot be cut into rows, so it cannot run on chunks; recording() "
                    "shows the reason. Change it, or call it on arrays in memory."
                )
            if self._fits(tensors, times):
                arrays = [a.rechunk(-1) if chunks.is_dask(a) else a for a in arrays]
            return chunks.lazily(run, arrays)
        tensors = [_tensor(value) for value in inputs]
        run = self._for(tensors)
        if run is None:
            return self.function(*inputs)
        found = run(*tensors)
        if any(isinstance(value, np.ndarray) for value in inputs):
            return pytree.tree_map_only(torch.Tensor, lambda t: t.numpy(), found)
        return found

    def _fits(self, inputs: Sequence[Any], times: float) -> bool:
        """Whether a call with so many times the rows needs no more than the memory."""
        memory = self.wanted.memory
        return memory is not None and self.peaks.get(_key(inputs), 0) * times <= memory

    def _for(self, inputs: Sequence[Any], times: float = 0.0) -> Tiled | None:
        """Return what runs inputs; for chunks, ``times`` says how many rows there are in all."""
        key = (_key(inputs), times > 0)
        if any(t.requires_grad for t in inputs) and torch.is_grad_enabled():
            return None
        with self.lock:
            if key not in self.made:
                report = GraphReport("tiled")
                self.made[key] = self._cut(inputs, report, times)
                announce(report)
                if report.left_alone and self.strict:
                    raise RewriteError(
                        f"tiled() leaves the function alone: {report.left_alone}. Change the "
                        "function, or leave strict out: it then runs as it is."
                    )
            return self.made[key]

    def _cut(self, inputs: Sequence[Any], report: GraphReport, times: float) -> Tiled | None:
        with torch.no_grad():
            original = compat.aten_graph(self.function, inputs)
        reasons = [why for why in map(graphs.why_opaque, graphs.calls(original.graph)) if why]
        if reasons:
            report.left_alone = "; ".join(dict.fromkeys(reasons))
            return None
        report.before = count(original)
        self.peaks[_key(inputs)] = report.before.peak_bytes
        local = self._fits(inputs, times or 1.0)
        if self.wanted.memory is not None:
            plan = (
                ("one task" if local else "a task for each chunk")
                if times
                else ("the function as it is" if local else "tiles")
            )
            needs = report.before.peak_bytes * (times or 1.0)
            report.notes.append(
                f"plan: {plan}; an estimated {needs:,.0f} bytes of {self.wanted.memory:,}"
            )
        if local and not times:
            return None
        made = _parts(original, inputs, (), report)
        if made is None:
            return None
        run = Tiled(*made, self.wanted)
        height = _CHECKED_TILES * (self.wanted.tile_bytes // run.parts.row_bytes) + 1
        few = [t[:height] if n in run.cut else t for n, t in enumerate(inputs)]
        problem, report.check = why_wrong(original, run, few, (), exact=False)
        if problem is not None:
            report.left_alone = f"the tiles do not pass their check: {problem}"
            return None
        return run


def _key(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((t.shape, t.dtype, t.device) for t in inputs)


def _tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    raise RewriteError(
        f"tiled() takes tensors, NumPy arrays and dask arrays, not {type(value).__name__}."
    )


def tiled(
    function: Callable[_Given, _Found],
    *,
    schedule: str = "static",
    threads: int | None = None,
    tile_bytes: int | None = None,
    memory: int | None = None,
    strict: bool = False,
) -> Callable[_Given, _Found]:
    """Return a function that computes rows of its arguments tile by tile, on several threads.

    The first dimension of the largest argument, and of all arguments that have as many rows, is cut
    into tiles; other arguments are given to each tile whole. Operators may treat each row alone
    (pointwise, sums and softmax along other dimensions, products with a matrix that is given
    whole), and sums, means, extremes and ``x.T @ y`` may go over all rows. The result does not
    depend on the schedule and the number of threads, not even in its last bits.

    Args:
        function: takes tensors on the CPU, NumPy arrays (which become tensors), or dask arrays of
            numbers; returns tensors. For dask arrays the result is lazy: dask arrays.
        schedule: ``static``, ``guided`` or ``stealing``.
        threads: that compute tiles; by default as many as torch uses.
        tile_bytes: of memory that a tile may need; by default half a core's L2 cache.
        memory: in bytes. A call that needs no more at once, by estimate, runs as it is, and dask
            arrays that need no more become one task. By default everything is cut.
        strict: whether a function that is left alone is an error.

    Returns:
        The function. The first call with new shapes checks three tiles against the function
        itself. Calls with gradients, and functions that mix rows otherwise, run as they are.

    Raises:
        RewriteError: an option is wrong; or, in a call, an argument of another kind, a function
            of dask arrays that mixes rows, or, with ``strict``, any that does.
        PackageMissingError: dask arrays are given where dask is not whole.
    """
    options = {
        "schedule": schedule, "threads": threads, "tile_bytes": tile_bytes, "memory": memory,
    }  # fmt: skip
    called = _Function(function, chosen(options), strict)

    @functools.wraps(function)
    def run(*inputs: _Given.args, **others: _Given.kwargs) -> _Found:
        found: _Found = function(*inputs, **others) if others else called(*inputs)
        return found

    return run
