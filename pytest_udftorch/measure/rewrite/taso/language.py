# SPDX-License-Identifier: Apache-2.0
"""Terms: expressions of operators and variables, in which substitutions are written.

A term is a variable's name or a tuple of an operator's name and its arguments, as text
``(mm a (add b c))``. The first letter of a variable is its kind: ``a`` to ``h`` are matrices, ``i``
and ``j`` images, ``k`` to ``n`` kernels of convolutions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from pytest_udftorch.errors import RewriteError, nearest

aten: Final[Any] = torch.ops.aten

Term: TypeAlias = str | tuple[Any, ...]

#: Kind -> shape of the small tensors on which terms are compared. B and C are two matrices below
#: and beside each other, J is two images' channels, O and N are kernels of twice the channels.
SHAPES: Final = {
    "M": (3, 3),
    "B": (6, 3),
    "C": (3, 6),
    "I": (1, 2, 3, 3),
    "J": (1, 4, 3, 3),
    "K": (2, 2, 3, 3),
    "O": (4, 2, 3, 3),
    "N": (2, 4, 3, 3),
}


@dataclass(frozen=True)
class Operator:
    """An operator of the language.

    Attributes:
        name: its name in terms.
        kinds: kinds of its arguments -> kind of its result.
        call: computes it; the tensors may have dimensions before those of their shapes.
        aten: the operator of ATen.
    """

    name: str
    kinds: dict[tuple[str, ...], str]
    call: Callable[..., torch.Tensor]
    aten: str


def _each(kinds: str, count: int) -> dict[tuple[str, ...], str]:
    return {(kind,) * count: kind for kind in kinds}


def _cat(dim: int) -> Callable[..., torch.Tensor]:
    return lambda x, y: torch.cat([x, y], dim)


def _half(dim: int, number: int) -> Callable[..., torch.Tensor]:
    return lambda x: x.chunk(2, dim)[number]


def _conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Convolve with a padding of 1; each of the leading dimensions has its own kernel."""
    if x.dim() == 4:
        return torch.conv2d(x, w, padding=1)
    count = x.shape[0]
    images = x.reshape(1, count * x.shape[2], *x.shape[3:])
    found = torch.conv2d(images, w.reshape(-1, *w.shape[2:]), padding=1, groups=count)
    return found.reshape(count, 1, -1, *x.shape[3:])


_ALL: Final = "".join(SHAPES)
OPERATORS: Final = {
    o.name: o
    for o in (
        Operator("add", _each("MIK", 2), torch.add, "add"),
        Operator("sub", _each("M", 2), torch.sub, "sub"),
        Operator("mul", _each("M", 2), torch.mul, "mul"),
        Operator("max", _each("MI", 2), torch.maximum, "maximum"),
        Operator("min", _each("M", 2), torch.minimum, "minimum"),
        Operator("neg", _each("M", 1), torch.neg, "neg"),
        Operator("relu", _each("MIJBC", 1), torch.relu, "relu"),
        Operator("abs", _each("M", 1), torch.abs, "abs"),
        Operator("t", {("M",): "M", ("B",): "C", ("C",): "B"}, lambda x: x.mT, "t"),
        Operator(
            "mm",
            {("M", "M"): "M", ("M", "C"): "C", ("B", "M"): "B", ("C", "B"): "M"},
            torch.matmul,
            "mm",
        ),
        Operator("rows", {("M", "M"): "B"}, _cat(-2), "cat"),
        Operator("columns", {("M", "M"): "C"}, _cat(-1), "cat"),
        Operator("top", {("B",): "M"}, _half(-2, 0), "slice"),
        Operator("left", {("C",): "M"}, _half(-1, 0), "slice"),
        Operator("conv", {("I", "K"): "I", ("I", "O"): "J", ("J", "N"): "I"}, _conv, "convolution"),
        Operator("channels", {("I", "I"): "J"}, _cat(-3), "cat"),
        Operator("outputs", {("K", "K"): "O"}, _cat(-4), "cat"),
        Operator("inputs", {("K", "K"): "N"}, _cat(-3), "cat"),
        Operator("front", {("J",): "I"}, _half(-3, 0), "slice"),
    )
}
#: Names of the variables of each kind.
VARIABLES: Final = {"M": "abc", "I": "ij", "K": "kl"}


def kind_of_variable(name: str) -> str:
    """Return the kind that a variable's first letter stands for."""
    return "M" if name[0] in "abcdefgh" else "I" if name[0] in "ij" else "K"


def kind(term: Term) -> str:
    """Return the kind of a term's value.

    Raises:
        RewriteError: an operator is unknown, or does not take these arguments.
    """
    if isinstance(term, str):
        return kind_of_variable(term)
    operator = OPERATORS.get(term[0])
    if operator is None:
        raise RewriteError(f"There is no operator {term[0]!r}. {nearest(term[0], OPERATORS)}")
    given = tuple(map(kind, term[1:]))
    if given not in operator.kinds:
        takes = " or ".join(" ".join(k) for k in operator.kinds)
        raise RewriteError(
            f"{operator.name} takes {takes}, not {' '.join(given)}, in {show(term)}."
        )
    return operator.kinds[given]


def show(term: Term) -> str:
    """Return a term as text."""
    return term if isinstance(term, str) else f"({' '.join([term[0], *map(show, term[1:])])})"


def parse(text: str) -> Term:
    """Read a term.

    Raises:
        RewriteError: the text is not a term.
    """
    tokens = re.findall(r"[()]|[^\s()]+", text)

    def read() -> Term:
        token: str = tokens.pop(0)
        if token != "(":
            if token == ")" or not re.fullmatch(r"[a-n]\d*", token):
                raise RewriteError(
                    f"{token!r} is not a variable in {text!r}: give a letter from a to n."
                )
            return token
        parts: list[Any] = [tokens.pop(0)]
        while tokens[0] != ")":
            parts.append(read())
        tokens.pop(0)
        return tuple(parts)

    try:
        term = read()
    except IndexError:
        raise RewriteError(f"{text!r} is not a term: a parenthesis is not closed.") from None
    if tokens:
        raise RewriteError(f"{text!r} is not a term: {' '.join(tokens)!r} is left over.")
    kind(term)
    return term


def variables(term: Term) -> list[str]:
    """Return a term's variables in the order in which they occur, each once."""
    if isinstance(term, str):
        return [term]
    return list(dict.fromkeys(itertools.chain.from_iterable(map(variables, term[1:]))))


def subterms(term: Term) -> Iterator[Term]:
    """Return a term and all terms in it."""
    yield term
    if not isinstance(term, str):
        for argument in term[1:]:
            yield from subterms(argument)


def size(term: Term) -> int:
    """Return the number of operators in a term, equal ones once."""
    return len({t for t in subterms(term) if not isinstance(t, str)})


def replaced(term: Term, by: dict[Any, Term]) -> Term:
    """Return a term in which some terms are replaced by others."""
    if term in by:
        return by[term]
    if isinstance(term, str):
        return term
    return (term[0], *(replaced(argument, by) for argument in term[1:]))


def evaluate(term: Term, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compute a term."""
    if isinstance(term, str):
        return values[term]
    return OPERATORS[term[0]].call(*(evaluate(argument, values) for argument in term[1:]))


def program(term: Term, names: Sequence[str]) -> Callable[..., torch.Tensor]:
    """Return a term as a function of its variables."""
    return lambda *values: evaluate(term, dict(zip(names, values, strict=True)))


def canonical(left: Term, right: Term) -> tuple[Term, Term]:
    """Return two sides with their variables named in the order in which they occur."""
    pools = {"M": iter("abcdefgh"), "I": iter("ij"), "K": iter("klmn")}
    names: dict[Any, Term] = {}
    for name in dict.fromkeys([*variables(left), *variables(right)]):
        names[name] = next(pools[kind_of_variable(name)])
    return replaced(left, names), replaced(right, names)
