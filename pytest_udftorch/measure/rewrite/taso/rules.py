# SPDX-License-Identifier: Apache-2.0
"""Rules of substitution: read from a file that anyone can extend, and proved before they are used.

A line of the file is ``name: left => right``. A rule is proved twice: z3 derives it from
``axioms.txt``, and it holds on numbers. Where both sides are multi-linear the box test decides the
second; otherwise many small numbers have to agree.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base.optional import package
from pytest_udftorch.errors import EquivalenceError, RewriteError
from pytest_udftorch.measure.rewrite.boxes import equivalence
from pytest_udftorch.measure.rewrite.taso.generator import equal
from pytest_udftorch.measure.rewrite.taso.language import (
    OPERATORS,
    SHAPES,
    Term,
    kind,
    kind_of_variable,
    parse,
    program,
    show,
    variables,
)

AXIOMS: Final = Path(__file__).with_name("axioms.txt")
RULES: Final = Path(__file__).with_name("rules.txt")

#: z3 gives up after so many instances of axioms; a rule is then not proved. A limit in seconds
#: would depend on the machine, and z3 looks at its clock too seldom: one of 1 s has taken minutes.
INSTANCES: Final = 2_000
#: How many sets of small numbers have to agree where the box test does not apply.
TRIALS: Final = 64


@dataclass(frozen=True)
class Rule:
    """A substitution.

    Attributes:
        name: what reports call it.
        roots: what is replaced, each with what replaces it. Those of several roots are replaced
            together; they share what they are made of.
    """

    name: str
    roots: tuple[tuple[Term, Term], ...]

    @functools.cached_property
    def sides(self) -> tuple[Term, ...]:
        """All terms on both sides."""
        return tuple(term for root in self.roots for term in root)

    def __str__(self) -> str:
        left, right = (" | ".join(map(show, side)) for side in zip(*self.roots, strict=True))
        return f"{self.name}: {left} => {right}"


@dataclass(frozen=True)
class Proof:
    """How a rule was judged.

    Attributes:
        by_axioms: whether z3 derived it.
        by_numbers: ``box test``, ``trials``, or "" if numbers refute it.
        why: why it does not hold, or "".
    """

    by_axioms: bool
    by_numbers: str
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether both judges accept it."""
        return self.by_axioms and self.by_numbers != ""


def sides(text: str, arrow: str, where: str) -> tuple[Term, Term]:
    """Read two terms of the same kind.

    Raises:
        RewriteError: the text has another form.
    """
    if text.count(arrow) != 1:
        raise RewriteError(f"{where}: {text!r} is not two terms with {arrow!r} between them.")
    try:
        left, right = map(parse, text.split(arrow))
        if kind(left) != kind(right):
            raise RewriteError(f"the sides are of different kinds, {kind(left)} and {kind(right)}.")
    except RewriteError as error:
        raise RewriteError(f"{where}: {error}") from None
    return left, right


def _roots(text: str, where: str) -> tuple[tuple[Term, Term], ...]:
    """Read the sides of a rule.

    Raises:
        RewriteError: the sides have another number of roots, or another form.
    """
    halves = [half.split("|") for half in text.split("=>")]
    if len(halves) == 2 and len(halves[0]) != len(halves[1]):
        raise RewriteError(
            f"{where}: {text!r} replaces {len(halves[0])} roots by {len(halves[1])}. Give one for "
            "each, with '|' between them."
        )
    if len(halves) != 2 or len(halves[0]) == 1:
        return (sides(text, "=>", where),)
    return tuple(sides(f"{one}=>{other}", "=>", where) for one, other in zip(*halves, strict=True))


def read_rules(path: Path = RULES) -> list[Rule]:
    """Read a file of rules; nothing is proved.

    Raises:
        RewriteError: the file cannot be read, or a line is no rule; it names file and line.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RewriteError(f"The rules {path} cannot be read: {error}. Name a text file.") from None
    return list(_rules(path, text))


@functools.cache
def _rules(path: Path, whole: str) -> tuple[Rule, ...]:
    """Return the rules of a text. Every graph that is compiled asks for them."""
    rules: dict[str, Rule] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        text, where = line.split("#")[0].strip(), f"{path}, line {number}"
        if not text:
            continue
        head = re.match(r"([\w-]+):\s*(.*)", text)
        if head is None:
            raise RewriteError(f"{where}: {text!r} has no name. Write it as: name: left => right")
        if head[1] in rules:
            raise RewriteError(f"{where}: there is a rule {head[1]!r} already. Give another name.")
        rule = Rule(head[1], _roots(head[2], where))
        made_of = {name for left, _ in rule.roots for name in variables(left)}
        alone = {name for _, right in rule.roots for name in variables(right)} - made_of
        if alone or any(isinstance(left, str) for left, _ in rule.roots):
            raise RewriteError(
                f"{where}: the left side of {rule.name!r} must be an operator and have all "
                f"variables of the right side{f'; {min(alone)} is missing' if alone else ''}."
            )
        rules[rule.name] = rule
    return tuple(rules.values())


def axioms() -> list[tuple[Term, Term]]:
    """Return the axioms."""
    lines = AXIOMS.read_text().splitlines()
    return [
        sides(text, " = ", f"{AXIOMS.name}, line {number}")
        for number, text in enumerate(lines, 1)
        if text and not text.startswith("#")
    ]


class Prover:
    """z3 with the axioms.

    Args:
        instances: the most instances of axioms in one proof.
        known: equal terms, instead of the axioms.

    Raises:
        PackageMissingError: z3-solver is not installed.
    """

    def __init__(
        self, instances: int = INSTANCES, known: Sequence[tuple[Term, Term]] | None = None
    ) -> None:
        self.z3 = package("z3", "Proving rules of rewriting")
        self.instances = instances
        self.known = list(axioms() if known is None else known)

    def proves(self, left: Term, right: Term) -> bool:
        """Whether two terms are equal by the axioms; False if z3 does not find out."""
        # What z3 tries first, and so what it reaches within the limit, depends on all that was
        # made in its context before.
        made = _Context(self.z3)
        solver = self.z3.SimpleSolver(ctx=made.context)
        solver.set("qi.max_instances", self.instances)
        solver.add(*(made.for_all(*pair) for pair in self.known))
        solver.add(made.expression(left) != made.expression(right))
        return bool(solver.check() == self.z3.unsat)


class _Context:
    """The language in a context of z3 of its own."""

    def __init__(self, z3: Any) -> None:
        self.z3 = z3
        self.context = z3.Context()
        self.tensor = z3.DeclareSort("Tensor", self.context)
        self.functions = {
            o.name: z3.Function(o.name, *[self.tensor] * (len(next(iter(o.kinds))) + 1))
            for o in OPERATORS.values()
        }

    def expression(self, term: Term) -> Any:
        """Return a term as an expression."""
        if isinstance(term, str):
            return self.z3.Const(term, self.tensor)
        return self.functions[term[0]](*map(self.expression, term[1:]))

    def for_all(self, left: Term, right: Term) -> Any:
        """Return that two terms are equal for all values of their variables."""
        names = dict.fromkeys([*variables(left), *variables(right)])
        bound = [self.z3.Const(name, self.tensor) for name in names]
        mine, theirs = self.expression(left), self.expression(right)
        # Both sides can set the axiom off, if they have all of its variables.
        patterns = [
            side
            for side, term in ((mine, left), (theirs, right))
            if not isinstance(term, str) and set(variables(term)) == set(names)
        ]
        return self.z3.ForAll(bound, mine == theirs, patterns=patterns)


@functools.cache
def _prover() -> Prover:
    return Prover()


def by_numbers(left: Term, right: Term) -> tuple[str, str]:
    """Return how numbers confirm that two terms are equal, or "" and how they refute it."""
    names = list(dict.fromkeys([*variables(left), *variables(right)]))
    shapes = [SHAPES[kind_of_variable(name)] for name in names]
    try:
        found = equivalence(program(left, names), program(right, names), shapes)
        return ("box test", "") if found.equal else ("", f"the box test finds them {found}")
    except EquivalenceError:
        if equal(left, right, TRIALS):
            return "trials", ""
        return "", f"they differ on one of {TRIALS} sets of small numbers"


def judge_rule(left: Term, right: Term, prover: Prover | None = None) -> Proof:
    """Judge a substitution by axioms and by numbers.

    Raises:
        PackageMissingError: z3-solver is not installed.
    """
    how, why = by_numbers(left, right)
    if not how:
        return Proof(False, "", why)
    proved = (prover or _prover()).proves(left, right)
    return Proof(proved, how, "" if proved else "z3 does not derive it from the axioms")


def checked(rules: Iterable[Rule]) -> list[Rule]:
    """Return rules all of which are proved.

    Raises:
        RewriteError: one is not; the message names it.
        PackageMissingError: z3-solver is not installed.
    """
    return [proved(rule) for rule in rules]


def proved(rule: Rule) -> Rule:
    """Return a rule that is proved; each proof is made once in a process.

    Raises:
        RewriteError: it is not; the message names it.
        PackageMissingError: z3-solver is not installed.
    """
    for left, right in rule.roots:
        proof = _proof(left, right)
        if not proof.holds:
            raise RewriteError(
                f"The rule {rule.name!r} is not sound: {proof.why}. It says {show(left)} => "
                f"{show(right)}. Correct it, or take it out of the file."
            )
    return rule


@functools.cache
def _proof(left: Term, right: Term) -> Proof:
    return judge_rule(left, right)


def write(rules: Sequence[Rule], path: Path, head: str) -> None:
    """Write a file of rules, below some lines of comment."""
    lines = [*(f"# {line}" for line in head.splitlines()), *map(str, rules)]
    path.write_text("\n".join(lines) + "\n")
