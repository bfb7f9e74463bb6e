# SPDX-License-Identifier: Apache-2.0
"""The backend ``udf_taso``."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torch import fx

from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure.rewrite.backends import (
    COMMON,
    Candidate,
    compile_graph,
    further,
    settings,
    simplified,
    terms_of,
)
from pytest_udftorch.measure.rewrite.deadline import Deadline
from pytest_udftorch.measure.rewrite.report import GraphReport
from pytest_udftorch.measure.rewrite.taso.rules import RULES, Rule, checked, read_rules
from pytest_udftorch.measure.rewrite.taso.search import Costs, Found, backtracking

OPTIONS: Final[dict[str, Any]] = {
    "rules": RULES,
    "search": "backtracking",
    "graphs": 1000,
    "search_seconds": 60.0,
    "journal": None,
    **COMMON,
}


@functools.cache
def _sound(path: str, text: str) -> list[Rule]:
    """Return the rules of a user's file, proved once in a process for each text of it."""
    return checked(read_rules(Path(path)))


def rules_of(path: str | Path) -> list[Rule]:
    """Return the rules of a file.

    Those of a user are proved at once. The many that are emitted have been proved; each is proved
    again by the search before it is used.

    Raises:
        RewriteError: the file is wrong, or a rule in it is unsound.
    """
    rules = read_rules(Path(path))
    if Path(path) == RULES:
        return rules
    return _sound(str(path), "\n".join(map(str, rules)))


def taso(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_taso``: the cheapest graph that proved substitutions reach.

    Options are ``rules``, the path of a file; ``search``, which is ``backtracking`` or ``egraph``;
    ``graphs`` and ``search_seconds``, which limit the search among graphs; ``gain``, how many times
    as fast the whole graph has to become to be kept; ``seconds``, after which all ends, checks and
    measurements too; ``journal``, the path of a file in which measured times of calls are kept for
    later searches; and ``strict``. The templates that ``udf_templates`` applies are applied first.
    """
    wanted = settings("udf_taso", options, OPTIONS)
    if wanted["search"] not in ("backtracking", "egraph"):
        raise RewriteError(
            f"udf_taso knows no search {wanted['search']!r}. Give 'backtracking' or 'egraph'."
        )

    # Proofs trace programs, which Dynamo does not bear while it traces the model.
    ready = functools.partial(rules_of, wanted["rules"])

    def rewriter(
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        held: Collection[int],
        report: GraphReport,
        deadline: Deadline,
    ) -> Candidate | None:
        rules = ready()
        start = simplified(graph, held, deadline)
        found = search(copy.deepcopy(start.module), rules, held, wanted, deadline)
        now, before = found.cost_ns
        report.notes.append(
            f"{wanted['search']}: {found.visited:,} graphs in {found.seconds:.1f} s"
            f"{f', until {found.ended}' if found.ended else ''}; sum of "
            + (
                "calls not measured"
                if math.isnan(now)
                else f"measured calls {now / 1000:,.0f} us, {before / 1000:,.0f} us before"
            )
        )
        used = {firing.rule for firing in found.fired}
        report.details += [
            {"rule": rule, "before_ns": cost[0], "after_ns": cost[1], "used": rule in used}
            for rule, cost in sorted(found.matched.items(), key=lambda r: r[1][1] / max(r[1][0], 1))
        ]
        return further(start, found.module, found.fired)

    return compile_graph("udf_taso", rewriter, module, examples, terms_of(wanted, ready))


def search(
    graph: fx.GraphModule,
    rules: Sequence[Rule],
    held: Collection[int],
    wanted: Mapping[str, Any],
    deadline: Deadline,
) -> Found:
    """Search by the method that the options name."""
    journal = None if wanted["journal"] is None else Path(wanted["journal"])
    costs = Costs(journal=journal, deadline=deadline.within(wanted["search_seconds"]))
    if wanted["search"] == "egraph":
        from pytest_udftorch.measure.rewrite.taso.egraph import saturated

        return saturated(graph, rules, held, costs, wanted)
    return backtracking(graph, rules, held, costs, wanted)
