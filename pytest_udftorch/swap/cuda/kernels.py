# SPDX-License-Identifier: Apache-2.0
"""Triton kernels behind the operators that ``operators`` overrides.

Every function is computed in float32 and rounded once to the dtype of the result, as ATen
does. The formulas have the operations of ATen's CPU kernels in their order, and are compiled
without fusing a multiplication into an addition (``enable_fp_fusion=False``). Where the compiler
of torch's CPU kernels fuses, the formula says ``fma``. Division is ``div_rn``: Triton's ``/`` is
an approximation.

The session's libdevice gives each function in three parts (``libdevice.SPLIT``): the fast path,
whether its result is in doubt, and the accurate path. A thread then computes the fast paths of
its elements side by side. A call of the whole function would put a branch after each element.

Every kernel takes the row of ``counters`` that it counts in. Outside profiled sessions the row is
None, and Triton compiles the kernel without any code for counting.

This module imports triton, so it is itself imported when the first kernel is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import types

import triton
import triton.language as tl
from triton.language import core
from triton.language.extra import libdevice
from triton.language.extra.cuda import globaltimer, smid

from pytest_udftorch.swap.cuda import counters as cuda_counters
from pytest_udftorch.swap.library.symbols import COMPOSITES, FUNCTIONS, KNOWN
from pytest_udftorch.swap.operators.calls import FORMULAS
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.toolchain.libdevice import SPLIT, composite_symbol

#: Elements that a thread computes between two branches; it must have a multiple of them.
PACK = tl.constexpr(4)


# Counting ---------------------------------------------------------------------------------

_LAUNCHES = tl.constexpr(cuda_counters.LAUNCHES)
_ELEMENTS = tl.constexpr(cuda_counters.ELEMENTS)
_LINES = tl.constexpr(cuda_counters.LINES)
_SAMPLE_MASK = tl.constexpr(cuda_counters.SAMPLE_MASK)
_IN = tl.constexpr(cuda_counters.IN)
_OUT = tl.constexpr(cuda_counters.OUT)
_SPECIALS = tl.constexpr(2)
_MADE = tl.constexpr(cuda_counters.MADE)
_SAMPLED = tl.constexpr(cuda_counters.SAMPLED)
_HISTOGRAM_IN = tl.constexpr(cuda_counters.HISTOGRAM_IN)
_HISTOGRAM_OUT = tl.constexpr(cuda_counters.HISTOGRAM_OUT)
_BINS = tl.constexpr(cuda_counters.BINS)
_BIN_OFFSET = tl.constexpr(layout.HIST_OFFSET)
_SLOT = tl.constexpr(cuda_counters.SLOT)
_SHARDS = tl.constexpr(cuda_counters.SHARDS)
_SHARD = tl.constexpr(cuda_counters.SHARD)
_INFINITY = tl.constexpr(0x7F800000)
_LOWEST = tl.constexpr(-0x7F800001)
_SMALLEST_NORMAL = tl.constexpr(2.0**-126)
_LARGEST = tl.constexpr(2.0**128 - 2.0**104)


@triton.jit
def _key(x):
    """Return integers in the order of the values."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _bound(word):
    key = tl.load(word).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _processor():
    return smid()


@triton.jit
def _shard(slot):
    # Many programs of a multiprocessor read the same words, mostly from its L1; a stale word there
    # costs a second look.
    return slot + (_processor() & (_SHARDS - 1)) * _SHARD


@triton.jit
def _known(seen, SLOT: tl.constexpr):
    """Return the extremes so far, clamped to finite ones, and which programs enter the histograms.

    A kernel asks before it computes the function, so that the loads have arrived when it counts.
    """
    slot = _shard(seen[0] + SLOT * _SLOT)
    in_low = tl.maximum(_bound(slot + _IN), -_LARGEST)
    in_high = tl.minimum(_bound(slot + _IN + 1), _LARGEST)
    out_low = tl.maximum(_bound(slot + _OUT), -_LARGEST)
    out_high = tl.minimum(_bound(slot + _OUT + 1), _LARGEST)
    return in_low, in_high, out_low, out_high, tl.load(slot + _SAMPLE_MASK).to(tl.int32)


@triton.jit
def _usual(x, low, high):
    """Return whether values need no second look: normal numbers in the range seen so far."""
    return (x >= low) & (x <= high) & (tl.abs(x) >= _SMALLEST_NORMAL)


@triton.jit
def _add(word, count):
    tl.atomic_add(word, count.to(tl.int64), mask=count > 0, sem="relaxed")


@triton.jit
def _side(x, side, inside):
    """Add values to one side; return how many NaNs, infinities and subnormals there were."""
    key = _key(x)
    number = x == x
    if inside is not None:
        number = number & inside
    low = tl.min(tl.ravel(tl.where(number, key, _INFINITY)))
    high = tl.max(tl.ravel(tl.where(number, key, _LOWEST)))
    # Most programs have nothing new. Without the masks they would wait for each other.
    tl.atomic_min(side, low.to(tl.int64), mask=low < tl.load(side), sem="relaxed")
    tl.atomic_max(side + 1, high.to(tl.int64), mask=high > tl.load(side + 1), sem="relaxed")
    # A kind has 16 bits: no program has more than 32,768 elements. NaNs are counted apart.
    kind = tl.where(tl.abs(x) < _SMALLEST_NORMAL, 1 << 16, 0).to(tl.int64)
    kind = tl.where(x == 0.0, 1, kind)
    kind = tl.where(x > _LARGEST, 1 << 32, kind)
    kind = tl.where(x < -_LARGEST, 1 << 48, kind)
    nan = (x != x).to(tl.int32)
    if inside is not None:
        kind = tl.where(inside, kind, 0)
        nan = tl.where(inside, nan, 0)
    kinds = tl.sum(tl.ravel(kind))
    nans = tl.sum(tl.ravel(nan))
    subnormals = (kinds >> 16) & 0xFFFF
    rising = (kinds >> 32) & 0xFFFF
    falling = (kinds >> 48) & 0xFFFF
    _add(side + _SPECIALS, kinds & 0xFFFF)
    _add(side + _SPECIALS + 1, subnormals)
    _add(side + _SPECIALS + 2, rising)
    _add(side + _SPECIALS + 3, falling)
    _add(side + _SPECIALS + 4, nans)
    return nans, rising + falling, subnormals


@triton.jit
def _histogram(x, bins, inside):
    size = tl.abs(x)
    # Times 2^24, a subnormal number is a normal one.
    scaled = tl.where(size < _SMALLEST_NORMAL, size * 16777216.0, size)
    bias = tl.where(size < _SMALLEST_NORMAL, 127 + 24, 127)
    at = (scaled.to(tl.int32, bitcast=True) >> 23) - bias + _BIN_OFFSET
    at += tl.where(x < 0.0, _BINS // 2, 0)
    counted = (size > 0.0) & (size <= _LARGEST)
    if inside is not None:
        counted = counted & inside
    if x.numel >= 512:
        # In shared memory first. A bin that no exponent has takes the values that do not count.
        counts = tl.histogram(tl.ravel(tl.where(counted, at, _BINS // 2 - 1)), _BINS)
        bin = tl.arange(0, _BINS)
        some = (counts > 0) & (bin != _BINS // 2 - 1)
        tl.atomic_add(bins + bin, counts.to(tl.int64), mask=some, sem="relaxed")
    else:
        ones = tl.full(x.shape, 1, tl.int64)
        tl.atomic_add(bins + at, ones, mask=counted, sem="relaxed")


@triton.jit
def _count(x, z, y, seen, known, SLOT: tl.constexpr):
    """Count the arguments of a function, x and z (or None), and its result y."""
    slot = seen[0] + SLOT * _SLOT
    shard = _shard(slot)
    inside = seen[1]
    usual = _usual(x, known[0], known[1]) & _usual(y, known[2], known[3])
    if z is not None:
        usual = usual & _usual(z, known[0], known[1])
    look = (~usual).to(tl.int32)
    if inside is not None:
        look = tl.where(inside, look, 0)
    if tl.max(tl.ravel(look)) != 0:
        nans, infinities, subnormals = _side(x, shard + _IN, inside)
        if z is not None:
            more_nans, more_infinities, more_subnormals = _side(z, shard + _IN, inside)
            nans += more_nans
            infinities += more_infinities
            subnormals += more_subnormals
        out_nans, out_infinities, out_subnormals = _side(y, shard + _OUT, inside)
        made_nan = (nans == 0) & (out_nans > 0)
        made_infinity = (infinities == 0) & (out_infinities > 0)
        made_subnormal = (subnormals == 0) & (out_subnormals > 0)
        if made_nan | made_infinity | made_subnormal:
            now = _now()
            tl.atomic_min(shard + _MADE, now, mask=made_nan, sem="relaxed")
            tl.atomic_min(shard + _MADE + 1, now, mask=made_infinity, sem="relaxed")
            tl.atomic_min(shard + _MADE + 2, now, mask=made_subnormal, sem="relaxed")
    if (tl.program_id(0) & known[4]) == 0:
        _histogram(x, slot + _HISTOGRAM_IN, inside)
        if z is not None:
            _histogram(z, slot + _HISTOGRAM_IN, inside)
        _histogram(y, slot + _HISTOGRAM_OUT, inside)
        elements = tl.full(x.shape, 1, tl.int32)
        if inside is not None:
            elements = tl.where(inside, elements, 0)
        _add(shard + _SAMPLED, tl.sum(tl.ravel(elements)))


@triton.jit
def _now():
    return globaltimer()


@triton.jit
def _launched(row, elements, lines):
    """Count a launch, once."""
    if tl.program_id(0) == 0:
        zero = tl.full([], 0, tl.int64)
        tl.atomic_add(row + _LAUNCHES, zero + 1, sem="relaxed")
        tl.atomic_add(row + _ELEMENTS, zero + elements, sem="relaxed")
        tl.atomic_add(row + _LINES, zero + lines, sem="relaxed")


# Functions --------------------------------------------------------------------------------


def _extern(function, part):
    known = KNOWN[function]
    float32 = core.dtype("fp32")
    result = {"float": float32, "i32": core.dtype("int32")}[SPLIT[part]]
    kinds = (float32,) * known.arity
    symbol = f"__nv_udf_{known.c_name('float32')}_{part}"
    if function in COMPOSITES:
        symbol = composite_symbol(function, part)

    def call(*args, _semantic=None):
        return core.extern_elementwise(
            "", "", list(args), {kinds: (symbol, result)}, is_pure=True, _semantic=_semantic
        )

    return core.extern(call)


def _jit(function, name):
    # Triton tells functions of one module apart by their names.
    function.__name__ = function.__qualname__ = name
    return triton.jit(function)


def _whole(inner, pack, name):
    """Return a function of tensors that counts, made from a function of ``pack`` numbers."""

    def whole(x, seen, SLOT: tl.constexpr = 0):
        if seen[0] is not None:
            known = _known(seen, SLOT)
        y = tl.map_elementwise(inner, x, pack=pack)[0]
        if seen[0] is not None:
            _count(x, None, y, seen, known, SLOT)
        return y

    return _jit(whole, name)


def _mapped(name):
    """Return a function of tensors made from a function of libdevice."""
    value, hard, rest = (_extern(name, part) for part in ("value", "hard", "rest"))

    def four(x0, x1, x2, x3):
        y0 = value(x0)
        y1 = value(x1)
        y2 = value(x2)
        y3 = value(x3)
        if (hard(x0) | hard(x1) | hard(x2) | hard(x3)) != 0:
            if hard(x0) != 0:
                y0 = rest(x0)
            if hard(x1) != 0:
                y1 = rest(x1)
            if hard(x2) != 0:
                y2 = rest(x2)
            if hard(x3) != 0:
                y3 = rest(x3)
        return y0, y1, y2, y3

    def four_pairs(x0, x1, x2, x3, z0, z1, z2, z3):
        y0 = value(x0, z0)
        y1 = value(x1, z1)
        y2 = value(x2, z2)
        y3 = value(x3, z3)
        if (hard(x0, z0) | hard(x1, z1) | hard(x2, z2) | hard(x3, z3)) != 0:
            if hard(x0, z0) != 0:
                y0 = rest(x0, z0)
            if hard(x1, z1) != 0:
                y1 = rest(x1, z1)
            if hard(x2, z2) != 0:
                y2 = rest(x2, z2)
            if hard(x3, z3) != 0:
                y3 = rest(x3, z3)
        return y0, y1, y2, y3

    if KNOWN[name].arity == 1:
        return _whole(_jit(four, f"{name}_four"), PACK, f"{name}_whole")
    inner = _jit(four_pairs, f"{name}_four")

    def whole_pairs(x, z, seen, SLOT: tl.constexpr = 0):
        if seen[0] is not None:
            known = _known(seen, SLOT)
        y = tl.map_elementwise(inner, x, z, pack=PACK)[0]
        if seen[0] is not None:
            _count(x, z, y, seen, known, SLOT)
        return y

    return _jit(whole_pairs, f"{name}_whole")


def _mapped_by_two(name):
    """Return the same, but with a branch after every two elements: it takes fewer registers."""
    value, hard, rest = (_extern(name, part) for part in ("value", "hard", "rest"))

    def two(x0, x1):
        y0 = value(x0)
        y1 = value(x1)
        if (hard(x0) | hard(x1)) != 0:
            if hard(x0) != 0:
                y0 = rest(x0)
            if hard(x1) != 0:
                y1 = rest(x1)
        return y0, y1

    return _whole(_jit(two, f"{name}_two"), tl.constexpr(2), f"{name}_whole_by_two")


#: Functions that some formulas use with a branch after two elements.
_BY_TWO = ("exp", "exp2", "expm1")

_exp = _mapped("exp")

#: What the names in ``formulas`` mean here.
_OPERATIONS = {
    "__name__": __name__,
    "_where": tl.where,
    "_abs": tl.abs,
    "_fma": tl.fma,
    "_div": tl.div_rn,
    "_sqrt": tl.sqrt_rn,
    "_floor": tl.floor,
    **{f"_{name}": _mapped(name) for name in FUNCTIONS if name != "exp"},
    **{f"_{name}_by_two": _mapped_by_two(name) for name in _BY_TWO},
    "_exp": _exp,
}


def _compiled(formula):
    return triton.jit(types.FunctionType(formula.__code__, _OPERATIONS, formula.__name__))


globals().update({name: _compiled(formula) for name, formula in FORMULAS.items()})


# Kernels over elements that lie side by side ---------------------------------------------
#
# Four of the kernels below have nine or ten parameters: a Triton kernel cannot take an object, so
# each pointer, size, scalar and compile-time constant is a parameter of its own.


@triton.jit(do_not_specialize=["n"])
def unary(x, y, n, a, b, c, row, F: tl.constexpr, BLOCK: tl.constexpr):
    if row is not None:
        _launched(row, n, 0)
    # 64 bits for the block's place, 32 within the block.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x += start
    y += start
    at = tl.arange(0, BLOCK)
    # Without a mask the accesses are 16 bytes wide whatever n is.
    if n - start >= BLOCK:
        whole = (row, None)
        tl.store(y + at, F(tl.load(x + at).to(tl.float32), a, b, c, whole).to(y.dtype.element_ty))
    else:
        inside = at < n - start
        value = F(tl.load(x + at, inside, other=0.0).to(tl.float32), a, b, c, (row, inside))
        tl.store(y + at, value.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["n"])
def binary(x1, x2, y, n, a, b, c, row, F: tl.constexpr, BLOCK: tl.constexpr):
    if row is not None:
        _launched(row, n, 0)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x1 += start
    x2 += start
    y += start
    at = tl.arange(0, BLOCK)
    if n - start >= BLOCK:
        first = tl.load(x1 + at).to(tl.float32)
        second = tl.load(x2 + at).to(tl.float32)
        tl.store(y + at, F(first, second, a, b, c, (row, None)).to(y.dtype.element_ty))
    else:
        inside = at < n - start
        first = tl.load(x1 + at, inside, other=0.0).to(tl.float32)
        second = tl.load(x2 + at, inside, other=0.0).to(tl.float32)
        tl.store(y + at, F(first, second, a, b, c, (row, inside)).to(y.dtype.element_ty), inside)


# Kernels over rows --------------------------------------------------------------------
#
# Sums are float32: over a row in registers, the tree of tl.sum; over a longer one, a running
# sum for each lane of a tile and then that tree.


@triton.jit
def _row_result(x, power, peak, total, LOG: tl.constexpr):
    if LOG:
        result = x - peak - libdevice.log(total)
    else:
        result = tl.div_rn(power, tl.broadcast_to(total, power.shape))
    return result


@triton.jit(do_not_specialize=["rows"])
def softmax_rows(x, y, rows, n, seen, LOG: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    if seen is not None:
        _launched(seen, tl.full([], 1, tl.int64) * rows * n, rows)
    first = tl.program_id(0).to(tl.int64) * ROWS
    x += first * n
    y += first * n
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * n + column[None, :]
    inside = (first + row[:, None] < rows) & (column[None, :] < n)
    value = tl.load(x + at, inside, other=-float("inf")).to(tl.float32)
    peak = tl.max(value, 1)[:, None]
    power = _exp(value - peak, (seen, inside))
    total = tl.sum(tl.where(inside, power, 0.0), 1)[:, None]
    if LOG and seen is not None:
        lines = (seen, first + row[:, None] < rows)
        _count(total, None, libdevice.log(total), lines, _known(lines, 1), 1)
    tl.store(y + at, _row_result(value, power, peak, total, LOG).to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["blocks"])
def softmax_tiles(
    x, y, n, inner, blocks, seen, LOG: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr
):
    if seen is not None:
        lines = (tl.num_programs(0) // blocks).to(tl.int64) * inner
        _launched(seen, lines * n, lines)
    # A program has COLUMNS of the inner dimension and goes three times over the n between
    # outer and inner: for the maximum, the sum and the results.
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x += outer * n * inner
    y += outer * n * inner
    steps = tl.arange(0, TILE)[:, None].to(tl.int64)
    largest = tl.full([TILE, COLUMNS], -float("inf"), tl.float32)
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        value = tl.load(x + (start + steps) * inner + column, inside, other=-float("inf"))
        # A NaN comes through the sum.
        largest = tl.maximum(largest, value.to(tl.float32))
    peak = tl.max(largest, 0)[None, :]
    sums = tl.zeros([TILE, COLUMNS], tl.float32)
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        value = tl.load(x + (start + steps) * inner + column, inside, other=-float("inf"))
        power = _exp(value.to(tl.float32) - peak, (seen, inside))
        sums += tl.where(inside, power, 0.0)
    total = tl.sum(sums, 0)[None, :]
    if LOG and seen is not None:
        each = (seen, column < inner)
        _count(total, None, libdevice.log(total), each, _known(each, 1), 1)
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        at = (start + steps) * inner + column
        value = tl.load(x + at, inside, other=-float("inf")).to(tl.float32)
        power = value
        if not LOG:
            power = _exp(value - peak, (seen, inside))
        result = _row_result(value, power, peak, total, LOG)
        tl.store(y + at, result.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["rows"])
def log_softmax_backward_rows(g, y, gx, rows, n, seen, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    if seen is not None:
        _launched(seen, tl.full([], 1, tl.int64) * rows * n, rows)
    first = tl.program_id(0).to(tl.int64) * ROWS
    g += first * n
    y += first * n
    gx += first * n
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * n + column[None, :]
    inside = (first + row[:, None] < rows) & (column[None, :] < n)
    grad = tl.load(g + at, inside, other=0.0).to(tl.float32)
    total = tl.sum(grad, 1)[:, None]
    power = _exp(tl.load(y + at, inside, other=-float("inf")).to(tl.float32), (seen, inside))
    tl.store(gx + at, (grad - power * total).to(gx.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["blocks"])
def log_softmax_backward_tiles(
    g, y, gx, n, inner, blocks, seen, TILE: tl.constexpr, COLUMNS: tl.constexpr
):
    if seen is not None:
        lines = (tl.num_programs(0) // blocks).to(tl.int64) * inner
        _launched(seen, lines * n, lines)
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    g += outer * n * inner
    y += outer * n * inner
    gx += outer * n * inner
    steps = tl.arange(0, TILE)[:, None].to(tl.int64)
    sums = tl.zeros([TILE, COLUMNS], tl.float32)
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        at = (start + steps) * inner + column
        sums += tl.load(g + at, inside, other=0.0).to(tl.float32)
    total = tl.sum(sums, 0)[None, :]
    for start in range(0, n, TILE):
        inside = (start + steps < n) & (column < inner)
        at = (start + steps) * inner + column
        grad = tl.load(g + at, inside, other=0.0).to(tl.float32)
        given = tl.load(y + at, inside, other=-float("inf")).to(tl.float32)
        power = _exp(given, (seen, inside))
        tl.store(gx + at, (grad - power * total).to(gx.dtype.element_ty), inside)
