# SPDX-License-Identifier: Apache-2.0
"""Substitutions found by enumerating terms and comparing what they compute.

All terms up to a number of operators are computed on small whole numbers. Terms of the same value
are paired. A subterm that is equal to a smaller term is not built upon: what it would give follows
from that pair. Pairs are looked at by the number of operators of their larger terms. One that
follows from pairs with fewer operators goes, and so does one that becomes another one by these. So
does a pair that is another one with its variables replaced, and a pair with a common subterm where
it also holds with a variable in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import torch

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.measure.rewrite.taso.language import (
    LETTERS,
    OPERATORS,
    SHAPES,
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
Pair: TypeAlias = tuple[Term, Term]


@dataclass(frozen=True)
class Family:
    """Operators whose terms are enumerated together.

    Attributes:
        name: what the funnel calls it.
        operators: their names.
        variables: kind -> the variables, each a letter.
        most: operators of a term.
    """

    name: str
    operators: tuple[str, ...]
    variables: dict[str, str]
    most: int


#: All operators together, and the variables of their terms.
ALL: Final = Family(
    "all", tuple(OPERATORS), {"M": "abc", "I": "ij", "K": "kl", "V": "u", "P": "x"}, 3
)
#: What the rules of ``udf_taso`` are emitted from. With fewer operators terms may be longer.
FAMILIES: Final = tuple(
    Family(name, tuple(operators.split()), variables_of, most)
    for name, operators, variables_of, most in (
        ("matrices", "add sub mul max min neg relu abs t mm", {"M": "abc"}, 3),
        (
            "products",
            "add mm linear rows columns both relu left right t",
            {"M": "abcd", "C": "h", "V": "uv"},
            3,
        ),
        (
            "convolutions",
            "add relu conv point channels outputs inputs both enlarge front back",
            {"I": "ij", "J": "s", "K": "kl", "L": "op", "P": "xy"},
            4,
        ),
        (
            "groups",
            "add relu conv gconv ungroup",
            {"I": "ij", "K": "k", "G": "qr", "P": "xy"},
            3,
        ),
    )
)


def nodes(term: Term) -> int:
    """Return the number of operators in a term, equal ones as often as they occur."""
    return 0 if isinstance(term, str) else 1 + sum(map(nodes, term[1:]))


@dataclass(frozen=True, repr=False)
class Funnel(Result):
    """How many candidates each step left.

    Attributes:
        operators: the most operators of a term.
        enumerated: terms that were computed.
        fingerprint_equal: pairs of terms with the same values.
        after_naming: those that differ in more than the names of variables, and whose right side
            can be made of the variables of the left one.
        after_smaller: those that do not follow from pairs with fewer operators, and from each other
            by these.
        after_renaming: those that are not others with variables replaced by terms.
        after_common_subgraphs: those that do not follow from a pair with a variable in place of a
            common subterm.
        verified: those that were proved, or None if nobody has asked for it.
    """

    operators: int
    enumerated: int
    fingerprint_equal: int
    after_naming: int
    after_smaller: int
    after_renaming: int
    after_common_subgraphs: int
    verified: int | None = None

    def _shown(self) -> Shown:
        rows = [
            (name.replace("_", " "), "not proved" if count is None else f"{count:,}")
            for name, count in self.document().items()
        ]
        title = f"candidates of up to {self.operators} operators"
        return Shown(title, ("step", "candidates"), rows[1:])

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def draw(kind_of_value: str, seed: int) -> torch.Tensor:
    """Return small whole numbers of a kind's shape, in float64, which computes them exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, SHAPES[kind_of_value], generator=generator).double()


def drawn(names: list[str], seed: int) -> dict[str, torch.Tensor]:
    """Return values of variables: whole numbers, and quarters for every second seed.

    Whole numbers alone do not refute ``(min (mul a a) a) = a``.
    """
    unit = 1 if seed % 2 else 4
    return {n: draw(kind_of_variable(n), 1000 * seed + ord(n[0])) / unit for n in names}


def equal(left: Term, right: Term, trials: int = 3) -> bool:
    """Whether two terms have the same values on small numbers."""
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
    if not all(part.terms for part in parts):
        return
    first, *others = parts
    rest = list(itertools.product(*(range(len(part.terms)) for part in others)))
    chosen = torch.tensor(rest, dtype=torch.long).reshape(len(rest), len(others))
    step = max(1, _CHUNK // len(rest))
    for start in range(0, len(first.terms), step):
        some = first.values[start : start + step]
        values = [some.repeat_interleave(len(rest), 0)]
        for number, part in enumerate(others):
            values.append(part.values[chosen[:, number].repeat(len(some))])
        terms = [
            (operator.name, a, *(part.terms[n] for part, n in zip(others, numbers, strict=True)))
            for a in first.terms[start : start + step]
            for numbers in rest
        ]
        yield terms, operator.call(*values)


def _sizes(count: int, total: int) -> Iterator[tuple[int, ...]]:
    """Return the numbers of operators that arguments can have together."""
    if count == 1:
        yield (total,)
        return
    for own in range(total + 1):
        for others in _sizes(count - 1, total - own):
            yield (own, *others)


def pairs(operators: int, family: Family = ALL) -> tuple[list[tuple[Term, Term]], int]:
    """Return pairs of equal terms, the smaller one second, and how many terms were computed.

    Args:
        operators: the most operators of a term.
        family: which ones, of which variables.
    """
    known: dict[tuple[str, int], Term] = {}
    levels: list[dict[str, _Level]] = [{k: _Level(k) for k in SHAPES}]
    for k, letters in family.variables.items():
        level = levels[0][k]
        level.terms = list(letters)
        level.values = torch.stack([draw(k, 1000 + ord(n)) for n in letters])
        known.update({(k, f): t for f, t in zip(_fingerprints(level.values), letters, strict=True)})
    found: list[tuple[Term, Term]] = []
    enumerated = 0
    for total in range(1, operators + 1):
        new: dict[str, _Level] = {k: _Level(k) for k in SHAPES}
        fresh: dict[str, list[torch.Tensor]] = {k: [] for k in SHAPES}
        for operator in map(OPERATORS.__getitem__, family.operators):
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


def generalises(left: Term, right: Term) -> bool:
    """Whether a pair also holds with a variable in place of a common subterm."""
    common = {t for t in subterms(left) if not isinstance(t, str)} & set(subterms(right))
    for shared in common:
        used = {*variables(left), *variables(right)}
        free = [n for n in LETTERS.get(kind(shared), "") if n not in used]
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


def without_instances(found: Iterable[Pair]) -> list[Pair]:
    """Leave out pairs that are others with their variables replaced."""
    kept: dict[tuple[str, ...], list[Pair]] = {}
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


class _Smaller:
    """What is known of terms with fewer operators than those that are looked at."""

    def __init__(self) -> None:
        #: A term that is equal to a smaller one -> that one.
        self.equal: dict[Term, Term] = {}
        self._rules: dict[tuple[str, ...], list[Pair]] = {}

    def add(self, rules: Iterable[Pair]) -> None:
        """Take pairs as rules, in each direction in which they say what every variable becomes."""
        for left, right in rules:
            for one, other in ((left, right), (right, left)):
                if not isinstance(one, str) and set(variables(other)) <= set(variables(one)):
                    self._rules.setdefault((one[0], *_heads(*one[1:])), []).append((one, other))

    def _least(self, term: Term, most: int) -> tuple[Term, int] | None:
        """Return a term made of the smallest equal ones, and its operators, unless too many."""
        if isinstance(term, str):
            return term, 0
        parts, total = [], 1
        for argument in term[1:]:
            found = self._least(argument, most - total)
            if found is None:
                return None
            parts.append(found[0])
            total += found[1]
        if total > most:
            return None
        made: Term = (term[0], *parts)
        if made in self.equal:
            made = self.equal[made]
            total = nodes(made)
        return made, total

    def reached(self, term: Term, most: int) -> Iterator[tuple[Term, int]]:
        """Return terms that a rule makes of a whole term, each with its number of operators."""
        heads = _heads(*term[1:])
        for chosen in itertools.product(*(("", head) if head else ("",) for head in heads)):
            for left, right in self._rules.get((term[0], *chosen), ()):
                by: dict[str, Term] = {}
                if _matches(left, term, by):
                    found = self._least(replaced(right, {**by}), most)
                    if found is not None:
                        yield found


def _independent(named: dict[Pair, None], smaller: _Smaller, most: int) -> list[Pair]:
    """Return one pair of each set of pairs that become each other by pairs of fewer operators.

    A set goes if one of its pairs follows from pairs of fewer operators altogether.

    Args:
        named: pairs whose left sides have as many operators.
        smaller: pairs of fewer.
        most: how many.
    """
    parents: dict[Pair | None, Pair | None] = {None: None, **{pair: pair for pair in named}}

    def root(pair: Pair | None) -> Pair | None:
        while parents[pair] != pair:
            parents[pair] = parents[parents[pair]]
            pair = parents[pair]
        return pair

    for pair in named:
        left, right = pair
        below = nodes(right) < most
        for term, count in smaller.reached(left, most):
            # What has fewer operators is known to be equal to the right side, if that has, too.
            if term == right or (count < most and below):
                other = None
            elif (other := canonical(term, right)) not in parents:
                continue
            mine, theirs = root(pair), root(other)
            if theirs is None or mine is None:
                parents[mine if theirs is None else theirs] = None
            else:
                parents[mine] = theirs
            if root(pair) is None:
                break
    least: dict[Pair, Pair] = {}
    for pair in named:
        if (top := root(pair)) is not None:
            known = least.setdefault(top, pair)
            if (len(str(pair)), str(pair)) < (len(str(known)), str(known)):
                least[top] = pair
    return list(least.values())


def _named(found: Iterable[Pair], operators: int) -> list[dict[Pair, None]]:
    """Return pairs by the operators of their left sides, without those that differ in names."""
    levels: list[dict[Pair, None]] = [{} for _ in range(operators + 1)]
    for left, right in found:
        # A side with a variable of its own cannot be made of the other side.
        if set(variables(right)) <= set(variables(left)):
            levels[nodes(left)].setdefault(canonical(left, right))
    return levels


def generate_rules(operators: int = 3, family: Family = ALL) -> tuple[list[Pair], Funnel]:
    """Return candidate substitutions, not yet proved, and the counts of the steps.

    Args:
        operators: the most operators of a term. torch computes the terms on all of its threads.
        family: which ones, of which variables.
    """
    found, enumerated = pairs(operators, family)
    levels = _named(found, operators)
    smaller = _Smaller()
    kept: list[Pair] = []
    rest: list[Pair] = []
    for most, named in enumerate(levels):
        rest += (independent := _independent(named, smaller, most))
        new = [pair for pair in without_instances(independent) if not generalises(*pair)]
        smaller.add(new)
        smaller.equal.update(pair for pair in found if nodes(pair[0]) == most)
        kept += new
    general = without_instances(rest)
    left_over = set(general)
    kept = sorted(
        (pair for pair in kept if pair in left_over),
        key=lambda pair: (size(pair[0]), size(pair[1]), str(pair)),
    )
    named_count = sum(map(len, levels))
    return kept, Funnel(
        operators, enumerated, len(found), named_count, len(rest), len(general), len(kept)
    )
