# SPDX-License-Identifier: Apache-2.0
"""Tables of ``benches/results/same.json``: which ways of running a model agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benches.render.markdown import table

#: The model of the README's table.
SHOWN: Final = "hf-tiny:LlamaForCausalLM"

#: Words of a kind of number.
_WORDS: Final = {"logits": "logits", "log p": "log-probabilities", "gradients": "gradients"}


def ran(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of the models that could be run."""
    return [row for row in document["models"] if "refused" not in row]


def said(outcome: Mapping[str, Any] | None) -> str:
    """Return what came of a way: equal, or how much differs and by how much."""
    if outcome is None:
        return "equal"
    if outcome["failed"]:
        return "fails"
    parts = [
        f"{share:.1%} of {_WORDS[name]}, {largest:.1g}".replace("%", " %")
        for name, (share, largest) in outcome["parts"].items()
    ]
    return ("(!) " if outcome["far"] else "") + "; ".join(parts)


def one_model(document: Mapping[str, Any], subject: str = SHOWN) -> list[str]:
    """Return the table of one model: way by library."""
    (row,) = [r for r in ran(document) if r["subject"] == subject]
    libraries = list(row["differ"])
    rows = [
        [way, *(said(row["differ"][library].get(way)) for library in libraries)]
        for way in row["ways"]
    ]
    return table(["way", *libraries], rows)


def where_stock_differs(document: Mapping[str, Any], subject: str = SHOWN) -> list[str]:
    """Return the table of the ways of a model in which logits differ under stock."""
    (row,) = [r for r in ran(document) if r["subject"] == subject]
    libraries = list(row["differ"])

    def short(library: str, way: str) -> str:
        outcome = row["differ"][library].get(way)
        parts = {} if outcome is None else outcome["parts"]
        if "logits" not in parts:
            return "equal"
        share, largest = parts["logits"]
        return f"{share:.0%} differ, by {largest:.0e}".replace("%", " %")

    shown = [
        [way, *(short(library, way) for library in libraries)]
        for way in row["ways"]
        if "logits" in row["differ"]["std"].get(way, {"parts": ()})["parts"]
    ]
    return table(["logits of a small Llama", *libraries], shown)


def _named(outcomes: Mapping[str, Any]) -> str:
    """Return ways that differ, each operator with those that part by it."""
    by: dict[str, list[str]] = {}
    for way, outcome in outcomes.items():
        first = outcome["first"]
        name = f"`{first[0]}`" if first else "fails" if outcome["failed"] else ""
        far = " (!)" if outcome["far"] else ""
        by.setdefault(name, []).append(f"{way}{far}")
    return "; ".join(f"{', '.join(ways)}{f': {name}' if name else ''}" for name, ways in by.items())


def all_models(document: Mapping[str, Any]) -> list[str]:
    """Return the table of all models: how many ways agree, and what the others part by."""
    rows = []
    for row in ran(document):
        counts = [
            f"{len(row['ways']) - len(row['differ'][library])} of {len(row['ways'])}"
            for library in ("std", "repro")
        ]
        strict = f"`{row['strict'][0]}`" if row["strict"] else ""
        rows.append([f"`{row['subject']}`", *counts, _named(row["differ"]["repro"]), strict])
    return table(["model", "std", "repro", "what differs under repro", "`--strict` refuses"], rows)


def summary(document: Mapping[str, Any]) -> str:
    """Return how many models agree in all their ways, in a sentence."""
    rows = ran(document)
    equal = [r for r in rows if not r["differ"]["repro"]]
    gradients = [
        r for r in rows
        if r["differ"]["repro"]
        and all(set(o["parts"]) == {"gradients"} for o in r["differ"]["repro"].values())
    ]  # fmt: skip
    ways = sum(len(r["ways"]) for r in rows)
    stock = sum(len(r["differ"]["std"]) for r in rows)
    ours = sum(len(r["differ"]["repro"]) for r in rows)
    text = (
        f"{len(rows)} models in {ways:,} ways: under stock {stock:,} differ from the evaluation of "
        f"the whole batch, under `repro` {ours:,}. {len(equal)} models agree in all their ways "
        "under `repro`"
    )
    if gradients:
        text += f"; of {len(gradients)} more the gradients of micro-batches alone differ"
    return f"{text}."


def taken(document: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the models that ``--strict`` takes, and those of them of which a way differs.

    No fault was planted into any stored model: one that is taken, and differs, is accused.
    """
    rows = [r for r in ran(document) if not r["strict"]]
    return [r["subject"] for r in rows], [r["subject"] for r in rows if r["differ"]["repro"]]


def strict(document: Mapping[str, Any]) -> str:
    """Return what ``--strict`` says of the models, beside what differs, in a sentence."""
    every, apart = taken(document)
    named = f": {', '.join(f'`{name}`' for name in apart)}" if apart else ""
    left = len(ran(document)) - len(every)
    return (
        f"`--strict` takes {len(every)} of the {len(ran(document))} models, with all their ways. "
        f"Of these {len(apart)} are accused under `repro`{named}. It refuses the other {left} by "
        "name."
    )


def planted(found: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return how many planted faults were named, and how many clean models accused.

    Args:
        found: of the planted faults.
        stored: of the models in which no fault was planted.
    """
    faults, clean = found["faults"], found["clean"]
    rows = [
        [
            f"`{row['fault']}`",
            ", ".join(row["differ"]),
            ", ".join(f"`{name}`" for name in sorted(set(row["operators"].values()))),
        ]
        for row in faults
    ]
    named, accused = (sum(map(bool, of)) for of in ((r["named"] for r in faults),
                                                    (r["differ"] for r in clean)))  # fmt: skip
    every, apart = taken(stored)
    return [
        f"{named} of {len(faults)} faults are named by exactly their ways and their operator. "
        f"Of the models without faults {accused} of {len(clean)} small ones are accused, in "
        f"{clean[0]['ways']} ways each, and {len(apart)} of the {len(every)} in the table above "
        "that `--strict` takes.",
        "",
        *table(["fault", "ways that differ", "they part by"], rows),
    ]


def on_policy(found: Mapping[str, Any]) -> list[str]:
    """Return what TRL's trainer came to under each library, and the rewards step by step."""
    rows = []
    for library, runs in [*found["libraries"].items(), ("repro", [found["without_places"]])]:
        steps = [step for run in runs for step in run["steps"]]
        differ, total = (sum(step[key] for step in steps) for key in ("differ", "total"))
        largest = max(step["largest"] for step in steps)
        alike = "" if len(runs) == 1 else _alike(runs, "rewards"), _alike(runs, "digest")
        name = library if len(runs) == 2 else f"{library}, positions of padding not told"
        most = max(step["differ"] / step["total"] for step in steps)
        rows.append([
            name, f"{differ:,} of {total:,}", f"{most:.0%}".replace("%", " %"),
            f"{largest:.1g}" if differ else "0", *(alike if len(runs) > 1 else ("", "")),
        ])  # fmt: skip
    header = ["library", "log-probabilities that differ", "most in a step", "by up to",
              "rewards of two runs", "weights of two runs"]  # fmt: skip
    curves = [
        [str(number + 1), *(f"{run['rewards'][number]:.4f}"
                            for runs in found["libraries"].values() for run in runs)]
        for number in range(len(next(iter(found["libraries"].values()))[0]["rewards"]))
    ]  # fmt: skip
    names = [f"{library}, {run['rows']} rows"
             for library, runs in found["libraries"].items() for run in runs]  # fmt: skip
    said = ", ".join(f"{name} {version}" for name, version in found["trainer"].items())
    return [
        *table(header, rows), "",
        f"Rewards at each step, by library and the rows that are sampled at a time; {said}.", "",
        *table(["step", *names], curves),
    ]  # fmt: skip


def _alike(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    return "equal" if all(run[key] == runs[0][key] for run in runs) else "differ"


def resumed(found: Mapping[str, Any]) -> list[str]:
    """Return whether trainers go on from a checkpoint as if there had been no break."""
    by: dict[tuple[str, str], dict[str, str]] = {}
    for run in found["runs"]:
        same = "equal" if run["through"] == run["resumed"] else "differ"
        by.setdefault((run["trainer"], run["version"]), {})[run["library"]] = same
    libraries = list(dict.fromkeys(run["library"] for run in found["runs"]))
    rows = [[*key, *(cells[library] for library in libraries)] for key, cells in by.items()]
    return table(["trainer", "version", *libraries], rows)


def refusals(document: Mapping[str, Any]) -> Sequence[str]:
    """Return a line for each model that could not be run."""
    return [f"- `{r['subject']}`: {r['refused']}" for r in document["models"] if "refused" in r]
