# SPDX-License-Identifier: Apache-2.0
"""The backend ``udf_taso``."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torch import fx

from pytest_udftorch.errors import RewriteError
from pytest_udftorch.rewrite.backends import (
    Candidate,
    Terms,
    compile_graph,
    further,
    settings,
    simplified,
)
from pytest_udftorch.rewrite.measured import GAIN
from pytest_udftorch.rewrite.report import GraphReport
from pytest_udftorch.rewrite.taso.rules import RULES, Rule, checked, read
from pytest_udftorch.rewrite.taso.search import Costs, Found, backtracking

OPTIONS: Final[dict[str, Any]] = {
    "rules": RULES,
    "search": "backtracking",
    "graphs": 100,
    "seconds": 60.0,
    "gain": GAIN,
    "journal": None,
    "strict": False,
}


@functools.cache
def _sound(path: str, text: str) -> list[Rule]:
    """Return the rules of a file, proved once in a process for each text of it."""
    return checked(read(Path(path)))


def rules_of(path: str | Path) -> list[Rule]:
    """Return the rules of a file.

    Raises:
        RuleError: the file is wrong, or a rule in it is unsound.
    """
    rules = read(Path(path))
    return _sound(str(path), "\n".join(map(str, rules)))


def taso(
    module: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend ``udf_taso``: the cheapest graph that proved substitutions reach.

    Options are ``rules``, the path of a file; ``search``, which is ``backtracking`` or ``egraph``;
    ``graphs`` and ``seconds``, which limit the search; ``gain``, how many times as fast the whole
    graph has to become to be kept; ``journal``, the path of a file in which measured times of calls
    are kept for later searches; and ``strict``. The templates that ``udf_templates`` applies are
    applied first.
    """
    wanted = settings("udf_taso", options, OPTIONS)
    if wanted["search"] not in ("backtracking", "egraph"):
        raise RewriteError(
            f"udf_taso knows no search {wanted['search']!r}. Give 'backtracking' or 'egraph'."
        )

    # Proofs trace programs, which Dynamo does not bear while it traces the model.
    ready = functools.partial(rules_of, wanted["rules"])

    def rewriter(
        graph: fx.GraphModule, inputs: Sequence[Any], held: Collection[int], report: GraphReport
    ) -> Candidate | None:
        rules = ready()
        start = simplified(graph, held)
        found = search(copy.deepcopy(start.module), rules, held, wanted)
        now, before = found.cost_ns
        report.notes.append(
            f"{wanted['search']}: {found.visited:,} graphs in {found.seconds:.1f} s; sum of "
            f"measured calls {now / 1000:,.0f} us, {before / 1000:,.0f} us before"
        )
        return further(start, found.module, found.fired)

    terms = Terms(wanted["strict"], wanted["gain"], ready)
    return compile_graph("udf_taso", rewriter, module, examples, terms)


def search(
    graph: fx.GraphModule, rules: Sequence[Rule], held: Collection[int], wanted: Mapping[str, Any]
) -> Found:
    """Search by the method that the options name."""
    costs = Costs(journal=None if wanted["journal"] is None else Path(wanted["journal"]))
    if wanted["search"] == "egraph":
        from pytest_udftorch.rewrite.taso.egraph import saturated

        return saturated(graph, rules, held, costs, wanted)
    return backtracking(graph, rules, held, costs, wanted)
