# SPDX-License-Identifier: Apache-2.0
"""Rules that the generator emits and the judges accept: what ``rules.txt`` holds.

The pairs that the generator keeps are a base from which the others follow. A search also needs
shortcuts: pairs that leave less to compute, whether or not they follow from smaller ones. A pair
whose one side joins two values that share a variable, as ``(columns (mm a b) (mm a c))``, also
gives a rule with two roots: each value is a part of the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.measure.rewrite.taso.generator import (
    FAMILIES,
    Family,
    Funnel,
    Pair,
    generalises,
    generate_rules,
    pairs,
    without_instances,
)
from pytest_udftorch.measure.rewrite.taso.language import (
    SPLITS,
    Term,
    canonical,
    canonical_roots,
    flat,
    ordered,
    skeleton,
    subterms,
    variables,
    work,
)
from pytest_udftorch.measure.rewrite.taso.rules import Proof, Rule, write

#: Operators that are worth another order.
_HEAVY: Final = {"mm", "linear", "conv", "point", "gconv"}
#: Operators that a model with fixed weights calls beforehand.
_OF_WEIGHTS: Final = {"enlarge", "ungroup", "outputs", "inputs", "both"}
_HEAD: Final = """Substitutions of udf_taso: name: left => right, with | between several roots.
The generator has emitted them, and the judges have kept them:
python -m benches.experiments.taso_funnel --rules FILE. Each is proved once more before it is used.
Give your own: torch.compile(model, backend="udf_taso", options={"rules": "mine.txt"})."""

Judge = Callable[[Sequence[Pair]], Sequence[Proof]]


@dataclass(frozen=True, repr=False)
class Emission(Result):
    """How the rules of a family came about.

    Attributes:
        family: its name.
        funnel: of the generator; ``verified`` is what the judges accept of the base.
        shortcuts: pairs that leave less to compute, and are no others with variables replaced.
        candidates: rules with one root of the base and the shortcuts that a search can use.
        several_roots: rules with several roots made of them.
        kept: rules of both kinds that the judges accept.
    """

    family: str
    funnel: Funnel
    shortcuts: int
    candidates: int
    several_roots: int
    kept: int

    def _shown(self) -> Shown:
        rows = [(name, f"{count:,}") for name, count in self.document().items()
                if isinstance(count, int)]  # fmt: skip
        return Shown(f"rules of {self.family}", ("step", "rules"), rows)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        own = {n: getattr(self, n) for n in self.__dataclass_fields__ if n != "funnel"}
        return {**own, **self.funnel.document()}


def _directed(found: Iterable[Pair], least: int) -> dict[Pair, None]:
    """Return pairs in each direction in which the work falls by at least so much."""
    kept: dict[Pair, None] = {}
    for one, other in found:
        for left, right in ((one, other), (other, one)):
            made = not isinstance(left, str) and set(variables(right)) <= set(variables(left))
            if made and work(left) - work(right) >= least:
                kept.setdefault(canonical(ordered(left), ordered(right)))
    return kept


def _worth_a_step(left: Term, right: Term) -> bool:
    """Whether a search can gain by a rule: it saves work, or moves what is expensive or split."""
    mine, theirs = _heads(left), _heads(left) | _heads(right)
    if mine & _OF_WEIGHTS:
        return False  # no graph calls them
    if work(right) < work(left) or isinstance(right, str):
        return True
    if theirs == {"add"}:
        return ordered(left) != ordered(right)  # other brackets
    moved = flat(skeleton(left)) != flat(skeleton(right))
    return bool(theirs & (_HEAVY | set(sum(SPLITS.values(), ())))) and moved


def _heads(term: Term) -> set[str]:
    return {t[0] for t in subterms(term) if not isinstance(t, str)}


def several_roots(left: Term, right: Term) -> tuple[Pair, ...] | None:
    """Return the rule with two roots that a pair gives, or None.

    The left side has to join two values that share a variable.
    """
    if isinstance(left, str) or left[0] not in SPLITS or isinstance(right, str):
        return None
    parts = left[1:]
    shared = set(variables(parts[0])) & set(variables(parts[1]))
    alone = any(isinstance(p, str) for p in parts) or parts[0] == parts[1]
    if alone or not shared or right[0] == left[0]:
        return None
    pieces = [(split, right) for split in SPLITS[left[0]]]
    return canonical_roots(tuple(zip(parts, pieces, strict=True)))


def candidates(family: Family) -> tuple[list[tuple[Pair, ...]], list[Pair], Funnel, int]:
    """Return the rules of a family that are not judged yet, the base, its funnel, and shortcuts."""
    base, funnel = generate_rules(family.most, family)
    short = _directed(pairs(family.most, family)[0], 1)
    mine = _directed(base, 0)
    every = [p for p in without_instances({**mine, **short}) if p in mine or not generalises(*p)]
    useful = [p for p in every if _worth_a_step(*p)]
    useful.sort(key=lambda p: (len(str(p)), str(p)))
    roots = list(dict.fromkeys(filter(None, (several_roots(*p) for p in useful))))
    count = sum(p in short for p in every)
    return [*((p,) for p in useful), *roots], base, funnel, count


def _named(rules: Iterable[tuple[Pair, ...]]) -> list[Rule]:
    """Give each rule a name: the operators of its left side and of its right side."""

    def heads(term: Term) -> list[str]:
        own = [] if isinstance(term, str) else [term[0]]
        return own + [h for t in term[1:] if not isinstance(term, str) for h in heads(t)]

    taken: dict[str, int] = {}
    found = []
    for roots in rules:
        right = roots[0][1][1] if len(roots) > 1 else roots[0][1]
        left = "-and-".join("-".join(heads(one)) for one, _ in roots)
        name = f"{left}_to_{'-'.join(heads(right)) or right}"
        taken[name] = taken.get(name, 0) + 1
        found.append(Rule(name if taken[name] == 1 else f"{name}_{taken[name]}", roots))
    return found


def emit(judge: Judge, families: Iterable[Family] = FAMILIES) -> tuple[list[Rule], list[Emission]]:
    """Return the rules of families that the judges accept, and how they came about.

    Args:
        judge: judges pairs, in their order; ``judge_rules`` does it on all cores.
        families: what to enumerate.
    """
    kept: dict[tuple[Pair, ...], None] = {}
    emissions = []
    for family in families:
        found, base, funnel, short = candidates(family)
        asked = list(dict.fromkeys([*base, *(pair for roots in found for pair in roots)]))
        holds = {p: proof.holds for p, proof in zip(asked, judge(asked), strict=True)}
        mine = [roots for roots in found if all(holds[pair] for pair in roots)]
        kept.update(dict.fromkeys(mine))
        single = sum(len(roots) == 1 for roots in found)
        verified = replace(funnel, verified=sum(holds[pair] for pair in base))
        emissions.append(
            Emission(family.name, verified, short, single, len(found) - single, len(mine))
        )
    return _named(kept), emissions


def write_rules(rules: Sequence[Rule], path: Path) -> None:
    """Write emitted rules to a file."""
    write(rules, path, _HEAD)
