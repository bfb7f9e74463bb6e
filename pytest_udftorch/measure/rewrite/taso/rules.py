# SPDX-License-Identifier: Apache-2.0
"""Rules of substitution: read from a file that anyone can extend, and proved before they are used.

A line of the file is ``name: left => right``. A rule is proved twice: z3 derives it from
``axioms.txt``, and it holds on numbers. Where both sides are multi-linear the box test decides the
second; otherwise many small whole numbers have to agree.
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
#: How many sets of small whole numbers have to agree where the box test does not apply.
TRIALS: Final = 64


@dataclass(frozen=True)
class Rule:
    """A substitution.

    Attributes:
        name: what reports call it.
        left: what is replaced.
        right: by what.
    """

    name: str
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.name}: {show(self.left)} => {show(self.right)}"


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


def read_rules(path: Path = RULES) -> list[Rule]:
    """Read a file of rules; nothing is proved.

    Raises:
        RewriteError: the file cannot be read, or a line is no rule; it names file and line.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RewriteError(f"The rules {path} cannot be read: {error}. Name a text file.") from None
    rules: dict[str, Rule] = {}
    for number, line in enumerate(lines, 1):
        text, where = line.split("#")[0].strip(), f"{path}, line {number}"
        if not text:
            continue
        head = re.match(r"([\w-]+):\s*(.*)", text)
        if head is None:
            raise RewriteError(f"{where}: {text!r} has no name. Write it as: name: left => right")
        if head[1] in rules:
            raise RewriteError(f"{where}: there is a rule {head[1]!r} already. Give another name.")
        rule = Rule(head[1], *sides(head[2], "=>", where))
        alone = set(variables(rule.right)) - set(variables(rule.left))
        if alone or isinstance(rule.left, str):
            raise RewriteError(
                f"{where}: the left side of {rule.name!r} must be an operator and have all "
                f"variables of the right side{f'; {min(alone)} is missing' if alone else ''}."
            )
        rules[rule.name] = rule
    return list(rules.values())


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
        tensor = self.z3.DeclareSort("Tensor")
        self.functions = {
            o.name: self.z3.Function(o.name, *[tensor] * (len(next(iter(o.kinds))) + 1))
            for o in OPERATORS.values()
        }
        self.tensor = tensor
        self.instances = instances
        rules = axioms() if known is None else known
        self.axioms = [self._for_all(left, right) for left, right in rules]

    def _expression(self, term: Term) -> Any:
        if isinstance(term, str):
            return self.z3.Const(term, self.tensor)
        return self.functions[term[0]](*map(self._expression, term[1:]))

    def _for_all(self, left: Term, right: Term) -> Any:
        names = dict.fromkeys([*variables(left), *variables(right)])
        bound = [self.z3.Const(name, self.tensor) for name in names]
        mine, theirs = self._expression(left), self._expression(right)
        # Both sides can set the axiom off, if they have all of its variables.
        patterns = [
            side
            for side, term in ((mine, left), (theirs, right))
            if not isinstance(term, str) and set(variables(term)) == set(names)
        ]
        return self.z3.ForAll(bound, mine == theirs, patterns=patterns)

    def proves(self, left: Term, right: Term) -> bool:
        """Whether two terms are equal by the axioms; False if z3 does not find out."""
        # A solver keeps what it learns and counts all instances: the answer must not depend on
        # what was asked before.
        solver = self.z3.SimpleSolver()
        solver.set("qi.max_instances", self.instances)
        solver.add(*self.axioms, self._expression(left) != self._expression(right))
        return bool(solver.check() == self.z3.unsat)


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
        return "", f"they differ on one of {TRIALS} sets of small whole numbers"


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
    sound = []
    for rule in rules:
        proof = judge_rule(rule.left, rule.right)
        if not proof.holds:
            raise RewriteError(
                f"The rule {rule.name!r} is not sound: {proof.why}. It says {show(rule.left)} => "
                f"{show(rule.right)}. Correct it, or take it out of the file."
            )
        sound.append(rule)
    return sound


def write(rules: Sequence[Rule], path: Path, head: str) -> None:
    """Write a file of rules, below some lines of comment."""
    lines = [*(f"# {line}" for line in head.splitlines()), *map(str, rules)]
    path.write_text("\n".join(lines) + "\n")
