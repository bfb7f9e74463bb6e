# SPDX-License-Identifier: Apache-2.0
"""Where two multi-linear programs agree: decided by random numbers of a finite field.

See ``index_maps`` for the boxes of the output and for how many positions of each decide it. At a
position where the programs differ, random inputs show it except with probability ``degree / prime``
(Schwartz 1980, Zippel 1979), and ``(degree / prime) ** draws`` for several draws. One such position
exists if the programs differ at all, so that is the bound on a false pass, however many boxes there
are. torch computes the whole output at once, so all positions are compared, not only those needed.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from pytest_udftorch.base import compat
from pytest_udftorch.base.result import Result
from pytest_udftorch.errors import EquivalenceError, UdfError
from pytest_udftorch.measure.rewrite.finite_field import Field, prime_for, summands
from pytest_udftorch.measure.rewrite.index_maps import (
    RULES,
    IndexMap,
    inputs_of,
    of_constant,
    of_input,
    positions_needed,
)
from pytest_udftorch.measure.timing.timers import untyped

pytree: Any = compat.pytree()

#: A message names at most so many boxes.
_NAMED: Final = 8
#: Draws go on until a false pass is less likely than this.
_UNLIKELY: Final = 2.0**-64


@dataclass(frozen=True)
class Box:
    """A box of an output in which two programs differ.

    Attributes:
        output: the number of the output, from 0.
        ranges: for each dimension, the first position and the one after the last.
        positions: at how many of the box's positions they differ.
    """

    output: int
    ranges: tuple[tuple[int, int], ...]
    positions: int

    @property
    def size(self) -> int:
        """The number of its positions."""
        return math.prod(end - start for start, end in self.ranges)

    def __str__(self) -> str:
        inside = ", ".join(f"{start}:{end}" for start, end in self.ranges)
        return f"output {self.output}[{inside}]: {self.positions:,} of {self.size:,} positions"


@dataclass(frozen=True, repr=False)
class Equivalence(Result):
    """Where two programs agree.

    Attributes:
        differing: the boxes in which they differ.
        boxes: how many boxes the outputs have.
        needed: at how many positions they must agree to agree everywhere.
        compared: how many positions were compared.
        draws: with how many sets of random inputs.
        prime: the size of the field.
        degree: the most inputs in a product.
    """

    differing: tuple[Box, ...]
    boxes: int
    needed: int
    compared: int
    draws: int
    prime: int
    degree: int

    @property
    def equal(self) -> bool:
        """Whether they agree everywhere."""
        return not self.differing

    @property
    def bound(self) -> float:
        """The highest probability that different programs pass as equal."""
        return float((self.degree / self.prime) ** self.draws)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "equal": self.equal, "bound": self.bound}

    def text(self) -> str:
        """Return where they agree as a line."""
        how = (
            f"{self.boxes:,} boxes, {self.needed:,} positions needed, {self.compared:,} compared, "
            f"{self.draws} draws modulo {self.prime}"
        )
        if self.equal:
            return f"equal ({how}; a false pass has a probability of at most {self.bound:.1e})"
        named = "; ".join(map(str, self.differing[:_NAMED]))
        more = len(self.differing) - _NAMED
        return f"different in {named}{f'; and in {more:,} more' if more > 0 else ''} ({how})"


@dataclass
class _Program:
    """A traced program: its nodes, the maps of its outputs, and the longest sum in it."""

    graph: Any
    maps: list[IndexMap]
    summands: int


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", target)
    return str(packet.__name__)


def _traced(function: Callable[..., Any], shapes: Sequence[Sequence[int]], what: str) -> Any:
    examples = [torch.zeros(tuple(s), dtype=torch.float64) for s in shapes]
    try:
        with torch.no_grad():
            # make_fx asks for arguments that have defaults, too.
            return compat.aten_graph(lambda *values: function(*values), examples)
    except UdfError:
        raise
    except Exception as error:
        raise EquivalenceError(
            f"The {what} program cannot be traced with inputs of the shapes {list(shapes)}: "
            f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}. Give a function "
            "of tensors of these shapes whose control flow does not depend on their values."
        ) from error


def _refused(target: Any, what: str) -> EquivalenceError:
    known = ", ".join(sorted(RULES))
    return EquivalenceError(
        f"The {what} program calls {target}, which is not known to be multi-linear. The box test "
        "decides sums of products, and no other programs: leave this operator out of both "
        f"programs, or compare their results on examples. Known operators: {known}."
    )


def _result(node: Any, found: dict[Any, Any], what: str) -> Any:
    """Return the map of an operator's result, or the maps of several."""
    if node.target is operator.getitem:
        return found[node.args[0]][node.args[1]]
    if _name(node.target) not in RULES:
        raise _refused(node.target, what)
    value = node.meta["val"]
    several = isinstance(value, list | tuple)
    if not all(v.is_floating_point() for v in (value if several else [value])):
        raise _refused(node.target, what)
    shape = [tuple(v.shape) for v in value] if several else tuple(value.shape)
    return RULES[_name(node.target)](torch.fx.map_arg(node.args, found.__getitem__), shape)


def _analysed(function: Callable[..., Any], shapes: Sequence[Sequence[int]], what: str) -> _Program:
    """Trace a program, derive its outputs' maps, and refuse what is not multi-linear."""
    module = _traced(function, shapes, what)
    found: dict[Any, Any] = {}
    longest, inputs = 1, 0
    maps: list[IndexMap] = []

    for node in module.graph.nodes:
        if node.op == "placeholder":
            found[node] = of_input(inputs, node.meta["val"].shape)
            inputs += 1
        elif node.op == "get_attr":
            found[node] = of_constant(operator.attrgetter(node.target)(module))
        elif node.op == "output":
            leaves = pytree.tree_leaves(node.args)
            if not leaves or not all(isinstance(n, torch.fx.Node) for n in leaves):
                raise EquivalenceError(f"The {what} program must return tensors alone.")
            maps = [found[n] for n in leaves]
        else:
            found[node] = _result(node, found, what)
            values = torch.fx.map_arg(node.args, lambda n: n.meta.get("val", n))
            longest = max(longest, summands(_name(node.target), values))
    return _Program(module, maps, longest)


class _InField(torch.fx.Interpreter):
    """Runs a traced program over a field."""

    def __init__(self, module: Any, field: Field) -> None:
        super().__init__(module)
        self.field = field

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant's elements."""
        return self.field.constants(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Compute one operator."""
        if target is operator.getitem:
            return args[0][args[1]]
        return self.field.call(_name(target), target, args, dict(kwargs))


def _sides(cuts: frozenset[int], size: int) -> list[tuple[int, int]]:
    edges = [0, *sorted(cuts), size]
    return list(itertools.pairwise(edges))


def _needed(f: IndexMap, g: IndexMap) -> tuple[int, int]:
    """Return the number of boxes, and of positions that decide all of them."""
    terms = max(Counter(map(inputs_of, f.terms | g.terms)).values())
    counts: dict[tuple[int, ...], int] = {(): 1}
    for mine, theirs, size in zip(f.cuts, g.cuts, f.shape, strict=True):
        lengths: dict[int, int] = {}
        for start, end in _sides(mine | theirs, size):
            # Boxes that are as long as a program has terms are alike in the formula.
            length = min(end - start, max(terms, 2))
            lengths[length] = lengths.get(length, 0) + 1
        counts = {
            (*box, length): count * times
            for box, count in counts.items()
            for length, times in lengths.items()
        }
        merged: dict[tuple[int, ...], int] = {}
        for box, count in counts.items():
            key = tuple(sorted(box))
            merged[key] = merged.get(key, 0) + count
        counts = merged
    needed = sum(positions_needed(box, terms) * count for box, count in counts.items())
    return sum(counts.values()), needed


def _boxes(output: int, f: IndexMap, g: IndexMap, wrong: torch.Tensor) -> list[Box]:
    """Return the boxes that hold positions at which the programs differ."""
    indices = wrong.nonzero()
    if not len(indices):
        return []
    edges = [torch.tensor(sorted(a | b)) for a, b in zip(f.cuts, g.cuts, strict=True)]
    columns = [
        torch.bucketize(indices[:, d].contiguous(), e.long(), right=True)
        for d, e in enumerate(edges)
    ]
    if not columns:
        return [Box(output, (), 1)]
    cells, counts = untyped(torch.unique)(torch.stack(columns, 1), dim=0, return_counts=True)
    sides = [_sides(a | b, s) for a, b, s in zip(f.cuts, g.cuts, f.shape, strict=True)]
    return [
        Box(output, tuple(side[at] for side, at in zip(sides, cell, strict=True)), count)
        for cell, count in zip(cells.tolist(), counts.tolist(), strict=True)
    ]


def _outputs(program: _Program, field: Field, inputs: Sequence[torch.Tensor]) -> list[Any]:
    return list(pytree.tree_leaves(_InField(program.graph, field).run(*inputs)))


def _checked(shapes: Any) -> list[tuple[int, ...]]:
    try:
        found = [tuple(operator.index(size) for size in shape) for shape in shapes]
    except TypeError:
        found = []
    if not found or any(size < 1 for shape in found for size in shape):
        raise EquivalenceError(
            f"shapes={shapes!r}: give the shape of each input, such as [(1, 3, 8, 8), (4, 3, 3, "
            "3)], with sizes of 1 or above."
        )
    return found


def equivalence(
    f: Callable[..., Any],
    g: Callable[..., Any],
    shapes: Sequence[Sequence[int]],
    *,
    seed: int = 0,
) -> Equivalence:
    """Find out where two multi-linear programs agree, for inputs of these shapes.

    Args:
        f: takes tensors, returns a tensor or several. It may be a module, whose weights are
            constants of the program.
        g: the same.
        shapes: the shapes of the inputs.
        seed: of the random inputs.

    Raises:
        EquivalenceError: a program is not multi-linear, or cannot be traced; their outputs differ
            in number or shape; or ``shapes`` is not one.
    """
    given = _checked(shapes)
    programs = _analysed(f, given, "first"), _analysed(g, given, "second")
    mine, theirs = programs[0].maps, programs[1].maps
    if [m.shape for m in mine] != [m.shape for m in theirs]:
        raise EquivalenceError(
            f"The programs' outputs have the shapes {[m.shape for m in mine]} and "
            f"{[m.shape for m in theirs]}. Compare programs whose outputs have the same shapes."
        )
    degree = max(len(term) for m in (*mine, *theirs) for term in m.terms)
    field = Field(prime_for(max(p.summands for p in programs)))
    draws = max(1, math.ceil(math.log(_UNLIKELY) / math.log(max(degree, 1) / field.prime)))
    wrong = [torch.zeros(m.shape, dtype=torch.bool) for m in mine]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(draws):
            inputs = [field.random(shape, generator) for shape in given]
            results = (_outputs(p, field, inputs) for p in programs)
            wrong = [w | (a != b) for w, a, b in zip(wrong, *results, strict=True)]
    found = [b for n, w in enumerate(wrong) for b in _boxes(n, mine[n], theirs[n], w)]
    counts = [_needed(a, b) for a, b in zip(mine, theirs, strict=True)]
    return Equivalence(
        tuple(found),
        sum(boxes for boxes, _ in counts),
        sum(needed for _, needed in counts),
        sum(w.numel() for w in wrong),
        draws,
        field.prime,
        degree,
    )


def assert_equivalent(
    f: Callable[..., Any],
    g: Callable[..., Any],
    shapes: Sequence[Sequence[int]],
    *,
    seed: int = 0,
) -> Equivalence:
    """Assert that two multi-linear programs compute the same, for inputs of these shapes.

    Arguments and other errors are those of :func:`equivalence`.

    Raises:
        AssertionError: they differ; the message names the boxes of the output.
    """
    found = equivalence(f, g, shapes, seed=seed)
    if not found.equal:
        raise AssertionError(f"The programs are {found}.")
    return found
