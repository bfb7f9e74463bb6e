# SPDX-License-Identifier: Apache-2.0
"""The profiler's tables, our figures beside the published ones, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benches.render.markdown import table

Document = Mapping[str, Any]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _range(row: Mapping[str, Any]) -> str:
    return f"{_number(row['low'])} to {_number(row['high'])}"


def _percent(interval: Mapping[str, float], minus: float = 0.0) -> str:
    """Return a share, or a ratio less 1, in percent with its interval."""
    value, low, high = (100 * (interval[k] - minus) for k in ("value", "low", "high"))
    sign = "+" if minus else ""
    return f"{value:{sign}.2f} % ({low:{sign}.2f} to {high:{sign}.2f})"


def _find(found: Mapping[str, Any], function: str, operator: str, stage: str) -> str:
    for row in found["ranges"]:
        if (row["function"], row["operator"], row["stage"]) == (function, operator, stage):
            return _range(row)
    return "-"


def counting(document: Document) -> list[str]:
    """Return counts and ranges of LeNet's exp and log."""
    published, libraries = document["published"], document["libraries"]
    full = f"{document['full_epochs']} epochs on all of MNIST"

    def row(what: str, study: str, ours: Callable[[Any], str]) -> list[str]:
        return [what, study, *(ours(found) for found in libraries.values())]

    rows = [
        row("forward passes watched", "", lambda f: f"{f['passes']:,}"),
        row("operators with a log in a pass", "1", lambda f: _number(f["per_pass"]["log"])),
        row("operators with an exp in a pass", "4", lambda f: _number(f["per_pass"]["exp"])),
        row(f"with a log, {full}", f"{published['log']:,}",
            lambda f: _number(f["full_size"]["log"])),
        row(f"with an exp, {full}", f"{published['exp']:,}",
            lambda f: _number(f["full_size"]["exp"])),
        row("arguments of log", published["log_range"],
            lambda f: _find(f, "log", "aten::_log_softmax", "forward")),
        row("arguments of log_softmax's exp", published["exp_range"],
            lambda f: _find(f, "exp", "aten::_log_softmax", "forward")),
    ]  # fmt: skip
    lines = table(["LeNet", "published", *libraries], rows)
    lines += ["", f"{document['data']}; {document['epochs']} epochs. All ranges:", ""]
    places = {
        (r["function"], r["operator"], r["stage"]): r["calls"]
        for found in libraries.values()
        for r in found["ranges"]
    }
    details = [
        [place[0], f"`{place[1]}`", place[2], f"{calls:,}",
         *(_find(f, *place) for f in libraries.values())]
        for place, calls in places.items()
    ]  # fmt: skip
    header = ["function", "operator", "stage", "operator calls", *libraries]
    return [*lines, *table(header, details)]


def operations(document: Document) -> list[str]:
    """Return the operation ratios by stage."""
    names = ("fma", "div", "mult", "add", "sqrt", "together")
    rows = [
        ["published", stage, "exp or log", *(_number(counts.get(n)) for n in names)]
        for stage, counts in document["published"].items()
    ]
    for model in document["models"].values():
        for stage, kinds in model["ratios"].items():
            for kind, counts in kinds.items():
                rows.append(
                    [
                        f"{model['label']}; {model['data']}",
                        stage,
                        kind.removeprefix("for one "),
                        *(_number(counts[n]) for n in names),
                    ]
                )
    return table(["model", "stage", "for one function", *names], rows)


def time_share(document: Document) -> list[str]:
    """Return the time shares, by both ways."""
    rows = [["published", name, share, "", "", ""] for name, share in document["published"].items()]
    for model in document["models"].values():
        for name, found in model["libraries"].items():
            largest = sorted(found["functions"].items(), key=lambda item: -item[1])
            rows.append(
                [
                    f"{model['label']}; {model['data']}",
                    name,
                    _percent(found["profiler"]),
                    _percent(found["functions_away"]["wall"]),
                    _percent(found["functions_away"]["cpu"]),
                    ", ".join(f"{f} {100 * share:.2f} %" for f, share in largest),
                    f"{found['step_ns'] / 1e6:.3g}",
                ]
            )
    header = ["model", "library", "by the profiler", "by taking the functions away",
              "the same, processor time", "by function", "step, ms"]  # fmt: skip
    return table(header, rows)


def accuracy(document: Document) -> list[str]:
    """Return accuracies, their differences and how many predictions differ."""
    rows = []
    for model in document["models"].values():
        for arm, values in model["accuracy"].items():
            label = f"{model['label']}, epochs: {model['epochs']}; {model['data']}"
            row = [
                label if arm == "std" else "",
                arm,
                f"{100 * statistics.fmean(values):.2f} ± {100 * statistics.stdev(values):.2f}",
            ]
            if arm != "std":
                test, loss = model["accuracy_against_std"][arm], model["loss_against_std"][arm]
                different = statistics.fmean(model["predictions_different"][arm])
                row += [
                    f"{100 * test['mean']:+.2f} ({100 * test['low']:+.2f} to "
                    f"{100 * test['high']:+.2f})",
                    f"{test['sign_flip_p']:.3g}",
                    f"{loss['mean']:+.2g} ({loss['low']:+.2g} to {loss['high']:+.2g})",
                    f"{_number(different)} of {model['test_targets']:,}",
                ]
            rows.append([*row, *[""] * (7 - len(row))])
    header = ["model", "library", "accuracy, %", "against std, points", "p", "loss against std",
              "predictions that differ"]  # fmt: skip
    lines = table(header, rows)
    apart = [
        f"{model['label'].split(',')[0]}, {arm}"
        for model in document["models"].values()
        for arm, test in model["accuracy_against_std"].items()
        if not test["low"] <= 0 <= test["high"]
    ]
    verdict = f"0 is outside of the interval for: {'; '.join(apart)}." if apart else (
        "No interval of the accuracy excludes 0."
    )  # fmt: skip
    return [*lines, "", f"{document['seeds']} seeds. {verdict}"]


def overhead(document: Document) -> list[str]:
    """Return the cost of each depth, and the A/A control."""
    depths = list(document["bounds"])
    rows = []
    for model in document["models"].values():
        for name, found in model["libraries"].items():
            ratios = found["ratios"]
            rows.append(
                [
                    f"{model['label']}; {model['data']}",
                    name,
                    f"{found['step_ns'] / 1e6:.3g}",
                    *(
                        f"{_percent(ratios[name]['wall'], 1.0)}"
                        f"{', ' + ratios[name]['verdict'] if 'verdict' in ratios[name] else ''}"
                        f"; processor time {_percent(ratios[name]['cpu'], 1.0)}"
                        for name in ("off again", *depths)
                    ),
                ]
            )
    bounds = [f"{d}, at most {100 * (b - 1):.0f} %" for d, b in document["bounds"].items()]
    lines = table(["model", "library", "step, ms", "off again", *bounds], rows)
    builds = document["builds"]
    same = "the same" if builds["same"] else "NOT the same"
    memory = []
    for model in document["models"].values():
        sizes = model["memory"]
        grown = sizes["events"]["file_many"] - sizes["events"]["file_few"]
        memory.append(
            [
                f"{model['label']}; {model['data']}",
                *(
                    f"{m['few'] / 2**20:.2f} MiB, "
                    + ("the same" if m["many"] == m["few"] else f"then {m['many'] / 2**20:.2f} MiB")
                    for m in sizes.values()
                ),
                f"{grown:,} bytes",
            ]
        )
    return [
        *lines,
        "",
        "What the profiler's runtime has allocated for the model (for the first one, also for the "
        "thread) after some steps, and after four times as many; at the depth `events` with the "
        "ring in which they wait for the disk, and by how much the file grew in between:",
        "",
        *table(["model", "counters", "events", "events' file"], memory),
        "",
        f"Off: the library that an ordinary session binds has {same} bytes before and after a "
        f"profiled session (SHA-256 `{builds['sha256_before'][:16]}`), and it "
        f"{'names' if builds['ordinary_names_profiler'] else 'does not name'} the profiler; the "
        f"instrumented one {'does' if builds['instrumented_names_profiler'] else 'does not'}.",
    ]


TABLES: dict[str, Callable[[Document], list[str]]] = {
    "profile_counting": counting,
    "profile_operations": operations,
    "profile_time": time_share,
    "profile_accuracy": accuracy,
    "profile_overhead": overhead,
}
