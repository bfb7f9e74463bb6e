# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/trust.md: what was tried to break the package, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benches.render.markdown import table
from pytest_udftorch.swap.toolchain.environment import caption

#: Figures of a stress run, in the words of the page.
_STRESS = {
    "sessions": "sessions opened",
    "switches": "switches of libraries",
    "threads": "threads that run operators meanwhile",
    "calls": "operators called by them",
    "torn": "results that are of no library",
    "interrupted": "sessions interrupted at a random place",
    "still_open_and_closed": "still open then, and closed when asked",
    "profiles": "profiles written",
    "children_terminated": "forked children ended by a signal",
}


def _rows(header: list[str], rows: Iterable[Iterable[Any]], document: Mapping[str, Any]) -> str:
    shown = [[f"{v:,}" if isinstance(v, int) else str(v) for v in row] for row in rows]
    return "\n".join([*table(header, shown), "", caption(document["environment"]), ""])


def stress(found: Mapping[str, Any]) -> str:
    """Return the counts of sessions under threads, and what a process holds afterwards."""
    rows = [(text, found[name]) for name, text in _STRESS.items() if name in found]
    rows += [
        (f"{name}, before and after", f"{now['before']:,} and {now['after']:,}")
        for name, now in found["growth"].items()
    ]
    rows.append(("stock bits at the end", "yes" if found["restored"] else "NO"))
    return _rows(["", "count"], rows, found)


def faults(found: Mapping[str, Any]) -> str:
    """Return how many faults were injected into each kind of writer, and how they ended."""
    kinds = ("injected", "healed", "errors", "wrong")
    rows = [(r["kind"], r["fault"], *(r[kind] for kind in kinds)) for r in found["rows"]]
    rows.append(("all", "", *(sum(r[kind] for r in found["rows"]) for kind in kinds)))
    header = ["writer", "fault", "injected", "healed", "errors of ours", "wrong"]
    return _rows(header, rows, found)


def fuzz(found: Mapping[str, Any]) -> str:
    """Return what fuzzing executed and reached, and what it found."""
    targets = found["targets"]
    kinds = ("executions", "edges", "seconds", "mended", "findings")
    rows = [(name, *(row[kind] for kind in kinds)) for name, row in targets.items()]
    sums = {kind: sum(row[kind] for row in targets.values()) for kind in kinds}
    rows.append(("all", *({**sums, "seconds": round(sums["seconds"], 1)}[k] for k in kinds)))
    header = [
        "reader", "executions", "edges reached", "processor time, s",
        "findings before, mended", "findings now",
    ]  # fmt: skip
    return _rows(header, rows, found)


def foreign_suites(found: Mapping[str, Any]) -> str:
    """Return other people's suites, under std and under corem."""
    rows = [
        (
            f"{row['suite']} {row['version']}", row["tests"], row["passed"], row["failed_both"],
            row["differing"], row["explained"], row["controls"]["null"]["differing"],
        )
        for row in found["suites"]
    ]  # fmt: skip
    header = [
        "suite", "tests", "passed under both", "failed under both", "differ", "of these explained",
        "differ under a wrong library",
    ]  # fmt: skip
    return _rows(header, rows, found)


def sanitizers(found: Mapping[str, Any]) -> str:
    """Return the native parts under each sanitizer."""
    rows = [
        (r["part"], r["sanitizer"], r["calls"], r["findings"], "yes" if r["ended_well"] else "NO")
        for r in found["parts"]
    ]
    return _rows(["part", "sanitizer", "calls", "findings", "ended well"], rows, found)


def versions(found: Mapping[str, Any]) -> str:
    """Return the tests that other versions of Python and torch ran."""
    kinds = ("python", "torch", "tests", "passed", "skipped", "failed")
    rows = [[str(row[k]) if k in kinds[:2] else row[k] for k in kinds] for row in found["rows"]]
    return _rows(["Python", "torch", *kinds[2:]], rows, found)


def patched_suite(found: Mapping[str, Any]) -> str:
    """Return a foreign suite on a patched libtorch, beside the same in a session."""
    kinds = ("tests", "passed", "failed_both", "differing", "explained")
    rows = [(f"{found['suite']} {found['version']}", *(found[kind] for kind in kinds))]
    header = [
        "suite", "tests", "passed in a session and on a patch", "failed in both", "differ",
        "of these explained",
    ]  # fmt: skip
    return _rows(header, rows, found)


#: Name of a stored file, and of the region -> its table.
TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "stress": stress,
    "faults": faults,
    "fuzz": fuzz,
    "foreign_suites": foreign_suites,
    "sanitizers": sanitizers,
    "versions": versions,
    "patched_suite": patched_suite,
}
