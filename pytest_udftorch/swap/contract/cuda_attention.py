# SPDX-License-Identifier: Apache-2.0
"""Attention in bfloat16 without a mask on a GPU: what launches which kernel.

It gives the bits of ``contract.attention``. Heads that share keys and values are rows of one
matrix. Scores are computed for some heads at once, and forward for some queries, so that they take
bounded memory; nothing of them is kept for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pytest_udftorch.swap.contract import cuda_exact
from pytest_udftorch.swap.contract.cuda_exact import Digits, Values
from pytest_udftorch.swap.contract.cuda_sums import log2
from pytest_udftorch.swap.contract.cuda_sums import sums as added
from pytest_udftorch.swap.contract.launches import launch
from pytest_udftorch.swap.overrides.tape import recording

#: Scores that are in memory at once, if those that belong together are no more.
SCORES: Final = 1 << 26

#: Terms of a tile, as a power of two, and of the longest head.
_TILE: Final = 6
_LONGEST: Final = 256

#: Queries of a block, where there are not more.
_FEW: Final = 16

#: Columns of sums of values that a program computes at once.
_WIDEST: Final = 128

#: Warps of a program for 64 columns or less; how many programs, which have several tasks, there are
#: for each multiprocessor; and how many steps ahead they load. A weight that is to change places is
#: loaded with others where nothing is loaded ahead.
_WARPS: Final = 4
_RESIDENT: Final = 4
_STAGES: Final = {"attention_values": 2, "attention_columns": 1}

#: A negative control changes how many scores are in memory here.
_scores = SCORES


def takes(query: Any, key: Any, mask: Any) -> bool:
    """Tell whether ``attention`` and ``gradients`` compute a call."""
    return bool(mask is None and cuda_exact.takes(query) and query.shape[3] <= _LONGEST)


class _Problem:
    """Lines of queries, whose scores lie in blocks of tiles: see ``triton_attention``.

    Args:
        query: (samples, heads, queries, size) in bfloat16.
        key: (samples, heads or a divisor of it, keys, size).
        value: as ``key``.
        causal: whether a query sees no later key.
        factor: of scores.
        apart: whether each head is a line. Else those that share keys are one, if they may be.
    """

    def __init__(
        self, query: Any, key: Any, value: Any, causal: bool, factor: float, *, apart: bool
    ) -> None:
        self.keys: int = key.shape[2]
        self.size: int = query.shape[3]
        self.sharing: int = query.shape[1] // key.shape[1] if apart or causal else 1
        self.lines: int = key.shape[0] * key.shape[1] * self.sharing
        self.queries: int = query.shape[:3].numel() // self.lines
        self.query = self.in_lines(query)
        self.key, self.value = (t.reshape(-1, self.keys, self.size) for t in (key, value))
        self.causal, self.factor = causal, float(factor)
        chunk = cuda_exact.chunk()
        self.tile: int = min(_TILE, log2(chunk))
        self.wide: int = 1 << max(log2(self.size), 5)
        # Of gradients 32 or more queries are the terms of a product, as 8 bits need.
        self.rows: int = min(32 if apart else _FEW, 1 << self.tile)
        if self.queries > self.rows:
            self.rows = 1 << self.tile
        self.blocks: int = -(-self.queries // self.rows)
        self.tiles: int = -(-self.keys >> self.tile)
        self.chunks: int = -(-self.keys // chunk)
        self.padded: int = -(-self.size // cuda_exact.PAD) * cuda_exact.PAD
        self.enough: int = cuda_exact.processors(query.device)
        self.constants = {
            "CAUSAL": causal, "KIND": cuda_exact.unit(), "ROWS": self.rows, "LOG": self.tile,
            "WIDE": self.wide,
        }  # fmt: skip
        self.of_sums = {"NODES": log2(chunk) - self.tile, "CHUNKS": log2(self.chunks)}

    def in_lines(self, x: Any) -> Any:
        """Return queries, or their gradients, as (lines, queries, size)."""
        return x.reshape(self.lines, self.queries, self.size)

    def row(self, unit: int) -> int:
        """Return the first row of a block."""
        line, block = divmod(unit, self.blocks)
        return line * self.queries + block * self.rows

    def tiles_before(self, unit: int) -> int:
        """Return how many tiles the blocks before one have."""
        line, block = divmod(unit, self.blocks)
        return line * self._of_line(self.blocks) + self._of_line(block)

    def _of_line(self, block: int) -> int:
        if not self.causal:
            return block * self.tiles
        each = (1 << self.tile) // self.rows
        rising = min(block, each * self.tiles)
        group, rest = divmod(rising, each)
        return each * group * (group + 1) // 2 + rest * (group + 1) + (block - rising) * self.tiles

    def turns(self, step: int) -> Iterator[_Turn]:
        """Yield blocks that are computed at once.

        What takes several turns is not recorded, which would hold the scores of all of them.

        Args:
            step: so many blocks belong together.
        """
        held = max(1, _scores // (step * self.tiles * self.rows << self.tile)) * step
        units = self.lines * self.blocks
        tapes = recording()
        if tapes is not None and units > held:
            tapes.refuse(b"attention in several turns")
        for first in range(0, units, held):
            yield _Turn(self, first, min(held, units - first))


class _Sums(NamedTuple):
    """Of exponentials of blocks.

    Attributes:
        sums: of chunks of rows.
        odd: for each block and chunk whether numbers are too small for what takes few instructions;
            once there are weights, whether these are too large.
    """

    sums: Any
    odd: Any


class _Turn(NamedTuple):
    """Blocks whose scores are in memory at once.

    Attributes:
        p: what they are of.
        first: the number of the first one.
        units: how many there are.
    """

    p: _Problem
    first: int
    units: int

    def launch(
        self, name: str, programs: int, tensors: Sequence[Any], numbers: Sequence[Any],
        constants: Mapping[str, Any], warps: int = _WARPS, stages: int = 0,
        factors: Sequence[float] = (),
    ) -> None:  # fmt: skip
        """Launch a kernel over the blocks; it is compiled for none of the numbers."""
        p = self.p
        given = (self.first, p.queries, p.keys, p.blocks, p.sharing, *numbers)
        constants = {**p.constants, **constants}
        launch(
            name, programs, tensors, (*factors, *given), constants, warps, stages, len(given)
        )  # fmt: skip

    def exponentials(self, queries: Digits, keys: Digits, largest: Any) -> Any:
        """Return e to the scores less the largest of their row, which goes to ``largest``."""
        import torch

        p, parts = self.p, 1
        if self.units < p.enough:
            parts = min(p.tiles, -(-2 * p.enough // self.units))
        count = p.tiles_before(self.first + self.units) - p.tiles_before(self.first)
        x = torch.empty(count * p.rows << p.tile, device=largest.device)
        tops = torch.empty(parts * self.units * p.rows, device=x.device)
        for name in ("both",) if parts == 1 else ("top", "less"):
            self.launch(
                "attention_scores", self.units * parts,
                (*queries.parts, queries.units, *keys.parts, keys.units, x, tops, largest),
                (p.padded, parts), {"PASS": name}, factors=(p.factor,),
            )  # fmt: skip
        return x.exp_()

    def sums(self, e: Any) -> _Sums:
        """Return sums of chunks of exponentials."""
        import torch

        found = self._room_for_sums(e)
        odd = torch.empty(self.units * self.p.chunks, dtype=torch.int32, device=e.device)
        made = _Sums(found, odd)
        self._sum(e, made, (None,) * 8)
        return made

    def weights(self, e: Any, sums: _Sums, values: Values) -> Any:
        """Return the largest codes of chunks of rows of weights, of exponentials and their sums."""
        return self._weigh(e, sums, (None, None), values)

    def slopes(
        self, e: Any, sums: _Sums, grads: Digits, values: Digits, keys: Values
    ) -> tuple[Any, Any]:
        """Return gradients of scores, with their largest codes; and make weights of ``e``.

        Args:
            e: exponentials.
            sums: of them.
            grads: digits of gradients of results.
            values: digits of rows of values.
            keys: what is summed with gradients of scores.
        """
        import torch

        found, weighted = torch.empty_like(e), self._room_for_sums(e)
        more = (*grads.parts, grads.units, *values.parts, values.units)
        self._sum(e, sums, (found, weighted, *more))
        return found, self._weigh(e, sums, (found, weighted), keys)

    def _weigh(self, e: Any, sums: _Sums, more: tuple[Any, Any], values: Values) -> Any:
        import torch

        p = self.p
        tops = self._room_for_sums(e).view(torch.int32)
        self.launch(
            "attention_weights", self.units * p.chunks, (e, *sums, tops, *more, values.exponents),
            (p.chunks, values.exponents.shape[1]), p.of_sums, factors=(p.factor,),
        )  # fmt: skip
        return tops

    def _room_for_sums(self, e: Any) -> Any:
        import torch

        return torch.empty(self.p.chunks, self.units * self.p.rows, device=e.device)

    def _sum(self, e: Any, sums: _Sums, more: Sequence[Any]) -> None:
        p = self.p
        self.launch(
            "attention_sums", self.units * p.chunks, (e, *sums, *more), (p.padded, p.chunks),
            {"SLOPES": more[0] is not None, **p.of_sums},
        )  # fmt: skip

    def sum_values(
        self, e: Any, sums: _Sums, tops: Any, values: Values, out: Any, totals: Any
    ) -> None:
        """Sum values times weights into rows of ``out``.

        Args:
            e: exponentials; or weights, if ``totals`` is None.
            sums: of exponentials.
            tops: the largest codes of weights.
            values: what is summed.
            out: (rows, size).
            totals: gets the sums of rows of exponentials.
        """
        p = self.p
        own = out[p.row(self.first) : p.row(self.first + self.units)]
        numbers = (values.digits.parts.shape[2], p.chunks)
        self._add(
            "attention_values", own, self.units, p.rows, numbers,
            (e, *sums, tops, values.exponents, *values.digits.parts), (totals,), p.of_sums,
        )  # fmt: skip

    def sum_queries(self, w: Any, odd: Any, values: Values, out: Any) -> None:
        """Sum values of queries times the weights that a key has there, into rows of ``out``."""
        p = self.p
        lines = self.units // p.blocks
        chunk = cuda_exact.chunk()
        first = self.first // p.blocks * p.keys
        own = out[first : first + lines * p.keys]
        numbers = (values.digits.parts.shape[2], -(-p.queries // chunk))
        self._add(
            "attention_columns", own, lines * p.tiles, 1 << p.tile, numbers,
            (w, odd, values.exponents, *values.digits.parts), (),
            {"NODES": p.of_sums["NODES"], "PARTS": chunk // p.rows},
        )  # fmt: skip

    def _add(
        self, name: str, out: Any, tasks: int, rows: int, numbers: tuple[int, int],
        given: Sequence[Any], more: Sequence[Any], constants: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Sum values times weights by a kernel whose tasks have so many rows of ``out``.

        Args:
            name: of the kernel.
            out: dense.
            tasks: how many there are.
            rows: of a task.
            numbers: how many terms columns of digits have, and how many chunks there are.
            given: the tensors before ``out``.
            more: those behind it.
            constants: the kernel's own.
        """
        import torch

        p = self.p
        wide = min(p.wide, _WIDEST)
        tasks *= -(-p.size // wide)
        enough = p.enough * _RESIDENT
        levels = cuda_exact.split(tasks, numbers[1], enough, 0)
        splits = -(-numbers[1] >> levels)
        programs = min(tasks * splits, enough)
        size = programs * levels * rows * wide
        c = out if splits == 1 else torch.empty(splits, *out.shape, device=out.device)
        room = torch.empty(size, device=out.device) if size else given[0]
        self.launch(
            name, programs, (*given, c, *more, room),
            (out.shape[0], p.size, *numbers, splits, self.units),
            {"WIDE": wide, **constants, "LEVELS": levels}, _WARPS * max(1, wide // 64),
            _STAGES[name],
        )  # fmt: skip
        if splits > 1:
            out.copy_(added(c, 0, dtype=out.dtype))


def attention(query: Any, key: Any, value: Any, causal: bool, factor: float) -> tuple[Any, Any]:
    """Return attended values in bfloat16 and logarithms of sums, both dense.

    Args:
        query: (samples, heads, queries, size) in bfloat16.
        key: (samples, heads or a divisor of it, keys, size).
        value: as ``key``.
        causal: whether a query sees no later key.
        factor: of scores.
    """
    import torch

    p = _Problem(query, key, value, causal, factor, apart=False)
    out = torch.empty(p.lines * p.queries, p.size, dtype=query.dtype, device=query.device)
    totals, largest = torch.empty(2, p.lines * p.queries, device=query.device)
    queries, keys = cuda_exact.digits(p.query), cuda_exact.digits(p.key)
    values = cuda_exact.values(p.value)
    for turn in p.turns(1):
        e = turn.exponentials(queries, keys, largest)
        sums = turn.sums(e)
        tops = turn.weights(e, sums, values)
        turn.sum_values(e, sums, tops, values, out, totals)
    logs = totals.log_().add_(largest)
    return out.view(query.shape), logs.view(query.shape[:3])


def gradients(
    grad: Any, query: Any, key: Any, value: Any, causal: bool, factor: float
) -> tuple[Any, Any, Any]:
    """Return the gradients of query, key and value in float32, of the last two for each head.

    Args:
        grad: of the attended values, like ``query``.
        query: as in ``attention``.
        key: as there.
        value: as there.
        causal: as there.
        factor: as there.
    """
    import torch

    p = _Problem(query, key, value, causal, factor, apart=True)
    grad = p.in_lines(grad)
    of_query = torch.empty(p.lines * p.queries, p.size, device=query.device)
    shape = (p.lines * p.keys, p.size)
    of_key, of_value = (torch.empty(shape, device=query.device) for _ in range(2))
    largest = torch.empty(p.lines * p.queries, device=query.device)
    queries, keys, grads, values = map(cuda_exact.digits, (p.query, p.key, grad, p.value))
    # What is summed with weights: rows have a unit each.
    of_keys, of_queries, of_grads = map(cuda_exact.values, (p.key, p.query, grad))
    for turn in p.turns(p.blocks):
        e = turn.exponentials(queries, keys, largest)
        sums = turn.sums(e)
        slopes, tops = turn.slopes(e, sums, grads, values, of_keys)
        turn.sum_values(slopes, sums, tops, of_keys, of_query, None)
        turn.sum_queries(slopes, sums.odd, of_queries, of_key)
        turn.sum_queries(e, sums.odd, of_grads, of_value)
    shape = (*query.shape[:2], *key.shape[2:])
    return of_query.view(query.shape), of_key.view(shape), of_value.view(shape)
