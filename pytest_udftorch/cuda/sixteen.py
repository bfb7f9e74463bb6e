# SPDX-License-Identifier: Apache-2.0
"""exp rounded to 16 bits, for kernels that need no more of it.

The GPU's own exp2 is within 2^-22.5 (PTX ISA, ``ex2.approx.ftz.f32``), and this code within
2^-21.7. It knows bfloat16's or half's rounding of a correctly rounded exp wherever no boundary
between two roundings lies within 8 units of float32's last place. For the other arguments, one in
3,900 with bfloat16, a thread calls the session's function. So the results are the session's,
rounded, at a fraction of the instructions. ``tests/gpu/test_cuda_sixteen_gpu.py`` compares them for
all 2^32 arguments.
"""

import triton
import triton.language as tl

from pytest_udftorch.cuda.kernels import _exp, _extern, _jit

_value, _hard, _rest = (_extern("exp", part) for part in ("value", "hard", "rest"))

#: log2(e) as two floats.
_LOG2E = tl.constexpr(float.fromhex("0x1.715476p+0"))
_LOG2E_LOW = tl.constexpr(float.fromhex("0x1.4ae0cp-26"))
_LN2 = tl.constexpr(0.6931471805599453)

#: exp of it is zero in each dtype, and that of its negative is infinity.
_LEAST = tl.constexpr(-150.0)

#: Arguments whose exp may be subnormal, as encodings: -87.336 to -104. exp2 flushes such results.
_SUBNORMAL = tl.constexpr(0xC2AEAC00)
_SUBNORMALS = tl.constexpr(0xC2D00000 - 0xC2AEAC00)

#: Half the width of the doubt around a boundary, in units of float32's last place and relatively.
_DOUBT = tl.constexpr(8)
_BELOW = tl.constexpr(1 - 2.0**-20)
_ABOVE = tl.constexpr(1 + 2.0**-20)


@triton.jit
def _doubtful_bfloat16(x, y):
    low = y.to(tl.uint32, bitcast=True) << 16
    # The boundary between two roundings is 0x8000 in the low half.
    near = (low + (0x80000000 + (_DOUBT << 16))) < (2 * _DOUBT + 1 << 16)
    return near | ((x.to(tl.uint32, bitcast=True) - _SUBNORMAL) < _SUBNORMALS)


@triton.jit
def _doubtful_half(x, y):
    below = (y * _BELOW).to(tl.float16).to(tl.int16, bitcast=True)
    above = (y * _ABOVE).to(tl.float16).to(tl.int16, bitcast=True)
    return below != above


def _settled(doubtful, name):
    """Return what puts the session's result in the place of a doubtful one, eight at a time.

    Two doubtful ones among eight are rare: the second takes the accurate path, which is short to
    write and long to run.
    """

    def eight(  # noqa: PLR0913
        x0, x1, x2, x3, x4, x5, x6, x7, y0, y1, y2, y3, y4, y5, y6, y7
    ):  # fmt: skip
        d0 = doubtful(x0, y0)
        d1 = doubtful(x1, y1)
        d2 = doubtful(x2, y2)
        d3 = doubtful(x3, y3)
        d4 = doubtful(x4, y4)
        d5 = doubtful(x5, y5)
        d6 = doubtful(x6, y6)
        d7 = doubtful(x7, y7)
        if d0 | d1 | d2 | d3 | d4 | d5 | d6 | d7:
            i = tl.where(d0, 0, tl.where(d1, 1, tl.where(d2, 2, tl.where(d3, 3, tl.where(
                d4, 4, tl.where(d5, 5, tl.where(d6, 6, 7)))))))  # fmt: skip
            x = tl.where(i == 0, x0, tl.where(i == 1, x1, tl.where(i == 2, x2, tl.where(
                i == 3, x3, tl.where(i == 4, x4, tl.where(i == 5, x5, tl.where(
                    i == 6, x6, x7)))))))  # fmt: skip
            y = _value(x)
            if _hard(x) != 0:
                y = _rest(x)
            y0 = tl.where(i == 0, y, y0)
            y1 = tl.where(i == 1, y, y1)
            y2 = tl.where(i == 2, y, y2)
            y3 = tl.where(i == 3, y, y3)
            y4 = tl.where(i == 4, y, y4)
            y5 = tl.where(i == 5, y, y5)
            y6 = tl.where(i == 6, y, y6)
            y7 = tl.where(i == 7, y, y7)
            more = d0.to(tl.int32) + d1 + d2 + d3 + d4 + d5 + d6 + d7
            if more > 1:
                if d1 & (i != 1):
                    y1 = _rest(x1)
                if d2 & (i != 2):
                    y2 = _rest(x2)
                if d3 & (i != 3):
                    y3 = _rest(x3)
                if d4 & (i != 4):
                    y4 = _rest(x4)
                if d5 & (i != 5):
                    y5 = _rest(x5)
                if d6 & (i != 6):
                    y6 = _rest(x6)
                if d7 & (i != 7):
                    y7 = _rest(x7)
        return y0, y1, y2, y3, y4, y5, y6, y7

    return _jit(eight, name)


_settled_bfloat16 = _settled(_doubtful_bfloat16, "settled_bfloat16")
_settled_half = _settled(_doubtful_half, "settled_half")


_TWO_VALUE, _TWO_HARD, _TWO_REST = (_extern("exp2", part) for part in ("value", "hard", "rest"))

_TWO_DOUBT = tl.constexpr(4)
_TWO_SUBNORMAL = tl.constexpr(0xC2FC0000)
_TWO_SUBNORMALS = tl.constexpr(0xC3160000 - 0xC2FC0000)


@triton.jit
def _two_near(y):
    return (y.to(tl.uint32, bitcast=True) << 16) + (0x80000000 + (_TWO_DOUBT << 16))


@triton.jit
def _two_doubtful(x, y):
    return (_two_near(y) < (2 * _TWO_DOUBT + 1 << 16)) | (
        (x.to(tl.uint32, bitcast=True) - _TWO_SUBNORMAL) < _TWO_SUBNORMALS
    )


def _written(name, pack, subnormal):
    """Return what settles doubtful results of exp2, ``pack`` at a time, one after another."""
    import linecache

    xs = [f"x{i}" for i in range(pack)]
    ys = [f"y{i}" for i in range(pack)]
    lines = [f"def {name}({', '.join((*xs, *ys))}):"]
    lines.append("    least = _two_near(y0)")
    lines += [f"    least = tl.minimum(least, _two_near(y{i}))" for i in range(1, pack)]
    if subnormal:
        lines.append("    low = x0.to(tl.uint32, bitcast=True) - _TWO_SUBNORMAL")
        lines += [
            f"    low = tl.minimum(low, x{i}.to(tl.uint32, bitcast=True) - _TWO_SUBNORMAL)"
            for i in range(1, pack)
        ]
        lines.append("    if (least < (2 * _TWO_DOUBT + 1 << 16)) | (low < _TWO_SUBNORMALS):")
    else:
        lines.append("    if least < (2 * _TWO_DOUBT + 1 << 16):")
    lines.append("        i = 0")
    lines.append(f"        while i < {pack}:")
    lines.append("            x = x0")
    lines.append("            y = y0")
    lines += [f"            x = tl.where(i == {i}, x{i}, x)" for i in range(1, pack)]
    lines += [f"            y = tl.where(i == {i}, y{i}, y)" for i in range(1, pack)]
    lines.append("            if _two_doubtful(x, y):")
    lines.append("                y = _TWO_VALUE(x)")
    lines.append("                if _TWO_HARD(x) != 0:")
    lines.append("                    y = _TWO_REST(x)")
    for i in range(pack):
        lines.append(f"            y{i} = tl.where(i == {i}, y, y{i})")
    lines.append("            i += 1")
    lines.append(f"    return {', '.join(ys)}")
    text = "\n".join(lines) + "\n"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), globals())
    return triton.jit(globals()[name])


_settle8 = _written("settle8", 8, False)
_settle16 = _written("settle16", 16, False)
_settle32 = _written("settle32", 32, False)
_settle8a = _written("settle8a", 8, True)
_settle16a = _written("settle16a", 16, True)
_settle32a = _written("settle32a", 32, True)


@triton.jit
def exp2_rounded(x, DTYPE: tl.constexpr, QUICK: tl.constexpr):
    y = tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
    if QUICK == 2:
        y = tl.map_elementwise(_settle8, x, y, pack=8)[0]
    elif QUICK == 3:
        y = tl.map_elementwise(_settle16, x, y, pack=16)[0]
    elif QUICK == 4:
        y = tl.map_elementwise(_settle32, x, y, pack=32)[0]
    elif QUICK == 5:
        y = tl.map_elementwise(_settle8a, x, y, pack=8)[0]
    elif QUICK == 6:
        y = tl.map_elementwise(_settle16a, x, y, pack=16)[0]
    elif QUICK == 7:
        y = tl.map_elementwise(_settle32a, x, y, pack=32)[0]
    return y.to(DTYPE)


@triton.jit
def exp_rounded(x, seen, DTYPE: tl.constexpr, QUICK: tl.constexpr, LARGE: tl.constexpr = True):
    """Return the session's exp, rounded to a dtype.

    LARGE: whether x may be above 80.
    QUICK: whether the session's exp is correctly rounded, and not counted.
    """
    if QUICK:
        # A NaN stays.
        x = tl.maximum(x, _LEAST, propagate_nan=tl.PropagateNan.ALL)
        if LARGE:
            x = tl.minimum(x, -_LEAST, propagate_nan=tl.PropagateNan.ALL)
        product = x * _LOG2E
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [product], dtype=tl.float32, is_pure=True, pack=1
        )
        lacks = tl.fma(x, _LOG2E_LOW, tl.fma(x, _LOG2E, -product))
        y = y * tl.fma(lacks, _LN2, 1.0)
        if DTYPE.is_bf16():
            y = tl.map_elementwise(_settled_bfloat16, x, y, pack=8)[0]
        else:
            y = tl.map_elementwise(_settled_half, x, y, pack=8)[0]
    else:
        y = _exp(x, seen)
    return y.to(DTYPE)
