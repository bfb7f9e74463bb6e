# SPDX-License-Identifier: Apache-2.0
"""Profiles as text for a terminal and as one HTML page. Pure functions of their arguments.

The page is self-contained: it holds its style and script, and its content security policy
forbids loading anything. All text from a profile (names of modules, paths) is escaped.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from pytest_udftorch.base.units import power_text, time_text
from pytest_udftorch.errors import NoProfileError
from pytest_udftorch.swap.records.totals import KINDS, NO_MODULE
from pytest_udftorch.watch.profile.chart import ranges_chart
from pytest_udftorch.watch.profile.ranges import headroom, largest
from pytest_udftorch.watch.profile.tables import (
    TestFigures,
    cells_table,
    functions_table,
    layers_table,
    operators_table,
    stages_table,
    tests_table,
)

if TYPE_CHECKING:
    from pytest_udftorch.swap.records.profile import Profile
    from pytest_udftorch.swap.records.totals import Kind

_KIND_TITLES: Final[dict[Kind, str]] = {
    "nan": "First NaN made",
    "inf": "First infinity made",
    "subnormal": "First subnormal made",
}
_TOP: Final = 8


def terminal(profiles: Sequence[Profile], top: int = _TOP) -> str:
    """Return the short form: a table per library, the first special values, what is missing."""
    parts = []
    for profile in profiles:
        lines = [profile.title(), profile.table("function", top)]
        for kind in _KIND_TITLES:
            first = profile.first(kind)
            if first is not None:
                lines.append(f"first {KINDS[kind]} made: {first}")
        lines += [f"note: {note}" for note in profile.notes]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


TITLE: Final = "Math functions in PyTorch"


def profiles_html(
    profiles: Sequence[Profile], *, title: str = TITLE, tests: Sequence[TestFigures] = ()
) -> str:
    """Return the page of profiles.

    Args:
        profiles: one for each library; several are shown side by side.
        title: the title of the page.
        tests: the tests of the run, with what each called.

    Raises:
        NoProfileError: there is none.
    """
    return page([heading(title), *sections(profiles, tests)], title=title)


def sections(profiles: Sequence[Profile], tests: Sequence[TestFigures] = ()) -> list[str]:
    """Return the parts of the page of profiles, without the heading.

    Raises:
        NoProfileError: there is none.
    """
    if not profiles:
        raise NoProfileError("There is no profile to report on.")
    return [
        _about(profiles),
        _notes(profiles),
        _findings(profiles),
        ranges_chart(profiles),
        layers_table(profiles),
        tests_table(tests),
        functions_table(profiles),
        stages_table(profiles),
        operators_table(profiles),
        cells_table(profiles),
        _how(profiles),
    ]


def heading(title: str) -> str:
    """Return the heading of a page."""
    return f"<h1>{escape(title)}</h1>"


def page(sections: Sequence[str], *, title: str) -> str:
    """Return a page of ready-made parts, with style and script in it.

    Args:
        sections: HTML; empty ones are left out.
        title: text of the browser's window.
    """
    folder = files("pytest_udftorch.watch.profile") / "page"
    style = (folder / "report.css").read_text(encoding="utf-8")
    script = (folder / "report.js").read_text(encoding="utf-8")
    body = "\n".join(filter(None, sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}
<script>
{script}</script>
</body>
</html>
"""


def _about(profiles: Sequence[Profile]) -> str:
    lines = ['<div class="about">']
    for profile in profiles:
        when = ""
        if profile.start_ns:
            moment = datetime.datetime.fromtimestamp(profile.start_ns / 1e9, datetime.UTC)
            when = f"; {moment:%Y-%m-%d %H:%M} UTC"
        wall = f"; {time_text(profile.wall_ns)}" if profile.wall_ns else ""
        lines.append(f"<p>{escape(profile.title())}{when}{wall}</p>")
    return "\n".join([*lines, "</div>"])


def _notes(profiles: Sequence[Profile]) -> str:
    notes = [
        f"<p>{escape(profile.label)}: {escape(note)}</p>"
        for profile in profiles
        for note in profile.notes
    ]
    return "\n".join(['<div class="notes" role="note">', *notes, "</div>"]) if notes else ""


def _findings(profiles: Sequence[Profile]) -> str:
    cards = []
    for profile in profiles:
        whose = f"{escape(profile.label)}: " if len(profiles) > 1 else ""
        cards += [_first_card(profile, kind, whose) for kind in _KIND_TITLES]
        cards.append(_headroom_card(profile, whose))
    return "\n".join(['<div class="findings">', *cards, "</div>"])


def _card(kind: str, title: str, lead: str, *lines: str) -> str:
    rest = "".join(f"<p>{line}</p>" for line in lines)
    return f'<div class="finding {kind}"><h3>{title}</h3><p class="lead">{lead}</p>{rest}</div>'


def _first_card(profile: Profile, kind: Kind, whose: str) -> str:
    title = whose + _KIND_TITLES[kind]
    first = profile.first(kind)
    if first is not None:
        return _card(
            "bad",
            title,
            f"{escape(first.function)} in {escape(first.module or NO_MODULE)}",
            f"{escape(first.operator or 'no operator')}, {first.stage}, {first.dtype}, "
            f"{first.after_s:.3f} s after the start",
            *([f"<code>{escape(first.line)}</code>"] if first.line else []),
        )
    came = [r for r in profile.layers() if r.special("in", kind)]
    if came:
        where = ", ".join(dict.fromkeys(escape(r.layer) for r in came[:3]))
        more = " and others" if len(came) > 3 else ""
        count = sum(r.special("in", kind) for r in came)
        return _card(
            "", title, "by no watched function", f"{count:,} came in from elsewhere: {where}{more}"
        )
    # No option of pytest looks for subnormals.
    tests = "" if kind == "subnormal" else f"<code>pytest --udf-{kind}=error</code> and "
    return _card(
        "good",
        title,
        "none by a watched function",
        "Other operators, such as a division, are not watched here. To watch all of them, use "
        f"{tests}<code>udftorch diff --origin {kind}</code>.",
    )


def _headroom_card(profile: Profile, whose: str) -> str:
    title = f"{whose}Nearest to overflow"
    # The rows that have a number in the table's column "binades to overflow".
    rows = [r for r in profile.layers() if math.isfinite(headroom(r))]
    if not rows:
        return _card("", title, "-")
    row = min(rows, key=headroom)
    left = headroom(row)
    others = sum(not headroom(r) for r in rows) - 1
    text = (
        f"up to {power_text(largest(row))}, {left:.1f} binades below the overflow of "
        f"{row.key['dtype']}"
        if left
        else "0.0 binades: an infinity went in or came out"
        + (f", as in {others} other rows" if others else "")
    )
    lead = f"{escape(row.function_name)} in {escape(row.layer)}"
    return _card("bad" if left < 8 else "", title, lead, text)


def _how(profiles: Sequence[Profile]) -> str:
    strides = {int(p.meta["stride"]) for p in profiles if p.meta.get("stride")}
    sampled = ""
    if strides - {1}:
        sampled = (
            " The histograms come from one block in "
            f"{' or '.join(map(str, sorted(strides)))}; least and largest values and the counts "
            "of special values come from all."
        )
    return (
        "<footer><p>Made by pytest_udftorch. Counts and ranges were taken inside the "
        f"functions that PyTorch called.{sampled}</p></footer>"
    )
