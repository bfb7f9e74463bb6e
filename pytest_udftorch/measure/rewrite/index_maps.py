# SPDX-License-Identifier: Apache-2.0
"""Where the index arithmetic of a multi-linear program changes: the boxes of its output.

A multi-linear program computes, at each position ``v`` of its output, a sum of products of input
elements. Inside a box of positions each product's indices are affine in ``v`` and the range of the
sum is fixed. An operator's boxes are products of intervals, so each dimension carries the *cuts*
between its intervals. :data:`RULES` derive the cuts of an operator's result from those of its
arguments. Where nothing is known, every position is a box of its own, which is always right.

Source: Wang et al., PET: Optimizing Tensor Programs with Partially Equivalent Transformations and
Automated Corrections, OSDI 2021, section 5. There a program is one sum of products; here it may be
several, so the *terms* are told apart by what one step along each dimension does to the indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pytest_udftorch.errors import EquivalenceError

#: For each dimension of a tensor, by how much one step along it changes each index of another.
Steps: TypeAlias = tuple[tuple[int, ...], ...]
#: The inputs that are multiplied, each with the steps of its indices.
Term: TypeAlias = frozenset[tuple[int, Steps]]


@dataclass(frozen=True)
class IndexMap:
    """How a tensor's elements depend on the inputs.

    Attributes:
        shape: its shape.
        cuts: for each dimension, the positions at which a new interval begins, without 0.
        terms: the products that an element adds up, those with the same steps only once.
    """

    shape: tuple[int, ...]
    cuts: tuple[frozenset[int], ...]
    terms: frozenset[Term]

    @property
    def constant(self) -> bool:
        """Whether it depends on no input."""
        return self.terms <= _CONSTANT


#: The terms of a number.
_CONSTANT: Final[frozenset[Term]] = frozenset({frozenset()})


def everywhere(shape: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Return the cuts that make a box of each position."""
    return tuple(frozenset(range(1, size)) for size in shape)


def uncut(shape: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Return the cuts of one box."""
    return (frozenset(),) * len(shape)


def of_input(number: int, shape: Sequence[int]) -> IndexMap:
    """Return the map of an input."""
    rank = len(shape)
    steps = tuple(tuple(int(i == j) for j in range(rank)) for i in range(rank))
    return IndexMap(tuple(shape), uncut(shape), frozenset({frozenset({(number, steps)})}))


def of_constant(tensor: Any) -> IndexMap:
    """Return the map of a tensor of numbers."""
    shape = tuple(tensor.shape)
    plain = tensor.numel() == 0 or bool((tensor == tensor.flatten()[0]).all())
    return IndexMap(shape, uncut(shape) if plain else everywhere(shape), _CONSTANT)


def of_number() -> IndexMap:
    """Return the map of a Python number."""
    return IndexMap((), (), _CONSTANT)


def inputs_of(term: Term) -> frozenset[int]:
    """Return the inputs in a product."""
    return frozenset(number for number, _ in term)


def _followed(x: IndexMap, steps: Sequence[Sequence[tuple[int, int]]]) -> frozenset[Term]:
    """Return a tensor's terms as terms of one that is read from it.

    Args:
        x: the tensor that is read.
        steps: for each dimension of the new tensor, the dimensions of ``x`` along which one step
            leads, each with how far.
    """

    def row(of: Steps, way: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        width = len(of[0]) if of else 0
        return tuple(sum(of[d][j] * far for d, far in way) for j in range(width))

    return frozenset(
        frozenset((number, tuple(row(of, way) for way in steps)) for number, of in term)
        for term in x.terms
    )


def _each(dims: Iterable[int]) -> list[list[tuple[int, int]]]:
    """Return single steps along these dimensions."""
    return [[(d, 1)] for d in dims]


def _inside(cuts: Iterable[int], size: int) -> frozenset[int]:
    return frozenset(c for c in cuts if 0 < c < size)


def _aligned(maps: Sequence[IndexMap], shape: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Return the cuts of tensors that are broadcast to a shape, together."""
    found = []
    for back in range(len(shape), 0, -1):
        cuts: set[int] = set()
        for m in maps:
            if len(m.shape) >= back and m.shape[-back] == shape[-back]:
                cuts |= m.cuts[-back]
        found.append(_inside(cuts, shape[-back]))
    return tuple(found)


def _broadcast(x: IndexMap, shape: Sequence[int]) -> frozenset[Term]:
    """Return the terms of a tensor that is broadcast to a shape."""
    missing = len(shape) - len(x.shape)
    kept = (d >= missing and x.shape[d - missing] == shape[d] for d in range(len(shape)))
    return _followed(x, [[(d - missing, 1)] if keep else [] for d, keep in enumerate(kept)])


def _products(a: Iterable[Term], b: Iterable[Term]) -> frozenset[Term]:
    theirs = list(b)
    for mine in a:
        for other in theirs:
            twice = inputs_of(mine) & inputs_of(other)
            if twice:
                raise EquivalenceError(
                    f"The program is not multi-linear: it multiplies input {min(twice)} by itself. "
                    "The box test decides programs that are linear in each input. Give the second "
                    "factor as an input of its own."
                )
    return frozenset(mine | other for mine in a for other in theirs)


def _flat(shape: Sequence[int], cuts: Sequence[frozenset[int]]) -> tuple[int, frozenset[int]]:
    """Return the size and the cuts of dimensions that are laid behind each other as one."""
    kept = [(s, c) for s, c in zip(shape, cuts, strict=True) if s != 1]
    if not kept:
        return 1, frozenset()
    size = math.prod(s for s, _ in kept)
    last, inner = kept[-1]
    rows = size // last if last else 0
    starts = (r * last + c for r in range(rows) for c in (0, *inner))
    return size, _inside(starts, size)


def _split(size: int, cuts: frozenset[int], shape: Sequence[int]) -> list[frozenset[int]]:
    """Return the cuts of one dimension that is taken apart into several."""
    found: list[set[int]] = [set() for _ in shape]
    for cut in cuts:
        index: list[int] = []
        rest = cut
        for extent in reversed(shape):
            rest, at = divmod(rest, extent)
            index.insert(0, at)
        innermost = max(d for d, at in enumerate(index) if at)
        found[innermost].add(index[innermost])
        # A border inside of a row is a border in no other row.
        for d in range(innermost):
            found[d] |= {index[d], index[d] + 1}
    return [_inside(c, s) for c, s in zip(found, shape, strict=True)]


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[range, range]]:
    """Return runs of dimensions of both shapes that hold the same number of elements each."""
    groups, i, j = [], 0, 0
    while i < len(a) or j < len(b):
        start = i, j
        mine = theirs = 1
        if i < len(a):
            mine, i = a[i], i + 1
        if j < len(b):
            theirs, j = b[j], j + 1
        while mine != theirs:
            if mine < theirs:
                mine, i = mine * a[i], i + 1
            else:
                theirs, j = theirs * b[j], j + 1
        groups.append((range(start[0], i), range(start[1], j)))
    return groups


def _viewed(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x = args[0]
    if 0 in shape:
        return IndexMap(shape, uncut(shape), _CONSTANT)
    cuts: list[frozenset[int]] = []
    steps: list[list[tuple[int, int]]] = []
    for mine, theirs in _groups(x.shape, shape):
        if len(mine) == len(theirs) == 1:
            cuts.append(x.cuts[mine[0]])
            steps += _each(mine)
            continue
        size, flat = _flat([x.shape[d] for d in mine], [x.cuts[d] for d in mine])
        cuts += _split(size, flat, [shape[d] for d in theirs])
        # Every box lies in one row of the innermost dimension.
        inner = [d for d in mine if x.shape[d] != 1][-1:]
        far = (math.prod(shape[d + 1 : theirs.stop]) for d in theirs)
        steps += [[(d, f) for d in inner] for f in far]
    return IndexMap(shape, tuple(cuts), _followed(x, steps))


def _added(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    maps = [a if isinstance(a, IndexMap) else of_number() for a in args[:2]]
    terms = _broadcast(maps[0], shape) | _broadcast(maps[1], shape)
    return IndexMap(shape, _aligned(maps, shape), terms)


def _multiplied(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    a, b = (m if isinstance(m, IndexMap) else of_number() for m in args[:2])
    terms = _products(_broadcast(a, shape), _broadcast(b, shape))
    return IndexMap(shape, _aligned([a, b], shape), terms)


def _divided(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    if isinstance(args[1], IndexMap) and not args[1].constant:
        raise EquivalenceError(
            "The program is not multi-linear: it divides by what depends on an input. The box "
            "test decides sums of products. Leave the division out of both programs."
        )
    return _multiplied(args, shape)


def _permuted(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x, order = args[0], [d % len(shape) for d in args[1]]
    return IndexMap(shape, tuple(x.cuts[d] for d in order), _followed(x, _each(order)))


def _turned(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    order = list(range(len(shape)))
    if len(order) > 1:
        i, j = (args[1], args[2]) if len(args) > 2 else (0, 1)
        order[i], order[j] = order[j], order[i]
    return _permuted([args[0], order], shape)


def _expanded(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    return IndexMap(shape, _aligned([args[0]], shape), _broadcast(args[0], shape))


def _sliced(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x = args[0]
    given: list[Any] = list(args[1:])
    dim, start, _, step = given + [0, None, None, 1][len(given) :]
    dim, start = dim % len(shape), start or 0
    start = min(max(0, start + x.shape[dim]) if start < 0 else start, x.shape[dim])
    cuts = list(x.cuts)
    cuts[dim] = _inside((-((start - c) // step) for c in x.cuts[dim]), shape[dim])
    steps = [[(d, step if d == dim else 1)] for d in range(len(shape))]
    return IndexMap(shape, tuple(cuts), _followed(x, steps))


def _selected(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x, dim = args[0], args[1] % len(args[0].shape)
    kept = [d for d in range(len(x.shape)) if d != dim]
    return IndexMap(shape, tuple(x.cuts[d] for d in kept), _followed(x, _each(kept)))


def _parted(args: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[IndexMap]:
    """Return the maps of the parts that a tensor is split into."""
    dim, at, parts = args[2] if len(args) > 2 else 0, 0, []
    for shape in shapes:
        parts.append(_sliced([args[0], dim, at], shape))
        at += shape[dim]
    return parts


def _unbound(args: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[IndexMap]:
    dim = args[1] if len(args) > 1 else 0
    return [_selected([args[0], dim], shape) for shape in shapes]


def _joined(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    parts = [p for p in args[0] if p.shape != (0,)]
    dim = (args[1] if len(args) > 1 else 0) % len(shape)
    cuts = [frozenset[int]().union(*(p.cuts[d] for p in parts)) for d in range(len(shape))]
    at, along = 0, set()
    for part in parts:
        along |= {at, *(at + c for c in part.cuts[dim])}
        at += part.shape[dim]
    cuts[dim] = _inside(along, shape[dim])
    return IndexMap(shape, tuple(cuts), frozenset[Term]().union(*(p.terms for p in parts)))


def _padded(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x, pads = args[0], args[1]
    cuts = list(x.cuts)
    for number in range(len(pads) // 2):
        dim, before = len(shape) - 1 - number, pads[2 * number]
        borders = {before, before + x.shape[dim], *(before + c for c in x.cuts[dim])}
        cuts[dim] = _inside(borders, shape[dim])
    return IndexMap(shape, tuple(cuts), x.terms | _CONSTANT)


def _flipped(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x, dims = args[0], {d % len(shape) for d in args[1]}
    cuts = (
        frozenset(shape[d] - c for c in cut) if d in dims else cut for d, cut in enumerate(x.cuts)
    )
    steps = [[(d, -1 if d in dims else 1)] for d in range(len(shape))]
    return IndexMap(shape, tuple(cuts), _followed(x, steps))


def _reduced(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x = args[0]
    rank = len(x.shape)
    given = args[1] if len(args) > 1 else None
    dims = {d % rank for d in given} if given else set(range(rank))
    kept = [d for d in range(rank) if d not in dims]
    if len(shape) == len(kept):
        return IndexMap(shape, tuple(x.cuts[d] for d in kept), _followed(x, _each(kept)))
    cuts = tuple(frozenset[int]() if d in dims else cut for d, cut in enumerate(x.cuts))
    steps: list[list[tuple[int, int]]] = [[] if d in dims else [(d, 1)] for d in range(rank)]
    return IndexMap(shape, cuts, _followed(x, steps))


def _product_of_matrices(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    a, b = args[0], args[1]
    batch, column = len(a.shape) - 2, len(b.shape) > 1
    cuts = [a.cuts[d] | b.cuts[d] for d in range(batch)]
    cuts += [a.cuts[-2]]
    if column:
        cuts.append(b.cuts[-1])
    left = _each(range(batch + 1))
    right = _each(range(batch))
    right.append([])
    if column:
        left.append([])
        right += _each([len(b.shape) - 1])
    return IndexMap(shape, tuple(cuts), _products(_followed(a, left), _followed(b, right)))


def _added_to_product(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    return _added([args[0], _product_of_matrices(args[1:], shape)], shape)


def _windows(cuts: Iterable[int], size: int, out: int, window: Sequence[int]) -> set[int]:
    """Return where a sliding window's positions pass a border of its input.

    Args:
        cuts: the input's cuts.
        size: the input's size.
        out: the number of positions.
        window: size of the kernel, stride, padding, dilation.
    """
    kernel, stride, padding, dilation = window
    borders = {0, size, *cuts}
    # The first o with o * stride + k * dilation - padding >= border.
    first = {
        -((k * dilation - padding - border) // stride) for border in borders for k in range(kernel)
    }
    return {o for o in first if 0 < o < out}


def _convolved(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x, w, bias, stride, padding, dilation, transposed, _, groups = args
    space = range(2, len(shape))
    cuts = [x.cuts[0], w.cuts[1 if transposed else 0], *([frozenset[int]()] * len(space))]
    if transposed:
        # Which elements meet depends on the position modulo the stride.
        cuts = list(everywhere(shape))
    else:
        for d in space:
            window = (w.shape[d], stride[d - 2], padding[d - 2], dilation[d - 2])
            cuts[d] = frozenset(_windows(x.cuts[d], x.shape[d], shape[d], window))
    each = shape[1] // groups
    if groups > 1 and each > 1:
        cuts[1] = cuts[1] | {c for c in range(each, shape[1], each)}
    channel = [(1, x.shape[1] // groups)] if groups > 1 and each == 1 else []
    mine = [[(0, 1)], channel, *([(d, stride[d - 2])] for d in space)]
    theirs: list[list[tuple[int, int]]] = [[], [(0, 1)], *([] for _ in space)]
    found = IndexMap(shape, tuple(cuts), _products(_followed(x, mine), _followed(w, theirs)))
    if bias is None:
        return found
    ones = (1,) * len(space)
    columns = IndexMap((*bias.shape, *ones), (*bias.cuts, *uncut(ones)), bias.terms)
    row = [[(0, 1)], *([[]] * len(space))]
    terms = found.terms | _followed(bias, [[], *row])
    return IndexMap(shape, _aligned([found, columns], shape), terms)


def _averaged(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    x, kernel = args[0], args[1]
    stride = args[2] if len(args) > 2 and args[2] else kernel
    rank = len(kernel)
    padding = args[3] if len(args) > 3 else (0,) * rank
    if len(args) > 4 and args[4]:
        raise EquivalenceError(
            f"avg_pool{rank}d with ceil_mode divides by numbers that the box test does not know. "
            "Pad the input, and pool without ceil_mode."
        )
    cuts = list(x.cuts)
    steps = _each(range(len(shape)))
    for number, d in enumerate(range(len(shape) - rank, len(shape))):
        window = (kernel[number], stride[number], padding[number], 1)
        cuts[d] = frozenset(_windows(x.cuts[d], x.shape[d], shape[d], window))
        steps[d] = [(d, stride[number])]
    return IndexMap(shape, tuple(cuts), _followed(x, steps))


def _same(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    found: IndexMap = args[0]
    return found


def _filled(args: Sequence[Any], shape: tuple[int, ...]) -> IndexMap:
    return IndexMap(shape, uncut(shape), _CONSTANT)


#: Name of an ATen operator -> what derives the map of its result from arguments and shape; with
#: several results, their maps from their shapes.
RULES: Final[dict[str, Callable[[Sequence[Any], Any], Any]]] = {
    **dict.fromkeys(("add", "sub", "rsub"), _added),
    "mul": _multiplied,
    "div": _divided,
    **dict.fromkeys(("clone", "alias", "detach", "_to_copy", "neg", "lift_fresh_copy"), _same),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _viewed),
    "permute": _permuted,
    **dict.fromkeys(("t", "transpose"), _turned),
    "expand": _expanded,
    "slice": _sliced,
    "select": _selected,
    **dict.fromkeys(("split", "split_with_sizes"), _parted),
    "unbind": _unbound,
    "cat": _joined,
    "constant_pad_nd": _padded,
    "flip": _flipped,
    **dict.fromkeys(("sum", "mean"), _reduced),
    **dict.fromkeys(("mm", "bmm", "mv"), _product_of_matrices),
    "addmm": _added_to_product,
    "convolution": _convolved,
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), _averaged),
    **dict.fromkeys(
        (f"{kind}{like}" for kind in ("full", "ones", "zeros") for like in ("", "_like")), _filled
    ),
    **dict.fromkeys(("new_full", "new_ones", "new_zeros"), _filled),
}


def positions_needed(box: Sequence[int], terms: int) -> int:
    """Return at how many positions of a box two programs must agree to agree everywhere in it.

    In a box the difference of the programs is a sum of exponentials in the position, one for each
    term. They are independent on the positions whose coordinates add up to less than ``terms``,
    since polynomials of that degree separate as many points. For two terms, one of each program,
    that is the corner and one step along each dimension: the m + 1 positions of the paper. A
    dimension with fewer positions than ``terms`` is taken whole.

    Args:
        box: its sizes.
        terms: the different terms of both programs, of the same inputs; at least 2 are assumed.
    """
    terms = max(terms, 2)
    whole = math.prod(size for size in box if size < terms)
    long = sum(size >= terms for size in box)
    return min(math.prod(box), whole * math.comb(long + terms - 1, long))
