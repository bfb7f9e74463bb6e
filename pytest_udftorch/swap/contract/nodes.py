# SPDX-License-Identifier: Apache-2.0
"""Sums whose terms lie on several ranks, with the bits that one process has.

The tree of docs/reproduce/contract.md over n terms has nodes, each of which is the sum of terms
that stand together. A rank that has some of the terms adds up the largest nodes that lie wholly in
its part. These are few: at most two for each level of the tree. The ranks exchange them, and add
them as the tree does. A term of a product is a chunk of k; of a chunk that lies on several ranks,
the one that has its beginning gets the factors of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pytest_udftorch.swap.contract.cuda_exact import CHUNK as EXACT_CHUNK
from pytest_udftorch.swap.contract.native import contract

#: Terms of a chunk in float32 (contract.h).
CHUNK = 64


class Node(NamedTuple):
    """A node of the tree: the sum of ``length`` terms from ``begin`` on."""

    begin: int
    length: int


def _left(terms: int) -> int:
    """Return how many terms the left part of a sum of two or more has."""
    return 1 << ((terms - 1).bit_length() - 1)


def tiles(low: int, high: int, terms: int, begin: int = 0) -> list[Node]:
    """Return the largest nodes of a tree that lie wholly in a range, in their order.

    Args:
        low: the first term of the range.
        high: the term behind its last.
        terms: of the tree.
        begin: the first term of the tree.
    """
    if low >= begin + terms or high <= begin:
        return []
    if low <= begin and begin + terms <= high:
        return [Node(begin, terms)]
    left = _left(terms)
    return [
        *tiles(low, high, left, begin),
        *tiles(low, high, terms - left, begin + left),
    ]


def total(terms: int, nodes: Mapping[Node, Any], begin: int = 0) -> Any:
    """Return the sum of a tree of which nodes are given, that together have all of its terms."""
    found = nodes.get(Node(begin, terms))
    if found is not None:
        return found
    left = _left(terms)
    return total(left, nodes, begin) + total(terms - left, nodes, begin + left)


class Ranks(NamedTuple):
    """The ranks that a sum is split over.

    Attributes:
        group: a process group.
        rank: this one's number in it.
        world: how many there are.
    """

    group: Any
    rank: int
    world: int


def ranks_of(group: Any) -> Ranks:
    """Return the ranks of a process group."""
    import torch

    made = torch.distributed
    return Ranks(group, made.get_rank(group), made.get_world_size(group))


def cuts(size: int, count: int) -> list[int]:
    """Return where the parts of a dimension begin that ``Shard`` gives to ranks, and the end."""
    each = -(-size // count)
    return [min(rank * each, size) for rank in range(count + 1)]


def _exchanged(mine: Any, sent: Sequence[int], received: Sequence[int], ranks: Ranks) -> Any:
    """Send so many elements of a flat tensor to each rank; return what all sent to this one."""
    import torch

    found = mine.new_empty(sum(received))
    torch.distributed.all_to_all_single(found, mine, list(received), list(sent), group=ranks.group)
    return found


def _joined(part: Any, ranks: Ranks) -> Any:
    """Return the parts of all ranks, one behind the other; all have the same shape."""
    import torch

    whole = part.new_empty((ranks.world * part.shape[0], *part.shape[1:]))
    if part.is_cuda and torch.distributed.get_backend(ranks.group) == "gloo":
        # It reads memory of GPUs as if it were its own: pytorch/pytorch#152645.
        torch.distributed.all_gather(list(whole.chunk(ranks.world)), part, group=ranks.group)
    else:
        torch.distributed.all_gather_into_tensor(whole, part, group=ranks.group)
    return whole


# Chunks that ranks share ------------------------------------------------------------------


def _owner(place: int, edges: Sequence[int]) -> int:
    """Return which rank has a place of k."""
    return max(rank for rank, edge in enumerate(edges[:-1]) if edge <= place < edges[rank + 1])


def heads(edges: Sequence[int], chunk: int) -> list[int]:
    """Return for each rank how many of its first places belong to a chunk that begins before."""
    return [min(-(-low // chunk) * chunk, high) - low for low, high in pairwise(edges)]


def _whole_chunks(a: Any, b: Any, edges: Sequence[int], chunk: int, ranks: Ranks) -> Any:
    """Give the factors of each chunk to the rank that has the chunk's beginning.

    Args:
        a: (m, k of this rank).
        b: (k of this rank, n).
        edges: where the parts of k begin, and the end.
        chunk: places of k in a chunk.
        ranks: that share k.

    Returns:
        the factors of this rank's chunks, (m, k') and (k', n).
    """
    import torch

    first = heads(edges, chunk)
    if not any(first):
        return a, b
    (m, _), n = a.shape, b.shape[1]
    sends = [
        (_owner(low // chunk * chunk, edges), width * (m + n)) if width else (0, 0)
        for low, width in zip(edges, first, strict=False)
    ]
    to, size = sends[ranks.rank]
    width = first[ranks.rank]
    mine = torch.cat([a[:, :width].reshape(-1), b[:width].reshape(-1)])
    received = [size if to == ranks.rank else 0 for to, size in sends]
    found = _exchanged(
        mine, [size if rank == to else 0 for rank in range(ranks.world)], received, ranks
    )
    parts_a, parts_b = [a[:, width:]], [b[width:]]
    for piece, come in zip(found.split(received), first, strict=False):
        if piece.numel():
            left, right = piece.split([m * come, come * n])
            parts_a.append(left.view(m, come))
            parts_b.append(right.view(come, n))
    return torch.cat(parts_a, 1), torch.cat(parts_b)


def chunks_of(edges: Sequence[int], chunk: int) -> list[int]:
    """Return for each rank the first chunk that begins in its part, and behind it their number."""
    return [-(-edge // chunk) for edge in edges]


# Products ---------------------------------------------------------------------------------


def product(
    a: Any, b: Any, size: int, ranks: Ranks, finish: Callable[[Any], Any] = lambda sums: sums
) -> Any:
    """Return the product of two matrices of which each rank has a part of k.

    Each rank gets the sums of some rows, adds them, and sends the results to all.

    Args:
        a: (m, k of this rank) in float32 or bfloat16.
        b: (k of this rank, n) in the same dtype.
        size: k. Ranks have the parts that ``Shard`` gives them.
        ranks: that share k.
        finish: what is done to the product of some rows, (rows, n) in float32, before it is sent:
            what is added to it, and its rounding.

    Returns:
        (m, n), the same on all ranks.
    """
    import torch

    chunk = EXACT_CHUNK if a.dtype is torch.bfloat16 else CHUNK
    edges = cuts(size, ranks.world)
    a, b = _whole_chunks(a, b, edges, chunk, ranks)
    (m, _), n = a.shape, b.shape[1]
    firsts = chunks_of(edges, chunk)
    nodes = [tiles(low, high, firsts[-1]) for low, high in pairwise(firsts)]
    mine, start = nodes[ranks.rank], firsts[ranks.rank]
    rows = -(-m // ranks.world)
    sums = a.new_zeros((len(mine), ranks.world * rows, n), dtype=torch.float32)
    for at, (begin, length) in enumerate(mine):
        low, high = (begin - start) * chunk, (begin + length - start) * chunk
        sums[at, :m] = contract().mm(a[:, low:high], b[low:high])
    # One rank's rows of all nodes stand together.
    sent = sums.view(len(mine), ranks.world, rows * n).transpose(0, 1).reshape(-1)
    come = _exchanged(
        sent, [len(mine) * rows * n] * ranks.world, [len(of) * rows * n for of in nodes], ranks
    )
    each = zip((node for of in nodes for node in of), come.view(-1, rows, n), strict=True)
    part = finish(total(firsts[-1], dict(each))).contiguous()
    return _joined(part, ranks)[:m]


# Sums over rows ---------------------------------------------------------------------------


def row_sum(x: Any, ranges: Sequence[Sequence[range]], ranks: Ranks) -> Any:
    """Return the sum over rows of a matrix of which each rank has some ranges of rows.

    Args:
        x: (rows of this rank, n) in float32, one range behind the other.
        ranges: for each rank its ranges of rows; together they are all rows.
        ranks: that share the rows.

    Returns:
        (n,), the same on all ranks.
    """
    terms = sum(len(part) for of in ranges for part in of)
    nodes = [[node for r in of for node in tiles(r.start, r.stop, terms)] for of in ranges]
    mine = nodes[ranks.rank]
    room = max(map(len, nodes))
    sums = x.new_zeros((room, x.shape[1]))
    lengths = [length for _, length in mine]
    if len(set(lengths)) == 1:
        sums[: len(mine)] = contract().sums(x.view(len(mine), -1, x.shape[1]), 1)
    else:
        for at, part in enumerate(x.split(lengths)):
            sums[at] = contract().sums(part, 0)
    found = _joined(sums, ranks)
    have = {
        node: found[rank * room + at] for rank, of in enumerate(nodes) for at, node in enumerate(of)
    }
    return total(terms, have)
