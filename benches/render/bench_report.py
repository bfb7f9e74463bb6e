# SPDX-License-Identifier: Apache-2.0
"""Draw the figures of the benches of torch.compile on one page, from their JSON.

    python -m benches.render.bench_report FILE.json ... [-o report.html] [--title TEXT]

Reads the files that the commands in ``benches/experiments`` write, and those that pytest-benchmark
writes for the suites. The files may come from several devices; each figure then shows all of them.
Where the thesis "Evaluating the PyTorch Compiler in the Vision Domain" published a number, the
page shows it beside ours. The thesis used another machine and other software.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Final

from benches.render.bench_files import Bench, BenchFormatError, Row, as_written, load_all, medians
from benches.render.figures import PUBLISHED, SECTIONS, numbers
from pytest_udftorch import UdfError
from pytest_udftorch.watch.profile.report import heading, page

__all__ = ["Bench", "BenchFormatError", "load_all", "sections", "terminal"]

TITLE: Final = "Benches of torch.compile"


def sections(benches: Sequence[Bench]) -> list[str]:
    """Return the parts of a page: what was measured where, the published numbers, the figures.

    Raises:
        BenchFormatError: rows are not as this version's benches write them.
    """
    with as_written(*(b.path for b in benches)):
        parts = [_about(benches), _published(benches)]
        benches = _by_machine(benches)
    for title, kinds, draw in SECTIONS:
        chosen = [b for b in benches if b.kind in kinds and b.rows]
        if not chosen:
            continue
        with as_written(*(b.path for b in chosen)):
            figures = draw(chosen)
        if figures:
            parts += [f"<h2>{escape(title)}</h2>", f'<div class="figures">{"".join(figures)}</div>']
    return parts


def _by_machine(benches: Sequence[Bench]) -> list[Bench]:
    """Return one bench for each kind and machine, with a tag for each machine.

    If several files have a row of one case, the first file's row counts.
    """
    machines: dict[str, list[str]] = {}
    merged: dict[tuple[str, str, str], Bench] = {}
    for bench in benches:
        same = machines.setdefault(bench.device, [])
        if bench.where not in same:
            same.append(bench.where)
        number = same.index(bench.where)
        tag = bench.device if number == 0 else f"{bench.device}-{number + 1}"
        key = (bench.kind, bench.device, bench.where)
        before = merged.get(key)
        rows = {_identity(row): row for row in bench.rows}
        rows |= {_identity(row): row for row in (before.rows if before else [])}
        merged[key] = replace(bench, rows=list(rows.values()), tag=tag)
    return list(merged.values())


def _identity(row: Row) -> str:
    names = ("case", "model", "batch", "elements", "columns", "rows")
    return json.dumps([row.get(name) for name in names], sort_keys=True)


def _about(benches: Sequence[Bench]) -> str:
    lines = dict.fromkeys(
        f"<p>{escape(b.path.name)}: {escape(b.about)}"
        + (f"; {b.left_out} cases left out" if b.left_out else "")
        + "</p>"
        for b in benches
    )
    return "\n".join(['<div class="about">', *lines, "</div>"])


def _published(benches: Sequence[Bench]) -> str:
    """Return the table of the published speed-ups and of those measured here."""
    found = []
    for bench in benches:
        if bench.kind not in ("end_to_end", "cells"):
            continue
        for row in bench.rows:
            times = medians(row)
            published = PUBLISHED.get(row["model"])
            if published is None or not {"eager", "compile"} <= set(times):
                continue
            plan = row.get("plan_over", {}).get("eager", {}).get("times_faster")
            found.append(
                {
                    "model": row["model"],
                    "device": bench.where,
                    "batch": int(row["batch"]),
                    "published": published,
                    "torch.compile here": times["eager"] / times["compile"],
                    "plan here": plan,
                }
            )
    if not found:
        return ""
    return "\n".join(
        [
            "<h2>Published numbers beside ours</h2>",
            '<p class="hint">Times faster than interpreted, end to end. Published: torch.compile '
            "in the study, on its machine and with its software. Ours: the same model in this "
            "measurement, and the oracle's plan.</p>",
            numbers("published", found),
        ]
    )


def terminal(benches: Sequence[Bench]) -> str:
    """Return a line for each bench: its file, kind, machine, rows, and a mean speed-up if any.

    The mean is the geometric mean over the rows of ``compile`` over the baseline.

    Raises:
        BenchFormatError: rows are not as this version's benches write them.
    """
    lines = []
    for bench in benches:
        with as_written(bench.path):
            lines.append(_line(bench))
    return "\n".join(lines)


def _line(bench: Bench) -> str:
    ratios = [
        r["speedup"]["compile"]["value"]
        for r in bench.rows
        if isinstance(r.get("speedup"), dict) and "compile" in r["speedup"]
    ]
    more = f"; {bench.left_out} left out" if bench.left_out else ""
    if ratios and min(ratios) > 0:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        more += f"; compile {mean:.2f} times as fast (geometric mean)"
    return f"{bench.path.name}: {bench.kind} on {bench.where}: {len(bench.rows)} rows{more}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each bench, and write the page if asked to; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.render.bench_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="JSON files of benches")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the HTML page here")
    parser.add_argument("--title", default=TITLE, help="of the page")
    options = parser.parse_args(arguments)
    try:
        benches = load_all(options.paths)
        print(terminal(benches))
        if options.out:
            text = page([heading(options.title), *sections(benches)], title=options.title)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(text, encoding="utf-8")
    except UdfError as error:
        print(f"bench_report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"bench_report: cannot write {options.out}: {error.strerror}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
