# SPDX-License-Identifier: Apache-2.0
"""Substitutions found by enumerating terms and comparing what they compute.

All terms up to a number of operators are computed on small whole numbers. Terms of the same value
are paired. A subterm that is equal to a smaller term is not built upon: what it would give follows
from that pair. A pair that is another one with its variables replaced goes. So does a pair with a
common subterm where it also holds with a variable in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from pytest_udftorch.rewrite.taso.language import (
    OPERATORS,
    SHAPES,
    VARIABLES,
    Operator,
    Term,
    canonical,
    evaluate,
    kind,
    kind_of_variable,
    replaced,
    size,
    subterms,
    variables,
)

#: How many terms are computed at once.
_CHUNK: Final = 1 << 16
#: Variables that stand for common subterms.
_FRESH: Final = {"M": "defgh", "I": "j", "K": "mn"}


@dataclass(frozen=True)
class Funnel:
    """How many candidates each step left.

    Attributes:
        operators: the most operators of a term.
        enumerated: terms that were computed.
        fingerprint_equal: pairs of terms with the same values.
        after_renaming: those that differ in more than names of variables.
        after_common_subgraphs: those that do not follow from a pair with a variable in place of a
            common subterm.
        verified: those that were proved.
    """

    operators: int
    enumerated: int
    fingerprint_equal: int
    after_renaming: int
    after_common_subgraphs: int
    verified: int = 0

    def to_json(self) -> dict[str, int]:
        """Return a JSON object."""
        return asdict(self)


def draw(kind_of_value: str, seed: int) -> torch.Tensor:
    """Return small whole numbers of a kind's shape, in float64, which computes them exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, SHAPES[kind_of_value], generator=generator).double()


def drawn(names: list[str], seed: int) -> dict[str, torch.Tensor]:
    """Return values of variables."""
    return {n: draw(kind_of_variable(n), 1000 * seed + ord(n[0])) for n in names}


def equal(left: Term, right: Term, trials: int = 3) -> bool:
    """Whether two terms have the same values on small whole numbers."""
    names = list({*variables(left), *variables(right)})
    return kind(left) == kind(right) and all(
        torch.equal(evaluate(left, values), evaluate(right, values))
        for values in (drawn(names, seed) for seed in range(1, trials + 1))
    )


def _fingerprints(values: torch.Tensor) -> list[int]:
    """Return a number for each value that is the same for equal values."""
    flat = values.flatten(1).long()
    generator = torch.Generator().manual_seed(values[0].numel())
    factors = torch.randint(-(2**62), 2**62, (flat.shape[1],), generator=generator)
    return list((flat * factors).sum(1).tolist())  # modulo 2**64


class _Level:
    """Terms of one kind with the same number of operators, with their values."""

    def __init__(self, kind_of_value: str) -> None:
        self.terms: list[Term] = []
        self.values = torch.empty((0, *SHAPES[kind_of_value]), dtype=torch.float64)


def _combined(operator: Operator, parts: list[_Level]) -> Iterator[tuple[list[Any], torch.Tensor]]:
    """Return terms made by an operator of all terms of some levels, in pieces, with values."""
    if len(parts) == 1:
        (only,) = parts
        if only.terms:
            yield [(operator.name, t) for t in only.terms], operator.call(only.values)
        return
    first, second = parts
    if not second.terms:
        return
    step = max(1, _CHUNK // len(second.terms))
    for start in range(0, len(first.terms), step):
        some = first.values[start : start + step]
        count, others = len(some), len(second.terms)
        left = some.repeat_interleave(others, 0)
        right = second.values.repeat(count, *(1,) * (second.values.dim() - 1))
        terms = [
            (operator.name, a, b) for a in first.terms[start : start + step] for b in second.terms
        ]
        yield terms, operator.call(left, right)


def _sizes(count: int, total: int) -> list[tuple[int, ...]]:
    """Return the numbers of operators that arguments can have together."""
    return [(total,)] if count == 1 else [(a, total - a) for a in range(total + 1)]


def pairs(
    operators: int, names: dict[str, str] | None = None
) -> tuple[list[tuple[Term, Term]], int]:
    """Return pairs of equal terms, the smaller one second, and how many terms were computed.

    Args:
        operators: the most operators of a term.
        names: kind -> the variables, each a letter.
    """
    known: dict[tuple[str, int], Term] = {}
    levels: list[dict[str, _Level]] = [{k: _Level(k) for k in SHAPES}]
    for k, letters in (names or VARIABLES).items():
        level = levels[0][k]
        level.terms = list(letters)
        level.values = torch.stack([draw(k, 1000 + ord(n)) for n in letters])
        known.update({(k, f): t for f, t in zip(_fingerprints(level.values), letters, strict=True)})
    found: list[tuple[Term, Term]] = []
    enumerated = 0
    for total in range(1, operators + 1):
        new: dict[str, _Level] = {k: _Level(k) for k in SHAPES}
        fresh: dict[str, list[torch.Tensor]] = {k: [] for k in SHAPES}
        for operator in OPERATORS.values():
            for given, result in operator.kinds.items():
                for sizes in _sizes(len(given), total - 1):
                    parts = [levels[s][k] for s, k in zip(sizes, given, strict=True)]
                    for terms, values in _combined(operator, parts):
                        enumerated += len(terms)
                        keep = []
                        for at, number in enumerate(_fingerprints(values)):
                            other = known.setdefault((result, number), terms[at])
                            if other is terms[at]:
                                keep.append(at)
                            else:
                                found.append((terms[at], other))
                        if keep and total < operators:
                            new[result].terms += [terms[at] for at in keep]
                            fresh[result].append(values[keep])
        for k, values_of in fresh.items():
            if values_of:
                new[k].values = torch.cat(values_of)
        levels.append(new)
    return found, enumerated


def _generalises(left: Term, right: Term) -> bool:
    """Whether a pair also holds with a variable in place of a common subterm."""
    common = {t for t in subterms(left) if not isinstance(t, str)} & set(subterms(right))
    for shared in common:
        used = {*variables(left), *variables(right)}
        free = [n for n in _FRESH.get(kind(shared), "") if n not in used]
        if not free:
            continue
        by: dict[Any, Term] = {shared: free[0]}
        if equal(replaced(left, by), replaced(right, by)):
            return True
    return False


def _matches(pattern: Term, term: Term, by: dict[str, Term]) -> bool:
    """Whether a term is a pattern with its variables replaced; ``by`` is filled with how."""
    if isinstance(pattern, str):
        return by.setdefault(pattern, term) == term and kind_of_variable(pattern) == kind(term)
    return (
        not isinstance(term, str)
        and pattern[0] == term[0]
        and all(_matches(p, t, by) for p, t in zip(pattern[1:], term[1:], strict=True))
    )


def _heads(*terms: Term) -> list[str]:
    """Return the operators of terms; "" for variables."""
    return ["" if isinstance(term, str) else term[0] for term in terms]


def _may_match(left: Term, right: Term) -> Iterator[tuple[str, ...]]:
    """Return the keys of the patterns that could match a pair: variables match any operator."""
    heads = _heads(*left[1:], right)
    for chosen in itertools.product(*(("", head) if head else ("",) for head in heads)):
        yield (left[0], *chosen)


def _without_instances(found: Iterable[tuple[Term, Term]]) -> list[tuple[Term, Term]]:
    """Leave out pairs that are others with their variables replaced."""
    kept: dict[tuple[str, ...], list[tuple[Term, Term]]] = {}
    order = sorted(
        found,
        key=lambda p: (size(p[0]) + size(p[1]), -len(variables(p[0])), len(str(p)), str(p)),
    )
    for left, right in order:
        others = itertools.chain.from_iterable(kept.get(key, ()) for key in _may_match(left, right))
        for general, result in others:
            by: dict[str, Term] = {}
            if _matches(general, left, by) and _matches(result, right, by):
                break
        else:
            kept.setdefault((left[0], *_heads(*left[1:], right)), []).append((left, right))
    return [pair for pairs_of in kept.values() for pair in pairs_of]


def generate(
    operators: int = 3, names: dict[str, str] | None = None
) -> tuple[list[tuple[Term, Term]], Funnel]:
    """Return candidate substitutions, not yet proved, and the counts of the steps.

    Args:
        operators: the most operators of a term. torch computes the terms on all of its threads.
        names: kind -> the variables, each a letter.
    """
    found, enumerated = pairs(operators, names)
    named: dict[tuple[Term, Term], None] = {}
    for left, right in found:
        # A side with a variable of its own cannot be made of the other side.
        if set(variables(right)) <= set(variables(left)):
            named.setdefault(canonical(left, right))
    general = _without_instances(named)
    kept = [pair for pair in general if not _generalises(*pair)]
    kept.sort(key=lambda pair: (size(pair[0]), size(pair[1]), str(pair)))
    return kept, Funnel(operators, enumerated, len(found), len(general), len(kept))
