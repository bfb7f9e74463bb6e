# SPDX-License-Identifier: Apache-2.0
"""Terms: expressions of operators and variables, in which substitutions are written.

A term is a variable's name or a tuple of an operator's name and its arguments, as text
``(mm a (add b c))``. The first letter of a variable is its kind: ``a`` to ``g`` are matrices and
``h`` two of them beside each other; ``i``, ``j`` and ``t`` are images and ``s`` one of twice the
channels; ``k`` to ``n`` are kernels of convolutions, ``o`` and ``p`` smaller ones, ``q`` and ``r``
those of two groups; ``u`` to ``w`` are biases of matrices, ``x`` to ``z`` biases of images.
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
#: and beside each other, J is two images' channels, O and N are kernels of twice the channels, L is
#: a kernel that becomes one of K, G one of two groups, V and P are biases, W and Q two of them.
SHAPES: Final = {
    "M": (3, 3),
    "B": (6, 3),
    "C": (3, 6),
    "I": (1, 2, 3, 3),
    "J": (1, 4, 3, 3),
    "K": (2, 2, 3, 3),
    "O": (4, 2, 3, 3),
    "N": (2, 4, 3, 3),
    "L": (2, 2, 1, 1),
    "G": (2, 1, 3, 3),
    "V": (3,),
    "W": (6,),
    "P": (2,),
    "Q": (4,),
}
#: Kinds of kernels and biases, whose operators a model with fixed weights computes once.
OF_WEIGHTS: Final = "KONLGVWPQ"
#: Kind -> the letters of its variables.
LETTERS: Final = {
    "M": "abcdefg", "C": "h", "I": "ijt", "J": "s", "K": "klmn", "L": "op", "G": "qr", "V": "uvw",
    "P": "xyz",
}  # fmt: skip
_KINDS: Final = {letter: kind for kind, letters in LETTERS.items() for letter in letters}


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


def _linear(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a, b) + v.unsqueeze(-2)


def _conv(padding: int, groups: int = 1) -> Callable[..., torch.Tensor]:
    """Return a convolution with a bias; each of the leading dimensions has its own kernel."""

    def call(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        offset = v.unsqueeze(-1).unsqueeze(-1).unsqueeze(-4)
        if x.dim() == 4:
            return torch.conv2d(x, w, padding=padding, groups=groups) + offset
        count = x.shape[0]
        images = x.reshape(1, count * x.shape[2], *x.shape[3:])
        kernels = w.reshape(-1, *w.shape[2:])
        found = torch.conv2d(images, kernels, padding=padding, groups=count * groups)
        return found.reshape(count, 1, -1, *found.shape[2:]) + offset

    return call


def _enlarged(w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(w, (1, 1, 1, 1))


def _ungrouped(w: torch.Tensor) -> torch.Tensor:
    """Return the kernel without groups: zeros where an output does not see an input."""
    first, second = w.chunk(2, -4)
    pad = torch.nn.functional.pad
    return torch.cat([pad(first, (0, 0, 0, 0, 0, 1)), pad(second, (0, 0, 0, 0, 1, 0))], -4)


_CONVOLUTIONS: Final[dict[tuple[str, ...], str]] = {
    ("I", "K", "P"): "I", ("I", "O", "Q"): "J", ("J", "N", "P"): "I",
}  # fmt: skip
OPERATORS: Final = {
    o.name: o
    for o in (
        Operator("add", _each("MIKLGVP", 2), torch.add, "add"),
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
        Operator(
            "linear",
            {
                ("M", "M", "V"): "M",
                ("M", "C", "W"): "C",
                ("B", "M", "V"): "B",
                ("C", "B", "V"): "M",
            },
            _linear,
            "addmm",
        ),
        Operator("rows", {("M", "M"): "B"}, _cat(-2), "cat"),
        Operator("columns", {("M", "M"): "C"}, _cat(-1), "cat"),
        Operator("top", {("B",): "M"}, _half(-2, 0), "slice"),
        Operator("bottom", {("B",): "M"}, _half(-2, 1), "slice"),
        Operator("left", {("C",): "M"}, _half(-1, 0), "slice"),
        Operator("right", {("C",): "M"}, _half(-1, 1), "slice"),
        Operator("both", {("V", "V"): "W", ("P", "P"): "Q"}, _cat(-1), "cat"),
        Operator("conv", _CONVOLUTIONS, _conv(1), "convolution"),
        Operator("point", {("I", "L", "P"): "I"}, _conv(0), "convolution"),
        Operator("gconv", {("I", "G", "P"): "I"}, _conv(1, 2), "convolution"),
        Operator("channels", {("I", "I"): "J"}, _cat(-3), "cat"),
        Operator("outputs", {("K", "K"): "O"}, _cat(-4), "cat"),
        Operator("inputs", {("K", "K"): "N"}, _cat(-3), "cat"),
        Operator("front", {("J",): "I"}, _half(-3, 0), "slice"),
        Operator("back", {("J",): "I"}, _half(-3, 1), "slice"),
        Operator("enlarge", {("L",): "K"}, _enlarged, "constant_pad_nd"),
        Operator("ungroup", {("G",): "K"}, _ungrouped, "constant_pad_nd"),
    )
}
#: Operators that do not mind the order of their arguments.
COMMUTATIVE: Final = ("add", "mul", "max", "min")
#: Operator that joins two values -> those that take them apart again.
SPLITS: Final = {
    "rows": ("top", "bottom"),
    "columns": ("left", "right"),
    "channels": ("front", "back"),
}


def kind_of_variable(name: str) -> str:
    """Return the kind that a variable's first letter stands for."""
    return _KINDS[name[0]]


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
            if token == ")" or not re.fullmatch(r"[a-z]\d*", token) or token[0] not in _KINDS:
                raise RewriteError(
                    f"{token!r} is not a variable in {text!r}: give a letter of "
                    f"{''.join(sorted(_KINDS))}."
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
    pools = {kind_of_value: iter(letters) for kind_of_value, letters in LETTERS.items()}
    names: dict[Any, Term] = {}
    for name in dict.fromkeys([*variables(left), *variables(right)]):
        names[name] = next(pools[kind_of_variable(name)])
    return replaced(left, names), replaced(right, names)


def canonical_roots(roots: tuple[tuple[Term, Term], ...]) -> tuple[tuple[Term, Term], ...]:
    """Return the sides of several roots with their variables named as they occur on the left."""
    head = "roots"
    left, right = canonical((head, *(one for one, _ in roots)), (head, *(two for _, two in roots)))
    return tuple(zip(left[1:], right[1:], strict=True))


def ordered(term: Term) -> Term:
    """Return a term in which the arguments of commutative operators are in a fixed order."""
    if isinstance(term, str):
        return term
    given = list(map(ordered, term[1:]))
    return (term[0], *(sorted(given, key=str) if term[0] in COMMUTATIVE else given))


def flat(term: Term) -> Term:
    """Return a term in which neither order nor brackets of commutative operators show."""
    if isinstance(term, str):
        return term
    given = list(map(flat, term[1:]))
    if term[0] not in COMMUTATIVE:
        return (term[0], *given)
    parts = [p for g in given for p in (g[1:] if g[0] == term[0] else (g,))]
    return (term[0], *sorted(parts, key=str))


def skeleton(term: Term) -> Term:
    """Return a term without what it says of weights."""
    if kind(term) in OF_WEIGHTS:
        return "weight"
    return term if isinstance(term, str) else (term[0], *map(skeleton, term[1:]))


def work(term: Term) -> int:
    """Return how many operators of a term compute, but for what is made of weights alone.

    What takes apart, joins or turns is not counted: it is a view, or of weights in most models.
    """
    moves = ("t", "rows", "columns", "channels", *sum(SPLITS.values(), ()))
    found = {t for t in subterms(term) if not isinstance(t, str)}
    return sum(t[0] not in moves and kind(t) not in OF_WEIGHTS for t in found)
