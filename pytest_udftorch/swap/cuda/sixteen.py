# SPDX-License-Identifier: Apache-2.0
"""exp and exp2 rounded to 16 bits, for kernels that need no more of them.

The GPU's own exp2 is within 2^-22.5 (PTX ISA, ``ex2.approx.ftz.f32``), and what exp makes of it
within 2^-21.7. That tells bfloat16's or half's rounding of a correctly rounded result wherever no
boundary between two roundings is near. For the other arguments, one in 7,300 of exp2 and one in
3,900 of exp with bfloat16, a thread calls the session's function. So the results are the session's,
rounded, at a fraction of the instructions. ``tests/gpu/test_cuda_sixteen_gpu.py`` compares them for
all 2^32 arguments.

A thread asks once for all of its elements whether one is in doubt: a branch after every few would
keep the GPU from computing them side by side.
"""

import linecache

import triton
import triton.language as tl

from pytest_udftorch.swap.cuda.kernels import _exp, _extern, _jit

_exp_value, _exp_hard, _exp_rest = (_extern("exp", part) for part in ("value", "hard", "rest"))
_exp2_value, _exp2_hard, _exp2_rest = (_extern("exp2", part) for part in ("value", "hard", "rest"))

#: log2(e) as two floats.
_LOG2E = tl.constexpr(float.fromhex("0x1.715476p+0"))
_LOG2E_LOW = tl.constexpr(float.fromhex("0x1.4ae0cp-26"))
_LN2 = tl.constexpr(0.6931471805599453)

#: exp of it is zero in each dtype, and that of its negative is infinity.
_LEAST = tl.constexpr(-150.0)

#: Arguments whose results may be subnormal, as encodings: exp from -87.336 to -104, exp2 from -126
#: to -150. The GPU's exp2 flushes such results.
_EXP_SUBNORMAL = tl.constexpr(0xC2AEAC00)
_EXP_SUBNORMALS = tl.constexpr(0xC2D00000 - 0xC2AEAC00)
_EXP2_SUBNORMAL = tl.constexpr(0xC2FC0000)
_EXP2_SUBNORMALS = tl.constexpr(0xC3160000 - 0xC2FC0000)

#: Half the width of the doubt around a boundary, in units of float32's last place and relatively.
_EXP_DOUBT = tl.constexpr(8)
_EXP2_DOUBT = tl.constexpr(4)
_BELOW = tl.constexpr(1 - 2.0**-20)
_ABOVE = tl.constexpr(1 + 2.0**-20)


# How near a result is to a boundary, as an unsigned number: a small one is in doubt ---------------


@triton.jit
def _near_bfloat16(y, DOUBT: tl.constexpr):
    # The boundary between two roundings is 0x8000 in the low half.
    return (y.to(tl.uint32, bitcast=True) << 16) + (0x80000000 + (DOUBT << 16))


@triton.jit
def _near_half(y, DOUBT: tl.constexpr):
    below = (y * _BELOW).to(tl.float16).to(tl.int16, bitcast=True)
    above = (y * _ABOVE).to(tl.float16).to(tl.int16, bitcast=True)
    return tl.where(below != above, 0, 0x80000000).to(tl.uint32)


@triton.jit
def _bfloat16(y):
    return y.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _half(y):
    return y.to(tl.float16).to(tl.float32)


#: Elements that are looked at together once one of them is in doubt.
_GROUP = 8


def _joined(terms, by):
    """Return the text of a function of two, applied to terms as a tree."""
    terms = list(terms)
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [f"{by}({a}, {b})" for a, b in pairs] + terms[len(terms) & ~1 :]
    return terms[0]


def _chosen(group, of, default):
    """Return the text of what the first doubtful of a group has."""
    for i in reversed(group):
        default = f"tl.where(d{i}, {of(i)}, {default})"
    return default


def _text(name, function, dtype, pack):
    """Return the text of a function that puts the session's results in place of doubtful ones.

    Among a group the first in doubt is settled, and so on until none is. What is settled is
    rounded, and then in no doubt; its argument is not read again. In half a subnormal result of
    float32 is zero, however it is rounded.
    """
    named = f"_{function.upper()}"
    wide = f"(2 * {named}_DOUBT + 1 << 16)"
    subnormal = dtype == "bfloat16"
    groups = [range(at, at + _GROUP) for at in range(0, pack, _GROUP)]

    def near(i):
        return f"_near_{dtype}(y{i}, {named}_DOUBT)"

    def bits(i):
        return f"x{i}.to(tl.uint32, bitcast=True)"

    lines = [f"def {name}({', '.join([f'{n}{i}' for n in 'xy' for i in range(pack)])}):"]
    asked = []
    for at, group in enumerate(groups):
        lines.append(f"    n{at} = {_joined(map(near, group), 'tl.minimum')}")
        asked.append(f"(n{at} < {wide})")
        if subnormal:  # the most negative number has the largest encoding
            lines.append(f"    u{at} = {_joined(map(bits, group), 'tl.maximum')}")
            asked[-1] += f" | (u{at} >= {named}_SUBNORMAL)"
    whole = f"({_joined((f'n{at}' for at in range(len(groups))), 'tl.minimum')} < {wide})"
    if subnormal:
        most = _joined((f"u{at}" for at in range(len(groups))), "tl.maximum")
        whole += f" | ({most} >= {named}_SUBNORMAL)"
    lines.append(f"    if {whole}:")
    for group, doubtful in zip(groups, asked, strict=True):
        lines += [f"        more = {doubtful}", "        while more:"]
        for i in group:
            also = f" | (({bits(i)} - {named}_SUBNORMAL) < {named}_SUBNORMALS)" if subnormal else ""
            lines.append(f"            d{i} = ({near(i)} < {wide}){also}")
        lines += [
            f"            i = {_chosen(group, str, pack)}",
            f"            x = {_chosen(group[:-1], lambda i: f'x{i}', f'x{group[-1]}')}",
            f"            more = i < {pack}",
            "            if more:",
            f"                y = _{function}_value(x)",
            f"                if _{function}_hard(x) != 0:",
            f"                    y = _{function}_rest(x)",
            f"                y = _{dtype}(y)",
        ]
        for i in group:
            lines.append(f"                y{i} = tl.where(i == {i}, y, y{i})")
            if subnormal:
                lines.append(f"                x{i} = tl.where(i == {i}, 0.0, x{i})")
    lines.append(f"    return {', '.join(f'y{i}' for i in range(pack))}")
    return "\n".join(lines) + "\n"


def _written(function, dtype, pack):
    """Return what settles ``pack`` results at a time; Triton reads its text as that of a file."""
    name = f"_{function}_{dtype}_{pack}"
    text, file = _text(name, function, dtype, pack), f"<{name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), globals())
    return triton.jit(globals()[name])


def _settled(function, dtype):
    """Return a function of arguments, approximate results, and how many are looked at together."""
    eight, sixteen, many = (_written(function, dtype, pack) for pack in (8, 16, 32))

    def settled(x, y, PACK: tl.constexpr):
        if PACK == 8:
            y = tl.map_elementwise(eight, x, y, pack=8)[0]
        elif PACK == 16:
            y = tl.map_elementwise(sixteen, x, y, pack=16)[0]
        else:
            y = tl.map_elementwise(many, x, y, pack=32)[0]
        return y

    return _jit(settled, f"settled_{function}_{dtype}")


_exp_bfloat16 = _settled("exp", "bfloat16")
_exp_half = _settled("exp", "half")
_exp2_bfloat16 = _settled("exp2", "bfloat16")
_exp2_half = _settled("exp2", "half")


@triton.jit
def _approximate_exp2(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def exp2_rounded(x, DTYPE: tl.constexpr, PACK: tl.constexpr):
    """Return the session's exp2, which is correctly rounded and not counted, rounded to a dtype.

    PACK: elements that a thread computes between two branches: 8, 16, or 32.
    """
    y = _approximate_exp2(x)
    if DTYPE.is_bf16():  # noqa: SIM108
        y = _exp2_bfloat16(x, y, PACK)
    else:
        y = _exp2_half(x, y, PACK)
    return y.to(DTYPE)


@triton.jit
def exp_rounded(
    x, seen, DTYPE: tl.constexpr, QUICK: tl.constexpr, PACK: tl.constexpr,
    LARGE: tl.constexpr = True,
):  # fmt: skip
    """Return the session's exp, rounded to a dtype.

    LARGE: whether x may be above 80.
    PACK: as of ``exp2_rounded``.
    QUICK: whether the session's exp is correctly rounded, and not counted.
    """
    if QUICK:
        # A NaN stays.
        x = tl.maximum(x, _LEAST, propagate_nan=tl.PropagateNan.ALL)
        if LARGE:
            x = tl.minimum(x, -_LEAST, propagate_nan=tl.PropagateNan.ALL)
        product = x * _LOG2E
        y = _approximate_exp2(product)
        lacks = tl.fma(x, _LOG2E_LOW, tl.fma(x, _LOG2E, -product))
        y = y * tl.fma(lacks, _LN2, 1.0)
        if DTYPE.is_bf16():  # noqa: SIM108
            y = _exp_bfloat16(x, y, PACK)
        else:
            y = _exp_half(x, y, PACK)
    else:
        y = _exp(x, seen)
    return y.to(DTYPE)
