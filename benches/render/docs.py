# SPDX-License-Identifier: Apache-2.0
"""Put the stored results into README and docs, so that no number there is typed by hand.

    python -m benches.render.docs [--check]

A page asks for a text between two comments, ``<!-- generated: NAME -->`` and ``<!-- end -->``;
the pages in docs/results are generated as a whole. ``--check`` changes nothing; it fails when a
page differs from what the results give, or when a drawing shows other numbers.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benches import certified, stored
from benches.experiments import asked
from benches.render import compiled as render_compile
from benches.render import cuda as render_cuda
from benches.render import diff as render_diff
from benches.render import drawings, fixed_results
from benches.render import experiments as render_experiments
from benches.render import house as render_house
from benches.render import profile as render_profile
from benches.render import same as render_same
from benches.render import tolerance as render_tolerance
from benches.render import trust as render_trust
from benches.render.markdown import table
from pytest_udftorch import UdfError
from pytest_udftorch.measure.rewrite.templates import own
from pytest_udftorch.prove import Certificate, load_certificate
from pytest_udftorch.prove.verify.merge import comparison_table
from pytest_udftorch.swap import FUNCTIONS
from pytest_udftorch.swap.operators.table import reached
from pytest_udftorch.swap.reach import table as reach
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.toolchain.environment import caption

ROOT = Path(__file__).parents[2]
UDFS = ROOT / "udfs"

_REGION = re.compile(r"(<!-- generated: ([a-z_]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_OPENING = re.compile(r"<!-- generated:")


class DocsError(UdfError):
    """A page asks for something that does not exist, or a stored result is missing."""


class Results:
    """The stored JSON files of one folder."""

    def __init__(self, folder: Path = stored.RESULTS) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        """Return whether ``name``.json is there."""
        return (self.folder / f"{name}.json").is_file()

    def __getitem__(self, name: str) -> dict[str, Any]:
        if not self.has(name):
            raise DocsError(
                f"{name}.json is missing in {self.folder}. Measure it: python -m benches.store."
            )
        return stored.load(self.folder / f"{name}.json")


def milliseconds(nanoseconds: float) -> str:
    """Return a time in ms with three significant digits or, above 100, none after the point."""
    value = nanoseconds / 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def seconds(nanoseconds: float) -> str:
    """Return a time in s with three significant digits."""
    return f"{nanoseconds / 1e9:.3g}"


def _middle(times: dict[str, float]) -> tuple[str, str]:
    """Return the median and the quartiles of times in ns, in ms."""
    low, high = (milliseconds(times[f"{which}_quartile"]) for which in ("lower", "upper"))
    return milliseconds(times["median"]), f"{low} to {high}"


# What a page can ask for -------------------------------------------------------------


def demo(results: Results) -> str:
    """Return the captured session of ``make demo``."""
    return f"```console\n$ make demo\n{results['demo_lenet']['text']}\n```\n"


def costs(results: Results) -> str:
    """Return the short table of what a session and a build cost."""
    entry, build = results["entry_exit"], results["build"]
    first = entry["benches"]["test_first_entry[after build_library-corem: all]"]["entry_ns"]
    cached = entry["benches"]["test_first_entry[build in the cache-corem: all]"]["entry_ns"]
    later = entry["benches"]["test_later_entry[corem: all]"]["time_ns"]
    leave = entry["benches"]["test_exit[corem: all]"]["time_ns"]
    cold = build["benches"]["test_cold_build[corem]"]
    rows = [
        ("first entry of a process, beyond the build", milliseconds(first["median"]) + " ms"),
        ("first entry with the build in the cache", milliseconds(cached["median"]) + " ms"),
        ("later entries", milliseconds(later["median"]) + " ms"),
        ("exit", milliseconds(leave["median"]) + " ms"),
        (
            f"cold build of corem ({cold['functions']} functions)",
            seconds(cold["build_ns"]["median"]) + " s",
        ),
    ]
    lines = table(["with all functions of corem", "median"], rows)
    return "\n".join([*lines, "", caption(entry["environment"]), ""])


def entry_exit(results: Results) -> str:
    """Return the table of entries and exits."""
    document = results["entry_exit"]
    rows = [
        [
            f"`{name}`",
            str(bench["functions"]),
            str(bench["rounds"]),
            *_middle(bench.get("entry_ns", bench["time_ns"])),
        ]
        for name, bench in document["benches"].items()
    ]
    header = ["bench", "functions", "rounds", "median, ms", "quartiles, ms"]
    return _with_source(table(header, rows), document)


def build(results: Results) -> str:
    """Return the table of builds."""
    document = results["build"]
    rows = [
        [f"`{name}`", str(bench["rounds"]), *_middle(bench.get("build_ns", bench["time_ns"]))]
        for name, bench in document["benches"].items()
    ]
    return _with_source(table(["bench", "rounds", "median, ms", "quartiles, ms"], rows), document)


def demo_details(results: Results) -> str:
    """Return accuracy by epoch and the symbols that libtorch called in the demo."""
    document = results["demo_lenet"]
    names = document["libraries"]
    epochs = [
        [str(epoch), *(f"{100 * s:.1f} %" for s in shares)]
        for epoch, shares in enumerate(zip(*document["accuracy"].values(), strict=True), start=1)
    ]
    operands = []
    for rows in zip(*document["operands"].values(), strict=True):
        calls = [
            ", ".join(f"`{s}` {n:,}" for s, n in sorted(row["symbols"].items())) for row in rows
        ]
        elements = " and ".join(dict.fromkeys(f"{row['elements']:,}" for row in rows))
        operands.append([rows[0]["operator"], rows[0]["function"], elements, *calls])
    lines = [
        *table(["epoch", *(f"accuracy, {n}" for n in names)], epochs),
        "",
        *table(
            ["operator", "function", "operands", *(f"symbol calls, {n}" for n in names)], operands
        ),
    ]
    return _with_source(lines, document)


#: The stored files of ``speed``, one for each maker of CPUs and the widest level they have.
SPEEDS = ("speed", "speed_intel", "speed_amd_avx2", "speed_intel_avx2")


def speed(results: Results, stem: str) -> str:
    """Return nanoseconds per element of every contender on one CPU."""
    document = results[stem]
    sections = []
    levels = dict.fromkeys(level for entry in document["functions"].values() for level in entry)
    for level in levels:
        found = {f: e[level] for f, e in document["functions"].items() if level in e}
        names = list(dict.fromkeys(name for entry in found.values() for name in entry))
        rows = [
            [function, *(f"{entry[n]['ns']:.3g}" if n in entry else "" for n in names)]
            for function, entry in found.items()
        ]
        lines = [f"{level}, median ns per element:", "", *table(["function", *names], rows)]
        sections.append("\n".join(lines) + "\n")
    elements = document["elements"].get("operators", 1 << 20)
    operators = [
        [name, f"{row['std_ns']:.3g}", f"{row['corem_ns']:.3g}", f"{row['corem_over']:.2f}",
         f"{row['corem_over_low']:.2f} to {row['corem_over_high']:.2f}"
         if "corem_over_low" in row else ""]
        for name, row in document["operators"].items()
    ]  # fmt: skip
    header = ["operator", "std, ns per element", "corem, ns per element", "corem / std",
              "half of the rounds"]  # fmt: skip
    lines = [f"Whole operators on {elements:,} elements, one thread:", "",
             *table(header, operators)]  # fmt: skip
    return "\n".join(sections) + "\n" + _with_source(lines, document)


def slug(machine: str) -> str:
    """Return the name of a CPU as a part of a file's name."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(r\)|\(tm\)", "", machine.lower()))
    return "-".join(words)


def double_precision(results: Results) -> str:
    """Return what of corem-d was compared with MPFR, and its time over stock's."""
    document = results["float64"]
    compared, rows = [], []
    for function, entry in document["functions"].items():
        counts, wrong = entry["arguments"], entry["wrong"]
        controls = {name: n for name, n in wrong.items() if name.startswith("canary")}
        ours = [n for name, n in wrong.items() if name not in controls]
        compared.append([
            function, *(f"{counts[kind]:,}" for kind in ("hard", "structured", "random")),
            str(len(ours)), f"{sum(ours):,}", f"{sum(controls.values()):,}", entry["cpu"],
        ])  # fmt: skip
        rows += [
            [function, row["interval"], f"{row['elements']:,}", str(row["stride"]),
             f"{row['std_ns']:.2f}", f"{row['corem_d_ns']:.2f}", f"{row['ratio']['median']:.2f}",
             f"{row['ratio']['lower_quartile']:.2f} to {row['ratio']['upper_quartile']:.2f}",
             entry["cpu"]]
            for row in entry["operators"]
        ]  # fmt: skip
    facts = table(
        [
            "function",
            "hard",
            "structured",
            "random",
            "forms",
            "wrong",
            "wrong in canary-d",
            "CPU",
        ],
        compared,
    )
    header = ["operator", "arguments", "elements", "stride", "std, ns per element",
              "corem-d, ns per element", "corem-d / std", "half of the rounds",
              "CPU"]  # fmt: skip
    return _with_source([*facts, "", *table(header, rows)], document)


def double_precision_speed(results: Results) -> str:
    """Return corem-d's time beside what torch calls, on each machine."""
    document, sections = results["float64_speed"], []
    for name, machine in document["machines"].items():
        rows = []
        for function, levels in machine["forms"].items():
            for level, entry in levels.items():
                ours = entry["corem"]
                peers = (entry.get(peer) for peer in ("vml", "sleef u10", "glibc"))
                rows.append([
                    function, level, f"{ours['ns']:.2f}",
                    f"{ours['ns_low']:.2f} to {ours['ns_high']:.2f}",
                    *(f"{peer['corem_over']:.2f}" if peer else "" for peer in peers),
                ])  # fmt: skip
        header = ["function", "level", "corem-d, ns per element", "half of the rounds",
                  "corem-d / VML HA", "corem-d / SLEEF u10", "corem-d / glibc"]  # fmt: skip
        load = machine["load"]
        sections += [
            f"![float64 functions on {name}](../{DOUBLE_SVG.format(slug(name))})", "",
            *table(header, rows), "",
            f"{caption(machine['environment'])} Other processes ran beside the measurement: "
            f"{load['waiting']:g} wanted one of {load['processors']} processors when it began.", "",
        ]  # fmt: skip
    return "\n".join(sections) + f"\n`{document['command']}`"


def float64_check(results: Results) -> str:
    """Return what of corem-d was compared on very many arguments."""
    document = results["float64_check"]
    rows = [
        [function, f"{entry['arguments']:,}", f"{entry['wrong']:,}", f"{entry['mpfr']:,}",
         entry["digest"], f"{entry['controls']['first_reference_wrong']:,}",
         f"{entry['controls']['canary_wrong']:,} of {entry['controls']['arguments']:,}",
         entry["cpu"]]
        for function, entry in document["functions"].items()
    ]  # fmt: skip
    header = ["function", "arguments", "wrong", "decided by MPFR", "digest",
              "first reference against MPFR: wrong", "canary-d: wrong", "CPU"]  # fmt: skip
    later = [
        f"- {function}: {again['arguments']:,} results, {again['level']}, {again['cpu']}, "
        f"{again['date']}; sources {again['sources']}"
        for function, entry in document["functions"].items()
        if (again := entry.get("same_digest"))
    ]
    lines = table(header, rows)
    if later:
        lines = [*lines, "", "Computed again (`--digest`), with the same digest:", "", *later]
    return _with_source(lines, document)


def quick_paths(results: Results) -> str:
    """Return what corem's quick paths gain, on each machine."""
    sections = []
    for name, machine in results["quick_paths"]["machines"].items():
        sections += [f"![float32 functions on {name}](../{QUICK_SVG.format(slug(name))})", ""]
        levels = {level: None for entry in machine["forms"].values() for level in entry}
        for level in levels:
            rows = []
            for function, entry in machine["forms"].items():
                if level not in entry:  # no quick path at this level
                    continue
                ours, plain = entry[level]["corem"], entry[level]["without quick path"]
                peers = (entry[level].get(name) for name in ("vml", "sleef u10"))
                rows.append([
                    function, f"{1 / plain['corem_over']:.2f}",
                    *(f"{peer['corem_over']:.2f}" if peer else "" for peer in peers),
                    *(f"{cycles:.2f} → {ours['cycles'][model]:.2f}"
                      for model, cycles in plain["cycles"].items()),
                    *(", ".join(f"{port} {busy:.2f}" for port, busy in ours["ports"][model].items())
                      for model in ours.get("ports", ())),
                ])  # fmt: skip
            header = ["array form", "gain", "corem / VML", "corem / SLEEF u10"]
            header += [f"cycles, {model}" for model in ours["cycles"]]
            header += [f"fullest ports, {model}" for model in ours.get("ports", ())]
            sections += [f"{level}, per element:", "", *table(header, rows), ""]
        rows = [
            [name, f"{row['corem_over']:.2f}",
             f"{row['corem_over_low']:.2f} to {row['corem_over_high']:.2f}"]
            for name, row in machine["operators"].items()
        ]  # fmt: skip
        header = ["`torch` operator on 2^16 elements", "corem / stock", "half of the rounds"]
        sections += [*table(header, rows), "", caption(machine["environment"]), ""]
    return "\n".join(sections) + f"\n`{results['quick_paths']['command']}`"


def scalar_forms(results: Results) -> str:
    """Return what corem's scalar forms cost, on each machine."""
    sections = []
    for machine in results["scalar_forms"]["machines"].values():
        rows = []
        for function, entry in machine["forms"].items():
            plain = entry.get("without short path")
            gain = f"{1 / plain['corem_over']:.2f}" if plain else ""
            peers = (entry.get(name) for name in ("glibc", "llvm-libc"))
            rows.append([
                function, f"{entry['corem']['ns']:.2f}", gain,
                *(f"{peer['corem_over']:.2f}" if peer else "" for peer in peers),
            ])  # fmt: skip
        header = ["scalar form", "ns", "gain", "corem / glibc", "corem / LLVM-libc"]
        load = machine["load"]
        sections += [
            *table(header, rows), "",
            f"{caption(machine['environment'])} Other processes ran beside the measurement: "
            f"{load['waiting']:g} wanted one of {load['processors']} processors when it began.", "",
        ]  # fmt: skip
    return "\n".join(sections) + f"\n`{results['scalar_forms']['command']}`"


def compiled_cpu(results: Results) -> str:
    """Return what the functions cost inside Inductor's C++."""
    document = results["compiled_cpu"]
    rows = []
    for name, case in document["cases"].items():
        ratio = case["corem_over_stock"]
        rows.append(
            [
                name,
                milliseconds(case["stock_ns"]["median"]),
                milliseconds(case["corem_ns"]["median"]),
                f"{ratio['median']:.2f}",
                f"{ratio['lower_quartile']:.2f} to {ratio['upper_quartile']:.2f}",
            ]
        )
    header = ["compiled, one thread", "stock, ms", "corem, ms", "corem / stock", "quartiles"]
    return _with_source(table(header, rows), document)


def patch(results: Results) -> str:
    """Return what a patched libtorch costs."""
    document = results["patch"]
    size, original = (sum(document[key].values()) for key in ("bytes", "original_bytes"))
    files = f"{len(document['bytes'])} files, {size / 1e6:.2g} MB"
    rows = [
        *((f"`--{n}`, wall clock".replace("make", "out"), seconds(t["median"]) + " s")
          for n, t in document["steps_ns"].items()),
        *((f"`import torch`, {name.split()[0]}, processor time", seconds(t["median"]) + " s")
          for name, t in document["import_ns"].items() if name.endswith("cpu")),
        (f"on disk; what it stands for has {original / 1e6:.0f} MB", files),
    ]  # fmt: skip
    header = [f"{document['library']}, {document['functions']} functions", "median"]
    return _with_source(table(header, rows), document)


def _maker(cpu: str) -> str:
    """Return a CPU's name without its marks: ``Intel Xeon``."""
    return " ".join(cpu.replace("(R)", "").replace("Processor", "").split())


def _measured_on(document: Mapping[str, Any]) -> str:
    """Return the CPU of a result, and its level where that is AVX2."""
    machine = document["environment"]["machine"]
    return _maker(machine["cpu"]) + (", AVX2" if machine["cpu_level"] == "avx2" else "")


def missed(results: Results, stem: str) -> str:
    """Return the targets that corem misses on one CPU."""
    speeds = results[stem]
    found = [f for f in asked.figures(speeds) if f.measured > f.limit]
    wider = (
        " VML is not judged at AVX2, where it runs its AVX-512 code."
        if speeds["environment"]["machine"]["cpu_level"] == "avx512"
        else ""
    )
    lines = [
        f"{len(found)} of {len(asked.figures(speeds))} targets are missed. The table gives the "
        "time of corem's array form over that of the other library; for operators, the time of the "
        f"operator under corem over that under std.{wider}",
        "",
        *table(
            ["what", "level", "against", "asked", "measured"],
            (
                [f.what, f.level, f.peer, f"{f.limit:.3g}", f"{f.measured:.2f}"]
                for f in sorted(found, key=lambda f: (f.level, -f.measured / f.limit))
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


def _ports(figures: Mapping[str, Any], model: str) -> str:
    """Return the fullest ports of a processor and the cycles that an element keeps them busy."""
    busy = figures.get("ports", {}).get(model, {})
    return ", ".join(f"{name} {cycles:.2f}" for name, cycles in busy.items())


def missed_code(results: Results, stem: str) -> str:
    """Return what the code of missed functions executes on one CPU, or nothing."""
    name = stem.replace("speed", "speed_analysis", 1)
    if name == "speed_analysis" or not results.has(name):
        return ""
    document = results[name]
    models = document["models"]
    rows = [
        [
            function,
            level,
            form,
            f"{figures['instructions']:.2f}",
            *(f"{figures['cycles'][m]:.2f}" for m in models),
            *(_ports(figures, m) for m in models),
        ]
        for function, entry in document["functions"].items()
        for level, forms in entry.items()
        for form, figures in forms.items()
    ]
    columns = [f"{what}, {m}" for what in ("cycles", "fullest ports") for m in models]
    lines = [
        "What the code of these functions executes, per element, and the fewest cycles that "
        "llvm-mca predicts for it, with the ports that it keeps busiest; gelu runs erf, and "
        "softmax, cross entropy, sigmoid and silu run the vector form of exp:",
        "",
        *table(["function", "level", "form", "instructions", *columns], rows),
    ]
    return _with_source(lines, document)


def analysis(results: Results) -> str:
    """Return executed instructions per element, by kind, or nothing where none are stored."""
    if not results.has("speed_analysis"):
        return ""
    document = results["speed_analysis"]
    models = document["models"]
    sections = []
    levels = dict.fromkeys(level for entry in document["functions"].values() for level in entry)
    for level in levels:
        rows = []
        for function, entry in document["functions"].items():
            for name, figures in entry.get(level, {}).items():
                kinds = sorted(figures["mix"].items(), key=lambda pair: -pair[1])
                shares = ", ".join(
                    f"{kind} {count / figures['instructions']:.0%}"
                    for kind, count in kinds
                    if count / figures["instructions"] >= 0.05
                )
                cycles = (f"{figures['cycles'][m]:.2f}" for m in models)
                rows.append([function, name, f"{figures['instructions']:.2f}", *cycles, shares])
        cycles_of = (f"cycles, {m}" for m in models)
        header = ["function", "form", "instructions", *cycles_of, "what they are"]
        sections.append("\n".join([f"{level}, per element:", "", *table(header, rows)]) + "\n")
    introduction = (
        "The instructions were counted by following each call step by step, fix-ups of hard "
        "inputs included. The cycles are the fewest that llvm-mca predicts for them on the "
        "processors that it models, with nothing to wait for.\n\n"
    )
    return introduction + "\n".join(sections) + "\n" + _with_source([], document).lstrip("\n")


def _with_source(lines: Sequence[str], document: dict[str, Any]) -> str:
    return "\n".join([*lines, "", _source(document), ""])


def _source(document: Mapping[str, Any]) -> str:
    environment = document["environment"]
    return (
        f"`{document['command']}`: {caption(environment)} UDFs compiled with "
        f"`{' '.join(environment['flags'])}`."
    )


def profile_structs(results: Results) -> str:
    """Return the bytes of the records of a profile; they come from the dtypes themselves."""
    kinds = {"u": "unsigned", "f": "float"}
    parts = []
    for name in ("CELL", "OPERATOR", "EVENT"):
        dtype = getattr(layout, name)
        rows = []
        for field, (kind, offset, *_) in dtype.fields.items():
            # As code: Markdown reads [a][b] as a link.
            size = "".join(f"[{n}]" for n in kind.shape)
            size = size and f"`{size}`"
            text = f"{kinds[kind.base.kind]} {kind.base.itemsize * 8}{size}"
            rows.append([str(offset), f"`{field}`", text])
        parts += [f"{name}, {dtype.itemsize:,} bytes:", ""]
        parts += [*table(["offset", "field", "type"], rows), ""]
    flags = ", ".join(f"{bit} `{flag}`" for bit, flag in enumerate(layout.EVENT_FLAGS))
    return "\n".join([*parts, f"Bits of `flags`: {flags}.", ""])


def _profile(name: str) -> Callable[[Results], str]:
    """Return what renders one of the profiler's tables."""

    def render(results: Results) -> str:
        if not results.has(name):
            return f"Not measured yet: `python -m benches.store {name}`.\n"
        return _with_source(render_profile.TABLES[name](results[name]), results[name])

    return render


def _trust(name: str) -> Callable[[Results], str]:
    """Return what renders a table of docs/trust.md, or nothing until it is measured."""

    def render(results: Results) -> str:
        return render_trust.TABLES[name](results[name]) if results.has(name) else ""

    return render


def _diff(name: str) -> Callable[[Results], str]:
    """Return what renders a table of docs/diagnose/diff.md."""

    def render(results: Results) -> str:
        if not results.has(name):
            return f"Not measured yet: `python -m benches.store {name}`.\n"
        return render_diff.TABLES[name](results[name])

    return render


def _tolerance(name: str) -> Callable[[Results], str]:
    """Return what renders a table of docs/diagnose/tolerance.md."""

    def render(results: Results) -> str:
        if not results.has(name):
            return f"Not measured yet: `python -m benches.store {name}`.\n"
        return render_tolerance.TABLES[name](results[name])

    return render


def _compile(name: str) -> Callable[[Results], str]:
    """Return what renders one of the tables of compiled models."""
    file, table = render_compile.TABLES[name]

    def render(results: Results) -> str:
        if not results.has(file):
            return "Not measured yet; the commands are below.\n"
        extra = {}
        if table in render_compile.BOUNDED and results.has("compile_bounds"):
            extra["bounds"] = results["compile_bounds"]
        return "\n".join([*table(results[file], **extra), ""])

    return render


def _cuda(name: str) -> Callable[[Results], str]:
    """Return what renders a table of docs/swap/cuda.md."""

    def render(results: Results) -> str:
        if not results.has(name):
            return f"Not measured yet: `python -m benches.store {name}`.\n"
        return render_cuda.TABLES[name](results[name])

    return render


def innocent_pairs(results: Results) -> str:
    """Return what the judge of pairs said of innocent and of faulty forms."""
    found = results["innocent_pairs"]
    rows = [
        (
            name,
            str(row["pairs"]),
            str(row["pairs"] - row["agree"]),
            f"{row['times_eager_most']:.1f}",
        )
        for name, row in found["innocent"].items()
    ]
    rows += [
        (
            f"fault: {name}", str(row["pairs"]), str(row["pairs"] - row["agree"]),
            f"{row['times_eager_least']:,.0f} (least)",
        )
        for name, row in found["faults"].items()
    ]  # fmt: skip
    lines = table(["form", "pairs", "accused", "farthest, times eager's distance"], rows)
    one = found["over_tolerance_by_one_eager_result"]
    text = (
        f"Of {found['innocent_pairs']:,} innocent pairs the check accuses "
        f"{len(found['accused'])} (by the eager result alone it would be {one}), and of "
        f"{found['faulty_pairs']} planted faults it misses {len(found['missed'])}:"
    )
    lines = [text, "", *lines, "", caption(found["environment"]), ""]
    if results.has("innocent_pairs_cuda"):
        other = results["innocent_pairs_cuda"]
        lines += [
            f"With forms on a GPU (without TF32), of {other['innocent_pairs']:,} innocent pairs "
            f"{len(other['accused'])} are accused, and of {other['faulty_pairs']} faults "
            f"{len(other['missed'])} are missed. {caption(other['environment'])}",
            "",
        ]
    return "\n".join(lines)


def interrupts(results: Results) -> str:
    """Return what was found after sessions that a signal handler interrupted."""
    found = results["interrupts"]
    kinds = {
        "trials": "trials",
        "interrupted": "interrupted in the session",
        "still_open": "still open, and closed when asked",
        "left_swapped": "left swapped",
        "left_changed": "modes or compiler left changed",
        "other_errors": "other errors",
    }
    rows = [
        (name, *(f"{row[kind]:,}" for kind in kinds))
        for name, row in found.items()
        if isinstance(row, dict) and "trials" in row
    ]
    return "\n".join([*table(["", *kinds.values()], rows), "", caption(found["environment"]), ""])


def exclusive(results: Results) -> str:
    """Return how many results mixed two libraries, and what exclusive sessions cost."""
    found = results["exclusive"]
    ways = {
        "ordinary": "ordinary sessions",
        "exclusive": "exclusive sessions",
        "within_exclusive": "ordinary ones within an exclusive one",
    }
    rows = []
    for way, name in ways.items():
        row = found["mixing"][way]
        opening = row["opening_ms"]
        rows.append([
            name, *(f"{row[kind]:,}" for kind in ("operators", "switches", "mixed")),
            f"{opening['median']:.3g} ms (up to {opening['max']:.3g})",
        ])  # fmt: skip
    head = ["", "operators", "switches", "mixed results", "opening, median"]
    costs = [
        (name, f"{row['plain_ns']:.0f} ns", f"{row['exclusive_ns']:.0f} ns", _ratio(row["ratio"]))
        for name, row in found["overhead"].items()
    ]
    cost_head = ["CPU time of a call", "ordinary", "exclusive", "ratio (quartiles)"]
    parts = [*table(head, rows), "", *table(cost_head, costs), "", caption(found["environment"])]
    return "\n".join([*parts, ""])


def switchboard(results: Results) -> str:
    """Return what sessions cost to open and close, and what boards cost without one."""
    found = results["switchboard"]

    def spread(row: dict[str, Any], unit: str) -> str:
        low, high = row["lower_quartile"], row["upper_quartile"]
        return f"{row['median']:.2g} {unit} ({low:.2g} to {high:.2g})"

    sessions = [
        (name, spread(row["entry_ms"], "ms"), spread(row["exit_ms"], "ms"))
        for name, row in found["sessions"].items()
    ]
    boards = [
        (name, f"{row['call_ns']['median']:.0f} ns", spread(row["board_ns"], "ns"))
        for name, row in found["boards"].items()
    ]
    first = [
        (name, spread(row["import_ms"], "ms"), f"{row['entry_ms']['median']:.0f} ms")
        for name, row in found["first"].items()
    ]
    first_head = ["first session of a process", "import of the package", "entry, CPU time"]
    head = ["session, after the first", "entry, CPU time (quartiles)", "exit"]
    boards_head = ["call of stock on one element", "without boards", "a board adds (quartiles)"]
    parts = [*table(first_head, first), "", *table(head, sessions), ""]
    parts += [*table(boards_head, boards), ""]
    return "\n".join([*parts, caption(found["environment"]), ""])


def cpu_operators(results: Results) -> str:
    """Return what the overridden CPU operators cost: two makers' CPUs, and AVX2."""
    return "\n".join(map(_cpu_operators, (results[n] for n in _CPU_OPERATORS)))


_CPU_OPERATORS = ("cpu_operators", "cpu_operators_intel", "cpu_operators_avx2")


def _cpu_operators(document: dict[str, Any]) -> str:
    rows = [
        (name, f"{row['stock_us']:.1f}", f"{row['session_us']:.1f}", _ratio(row["ratio"]))
        for name, row in document["operators"].items()
    ]
    return _with_source(
        table(["", "stock, µs", "session, µs", "ratio (quartiles)"], rows), document
    )


def special_functions(results: Results) -> str:
    """Return how far erfinv and lgamma are from the exact results, by stock and by a session."""
    document = results["special_functions"]
    names = ("stock", "session", "whole", "control")
    rows = [
        (
            name,
            *(
                f"{row[n]['max_ulp']:.2f} ({row[n]['wrong']:.2%})" if n in row else ""
                for n in names
            ),
        )
        for name, row in document["rows"].items()
    ]
    return _with_source(table(["", *names], rows), document)


#: Records of the contract's speed, one for each CPU.
_CONTRACT_SPEEDS = ("contract_speed", "contract_speed_amd")
_LEVEL_NAMES = {"avx512": "AVX-512", "avx2": "AVX2"}


def _cpu(document: Mapping[str, Any]) -> str:
    return _maker(document["environment"]["machine"]["cpu"])


#: Records of the orders of stock operators, one for each machine.
_TREES = (
    "summation_trees", "summation_trees_amd", "summation_trees_intel", "summation_trees_cuda",
)  # fmt: skip


def summation_trees(results: Results) -> str:
    """Return the orders in which stock operators add, by machine and CPU capability."""
    documents = [results[name] for name in _TREES if results.has(name)]
    return "\n".join(map(_trees, documents))


def _trees(document: dict[str, Any]) -> str:
    levels = list(document["orders"])
    rows = []
    for name in document["orders"][levels[0]]:
        cells = []
        for level in levels:
            row = document["orders"][level][name]
            cells.append(f"{row['kind']} ({row['digest'][:6]})" if "kind" in row else "not read")
        rows.append((name, *cells))
    tried = [r for o in document["orders"].values() for r in o.values() if "trials" in r]
    trials, wrong = sum(r["trials"] for r in tried), sum(r["differing"] for r in tried)
    said = f"Of {trials:,} sums of random terms, {wrong:,} differ from the order that was read."
    verdicts = [r for o in document.get("verdicts", {}).values() for r in o.values()]
    if verdicts:
        rows_tried = sum(r["trials"] for r in verdicts)
        equal = sum(r["trees_equal"] for r in verdicts)
        false = sum(r["trees_equal"] != (r["differing"] == 0) for r in verdicts)
        said += (
            f" A row of one of {len(verdicts) // len(levels)} operators has the same order alone "
            f"and among eight in {equal} of {len(verdicts)} cases: {rows_tried:,} random rows "
            f"refute {false or 'none'} of these verdicts."
        )
    return _with_source([*table(["", *levels], rows), "", said], document)


def taso_funnel(results: Results) -> str:
    """Return how many candidate substitutions each step left, beside the published counts."""
    document = results["taso_funnel"]
    funnels = document["funnels"]
    steps = {
        "enumerated": "enumerated",
        "fingerprint_equal": "fingerprint equal",
        "after_naming": "after naming",
        "after_smaller": "after smaller",
        "after_renaming": "after renaming",
        "after_common_subgraphs": "after common subgraphs",
        "verified": "verified",
        "shortcuts": "shortcuts",
        "candidates": "of use to a search",
        "several_roots": "with several roots",
        "kept": "rules kept",
    }
    header = ["family", "operators", *steps.values(), "seconds"]
    rows = [
        (f["family"], str(f["operators"]), *(f"{f[s]:,}" for s in steps), f"{f['seconds']:.0f}")
        for f in funnels
    ]
    published = document["published"]
    said = (
        f"Published for TASO: {published['enumerated']:,} graphs of up to "
        f"{published['operators']} operators, {published['after_fingerprints']:,} substitutions "
        f"after fingerprints, {published['after_pruning']:,} after pruning."
    )
    said += (
        " Verified are pairs of the base, from which the others follow; shortcuts are pairs that "
        "leave less to compute."
    )
    return _with_source([*table(header, rows), "", said], document)


def _cost(detail: dict[str, Any]) -> str:
    """Return a rule that matched and was not chosen, and what its region cost."""
    before, after = (detail[f"{when}_ns"] / 1000 for when in ("before", "after"))
    return f"`{detail['rule']}` matched, {before:,.0f} us before and {after:,.0f} with it"


def taso_examples(results: Results) -> str:
    """Return whether the papers' merges are found, with kernels and times before and after."""
    document = results["taso_examples"]
    rows = []
    for row in document["rows"]:
        own = ", ".join(f"`{rule}` {times}" for rule, times in row["own"].items())
        lost = "; ".join(map(_cost, row["matched"][:2])) or "no rule matched"
        times = {name: value / 1000 for name, value in row["median_ns"].items()}
        kernels = row["kernels"]
        rows.append(
            (
                row["example"],
                row["what"],
                own or f"not chosen: {lost}",
                f"{kernels['as traced']}, {kernels['udf_templates']}, {kernels['udf_taso']}",
                f"{times['udf_templates']:,.0f}",
                f"{times['udf_taso']:,.0f}",
                _interval(row["over"]["udf_templates"]) if own else "the same graph",
                f"{times['inductor']:,.0f}",
            )
        )
    header = ["example", "merge of the paper", "found by rules", "kernels traced, folded, merged",
              "templates alone, us", "`udf_taso`, us", "times as fast (95 %)",
              "TorchInductor, us"]  # fmt: skip
    said = (
        f"Batches of one image or 64 tokens, float32, random weights, {document['threads']} "
        f"threads; medians of {document['runs']} turns. A graph is chosen by the sum of its "
        "measured calls and kept whatever its time (`gain=0`), so a ratio below 1 is a gain of the "
        "calls alone that the whole graph does not have."
    )
    return _with_source([*table(header, rows), "", said], document)


def _warmth(document: dict[str, Any]) -> str:
    """Return how SystemDS was timed, and whether its calls had become as fast as they will."""
    known = [c["systemds_ns"] for c in document["cases"].values() if c["systemds_ns"]]
    if not known:
        return f"SystemDS: {document['systemds']}."
    still = [t["half"] / t["warm"] for t in known]
    warm, timed = document["systemds_calls"]
    return (
        f"{document['systemds']}, in one process of Java: the median of {timed} calls after {warm} "
        f"that are not timed. The first half of the {timed} took {min(still):.2f} to "
        f"{max(still):.2f} of the time of all, where 1 says that Java had compiled what it will."
    )


def _over(eager: float, time: float | None) -> str:
    return "not measured" if time is None else f"{eager / time:.2f}"


#: SystemDS' fused operators that are not generated.
_FUSED = ("wcemm", "wsloss", "wdivmm", "mmchain", "tak+*", "+*")


def _own_operators(case: dict[str, Any]) -> str:
    """Return the fused operators that SystemDS ran: generated ones, and those that it has."""
    found = case["systemds_ns"] or {"operators": {}}
    own = [n for n in found["operators"] if n.startswith("spoof") or n in _FUSED]
    return ", ".join(f"`{name}`" for name in sorted(own)) or "none"


def fusion_plans(results: Results) -> str:
    """Return the times of fusion plans beside eager mode, TorchInductor, JAX and SystemDS."""
    document = results["fusion_plans"]
    rows = []
    for name, case in document["cases"].items():
        eager = case["median_ns"]["eager"]
        low, ratio, high = case["speedup"]["udf_fusion"]
        beside = case["systemds_ns"]
        kernels = ", ".join(f["rule"] for f in case["report"]["fired"] if f["rule"][0].isupper())
        rows.append(
            (
                name,
                kernels or "left alone",
                f"{eager / 1e6:.1f}",
                _over(eager, case["median_ns"]["inductor"]),
                _over(eager, case["median_ns"].get("jax")),
                f"{ratio:.2f} ({low:.2f} to {high:.2f})",
                _over(eager, beside and beside["warm"]),
                _own_operators(case),
            )
        )
    loads = [case["load"] for case in document["cases"].values()]
    said = (
        f"Functions of {document['library']}, one core, {document['scale']:g} of the full sizes. "
        "Ratios say how many times as fast as eager mode; in brackets the 95 % interval. "
        f"{document['jax']}. {_warmth(document)} Operators that begin with `spoof` are generated "
        f"from its plans. Other work shared the core: load averages of {min(loads):.0f} to "
        f"{max(loads):.0f} on {document['environment']['machine']['cores']} cores. Contenders but "
        "SystemDS took turns."
    )
    header = ["case", "kernels", "eager, ms", "Inductor", "JAX", "udf_fusion", "SystemDS",
              "its fused operators"]  # fmt: skip
    return _with_source([*table(header, rows), "", said], document)


def _with_range(row: dict[str, Any], name: str, unit: float, digits: int) -> str:
    """Return a median of rounds, and in brackets the least and the largest if there are several."""
    text = f"{row[name] / unit:.{digits}f}"
    if "range" not in row:
        return text
    low, high = (edge / unit for edge in row["range"][name])
    return f"{text} ({low:.{digits}f} to {high:.{digits}f})"


def _over_eager(row: dict[str, Any], eager: dict[str, Any]) -> str:
    """Return how many times as fast as eager mode a way's median call is."""
    if row is eager:
        return "1"
    if "times_as_fast" not in row:
        return f"{eager['median_ns'] / row['median_ns']:.2f}"
    low, ratio, high = row["times_as_fast"]
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def _shared(document: dict[str, Any]) -> str:
    """Return how much other work shared the cores."""
    if "load" not in document:
        return "Other work shared the cores."
    cores = document["environment"]["machine"]["cores"]
    return (
        f"Other work shared the cores (load average {document['load']:.0f} on {cores} at the "
        "beginning), so take the ranges, not the times."
    )


def recompilation(results: Results) -> str:
    """Return what ways of compiling cost and gain while the sizes of the inputs change."""
    document = results["recompilation"]
    lines: list[str] = []
    header = ["way", "all calls, s", "compilations", "of it compiling, s", "median call, ms",
              "times as fast as eager", "break-even, calls", "torch's limit"]  # fmt: skip
    for workload, rows in document["workloads"].items():
        found = []
        for way, row in rows.items():
            even = row["break_even_calls"]
            found.append(
                (
                    f"`{way}`",
                    _with_range(row, "seconds", 1, 1),
                    str(row["compilations"]),
                    _with_range(row, "compile_seconds", 1, 1),
                    _with_range(row, "median_ns", 1e6, 2),
                    _over_eager(row, rows["eager"]),
                    "-" if even is None else f"{even:,}",
                    "reached" if row["limit_reached"] else "",
                )
            )
        sizes = max(row["sizes"] for row in rows.values())
        calls = rows["eager"].get("calls", document["calls"])
        lines += [f"{workload} ({calls:,} calls, {sizes} sizes):", ""]
        lines += [*table(header, found), ""]
        own = {way: row for way, row in rows.items() if way.startswith("by_size")}
        if all("over_best" in row for row in own.values()):
            best = next(iter(own.values()))["best_uniform"]
            beside = [f"`{way}` {_interval(row['over_best'])}" for way, row in own.items()]
            lines += [f"In all calls, times as fast as `{best}`, the best of the others: "
                      f"{'; '.join(beside)}.", ""]  # fmt: skip
    rounds = document.get("rounds", 1)
    said = (
        f"Medians of {rounds} rounds, in brackets the least and the largest. In each round every "
        "way ran once, in random order, "
        if rounds > 1
        else "Each way ran once, "
    )
    said += (
        "in a process of its own with an empty cache of compiled code. Ratios are of median calls"
        f"{' of one round' if rounds > 1 else ''}. {_shared(document)} Break-even is the "
        "number of calls after which the time spent on compiling is saved over eager mode, at the "
        "speed of the last quarter of the calls. Where torch's limit was reached, sizes that came "
        "later ran interpreted."
    )
    idle = [
        f"`{way}` ({workload})"
        for workload, rows in document["workloads"].items()
        for way, row in rows.items()
        if way != "eager" and row["compilations"] == 0
    ]
    if idle:
        said += (
            f" Nothing was compiled by {' and '.join(idle)}: there the same code as in eager mode "
            "ran, and what the ratio differs from 1 is the measurement's own error."
        )
    return _with_source([*lines, said], document)


def tiled_pipelines(results: Results) -> str:
    """Return the times of pipelines tile by tile, beside eager mode, Inductor and dask."""
    document = results["tiled_pipelines"]
    contenders = list(next(iter(document["cases"].values()))["median_ns"])
    rows = []
    for name, row in document["cases"].items():
        eager = row["median_ns"]["eager"]
        over = [f"{eager / row['median_ns'][c]:.2f}" for c in contenders[1:]]
        rows.append((name, f"{row['input_bytes'] / 1e6:.0f}", f"{eager / 1e6:.0f}", *over))
    beyond = document["beyond"]
    gib = 2**30
    said = (
        f"{document['threads']} threads, L2 cache of {document['l2_bytes'] / 2**20:g} MiB, dask "
        f"{document['dask']}. Ratios say how many times as fast as eager mode. Beyond the memory: "
        f"the polynomial of {beyond['data_bytes'] / gib:.1f} GiB, on a machine of "
        f"{beyond['memory_bytes'] / gib:.1f} GiB, takes {beyond['seconds']['tiled on dask']:.0f} s "
        f"tiled on dask and {beyond['seconds']['dask alone']:.0f} s on dask alone, with at most "
        f"{beyond['peak_bytes'] / gib:.1f} GiB in use."
    )
    header = ["pipeline", "input, MB", "eager, ms", *contenders[1:]]
    return _with_source([*table(header, rows), "", said], document)


#: The backend whose own rules are the templates, with which the others begin.
_TEMPLATES = "udf_templates"


def _rules(row: dict[str, Any], kind: str, mine: bool | None = None) -> str:
    """Return the rules that fired (or were tried) in the graphs of a model, and how often.

    ``mine`` chooses those of the row's backend alone, or those of the templates before them.
    """
    fired: dict[str, int] = {}
    for graph in row["graphs"]:
        for rule, times in graph[kind].items():
            fired[rule] = fired.get(rule, 0) + times
    known = fired if row["backend"] == _TEMPLATES else own(fired)
    chosen = {r: n for r, n in fired.items() if mine is None or (r in known) == mine}
    return ", ".join(f"{rule} {times}" for rule, times in chosen.items()) or "none"


def _over_templates(row: dict[str, Any]) -> str:
    """Return what a row's own rules gain over the templates alone."""
    if row["backend"] == _TEMPLATES:
        return "the base line"
    if _rules(row, "fired", mine=True) == "none":
        return "the same graph"
    return _interval(row["over_udf_templates"])


def _changed(row: dict[str, Any], count: str, unit: float = 1) -> str:
    """Return a count of all graphs before and after, as one figure where both are the same."""
    graphs = [g for g in row["graphs"] if g["before"]]
    values = [
        sum((g[when] or g["before"])[count] for g in graphs) / unit for when in ("before", "after")
    ]
    before, after = (f"{v:,.0f}" if unit == 1 else f"{v:,.2f}" for v in values)
    return before if before == after else f"{before} to {after}"


def _place(row: dict[str, Any]) -> str:
    """Return the machine of a row."""
    own = row["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in own["versions"].items())
    if own["gpu"]:
        return f"{own['gpu']}, {versions}, {own['date']}"
    return f"{own['cpu']}, {own['threads']} threads, {versions}, {own['date']}"


def _interval(values: Sequence[float]) -> str:
    low, ratio, high = values
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def _joined(lines: Sequence[str], document: dict[str, Any]) -> str:
    """Return lines of rows that name their machines, with the command that joined them."""
    flags = " ".join(f for f in document["environment"]["flags"] if not f.startswith("-m"))
    said = f"`{document['command']}`. UDFs compiled with `{flags}` and the CPU's level."
    return "\n".join([*lines, "", said, ""])


def rewriting_gains(results: Results) -> str:
    """Return the rules that fired on whole models, what they changed, and what they gained."""
    document = results["rewriting_gains"]
    header = ["model, batch", "backend", "own rules and how often", "templates before them",
              "found, but not faster", "kernels", "MB moved", "GFLOP", "search, s",
              "as fast as templates alone (95 %)", "as TorchInductor", "as the traced graph",
              "as eager mode"]  # fmt: skip
    lines = []
    every = sorted(document["rows"], key=lambda row: row["device"], reverse=True)
    for place in dict.fromkeys(map(_place, every)):
        mine = [row for row in every if _place(row) == place]
        title = f"On a {'GPU' if mine[0]['machine']['gpu'] else 'CPU'} ({place}):"
        rows = []
        for row in mine:
            tried = _rules(row, "tried")
            lost = [_cost(c) + (f" ({c['why']})" if c["why"] else "") for c in row.get("lost", ())]
            lost = [*([] if tried == "none" else [tried]), *lost]
            alone = "; ".join(filter(None, (g["left_alone"] for g in row["graphs"])))
            cut = any(g["cut"] for g in row["graphs"])
            rows.append(
                (
                    f"{row['model']}, {row['batch']}",
                    f"`{row['backend']}`",
                    f"left alone: {alone}" if alone else _rules(row, "fired", mine=True),
                    "" if row["backend"] == _TEMPLATES else _rules(row, "fired", mine=False),
                    "; ".join(lost),
                    _changed(row, "kernels"),
                    _changed(row, "bytes_moved", 1e6),
                    _changed(row, "flops", 1e9),
                    f"{row['search_seconds']:.1f}{'*' if cut else ''}",
                    _over_templates(row),
                    _interval(row["over_inductor"]) if "over_inductor" in row else "",
                    _interval(row["over_traced"]),
                    _interval(row["speedup"]),
                )
            )
        loads = [row["machine"]["load"] for row in mine]
        beside = f"Load averages of {min(loads):.1f} to {max(loads):.1f} when they were measured."
        lines += [title, "", *table(header, rows), "", beside, ""]
    longest = max(row["search_seconds"] for row in document["rows"])
    said = (
        f"Images of {document['image']} x {document['image']}; BERT of {document['layers']} layers "
        f"and the block: width {document['width']}, {document['tokens']} tokens; float32. Ratios "
        "say how many times as fast a model was as those with which it took turns. The templates "
        "are the base line: each backend applies them first, and only what its own rules add is "
        "its gain. Where no rule fired, the graph runs as Dynamo traced it, and that ratio is "
        "what the measurement and the backend's call make of 1. The search is "
        "the first call, with rewriting, measuring and checking; the longest took "
        f"{longest:.0f} s. In those with a star the time for some step was over."
    )
    if document["failed"]:
        failed = [f"{r['model']}, {r['batch']}, {r['backend']} on {r['device']} ({r['failed']})"
                  for r in document["failed"]]  # fmt: skip
        said += f" Failed: {'; '.join(failed)}."
    if document["left_out"]:
        left = (f"{case} ({', '.join(names)})" for case, names in document["left_out"].items())
        said += f" Not measured: {'; '.join(left)}."
    return _joined([*lines, said], document)


def pet_convolutions(results: Results) -> str:
    """Return the times of mutants of ResNet's convolutions, and of their corrections."""
    document = results["pet_convolutions"]
    rows = []
    for row in document["rows"]:
        times = row["times"]
        if times is None:
            continue
        channels, high, wide, outputs, kernel, stride, _, dilation = row["convolution"]
        mutant, whole, stock = (times[f"{n}_ns"] / 1000 for n in ("mutant", "corrected", "stock"))
        correction = f"{len(times['regions'])} regions, {max(0.0, whole - mutant):,.0f}"
        rows.append(
            (
                f"{channels} x {high} x {wide}, {row['batch']}",
                f"{kernel[0]} x {kernel[1]} to {outputs}",
                str(stride[0]),
                str(dilation[0]),
                row["device"],
                times["name"],
                f"{mutant:,.0f}",
                correction if times["regions"] else "none",
                f"{stock:,.0f}",
                f"{stock / whole:.2f}",
            )
        )
    none = sum(row["times"] is None for row in document["rows"])
    loads = [row["machine"]["load"] for row in (*document["rows"], *document["chains"])]
    places = "; ".join(dict.fromkeys(map(_place, document["rows"])))
    said = (
        f"ResNet-50 of torchvision, images of {document['image']} x {document['image']}, medians "
        f"of {document['runs']} runs; dilations are those of `replace_stride_with_dilation`. Of "
        f"each convolution's mutants the fastest one is shown. No mutant fits {none} more: a batch "
        f"of one image has none to put side by side. {places}; other work shared the machine: load "
        f"averages of {min(loads):.0f} to {max(loads):.0f}, contenders took turns."
    )
    header = ["image, batch", "kernel", "stride", "dilation", "device", "mutant", "mutant, us",
              "its correction, us", "convolution, us", "times as fast, corrected"]  # fmt: skip
    return _joined([*_chains(document), "", *table(header, rows), "", said], document)


def _chains(document: dict[str, Any]) -> list[str]:
    """Return the times of chains of linear operators, and of the chains in their place."""
    rows = []
    for row in document["chains"]:
        times = row["times"]
        if times is None:
            rows.append((row["chain"], str(row["batch"]), "none", *[""] * 5))
            continue
        us = {n: times[f"{n}_ns"] / 1000 for n in ("mutant", "corrected", "stock")}
        rows.append(
            (
                row["chain"],
                str(row["batch"]),
                f"{times['name']}, of {times['tried']}",
                f"{times['needed']:,}",
                f"{times['regions']} regions" if times["regions"] else "none",
                f"{us['corrected']:,.0f}",
                f"{us['stock']:,.0f}",
                f"{us['stock'] / us['corrected']:.2f}, {times['verdict']}",
            )
        )
    header = ["chain", "batch", "the fastest other chain", "positions needed by the box test",
              "correction", "with it, us", "the chain, us", "times as fast"]  # fmt: skip
    return table(header, rows)


def _extremes(ratios: dict[str, float], over: str) -> list[str]:
    """Return two lines: where a system gains most over another, and where least."""
    lines = []
    for way, pick in (("Most", max), ("Least", min)):
        place = pick(ratios, key=lambda name: ratios[name])
        lines.append(f"    - {way}: {place}, {ratios[place]:.2f} times as fast as {over}.")
    return lines


def _decided(known: Sequence[dict[str, Any]]) -> list[str]:
    """Return two lines: the models that a backend's own rules change, and the others."""
    kept = [row for row in known if _rules(row, "fired", mine=True) != "none"]
    wins, losses = [], []
    for row in kept:
        templates = row["backend"] == _TEMPLATES
        over = row["over_traced"] if templates else row["over_udf_templates"]
        text = f"{row['model']} at batch {row['batch']}, {_interval(over)}"
        (wins if over[1] >= 1 else losses).append(text)
    none = [f"{r['model']} at batch {r['batch']}" for r in known if r not in kept]
    lost = f" Slower than measured in the search: {'; '.join(losses)}." if losses else ""
    return [
        f"    - Wins: {'; '.join(wins) or 'on none of those measured'}.",
        f"    - No rule of its own is kept: {'; '.join(none) or 'nowhere'}.{lost}",
    ]


def _mutants(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return two lines: the convolutions where a corrected mutant gains most, and least."""
    ratios = {}
    for row in rows:
        if row["times"] is not None:
            channels, high, wide, _, kernel, stride, _, dilation = row["convolution"]
            name = (
                f"{channels} x {high} x {wide}, kernel {kernel[0]}, stride {stride[0]}, dilation "
            )
            name += f"{dilation[0]}, batch {row['batch']} (`{row['times']['name']}`)"
            ratios[name] = row["times"]["stock_ns"] / row["times"]["corrected_ns"]
    return _extremes(ratios, "the convolution")


def rewriting_wins(results: Results) -> str:
    """Return two lines for each system: where it wins, and where it loses."""
    lines = []
    rows = results["rewriting_gains"]["rows"]
    for backend in dict.fromkeys(row["backend"] for row in rows):
        for device, where in (("cuda", "a GPU"), ("cpu", "a CPU")):
            mine = [r for r in rows if r["backend"] == backend and r["device"] == device]
            if mine:
                over = "the traced graph" if backend == _TEMPLATES else "templates alone"
                lines += [f"- `{backend}`, models on {where}, over {over}:"]
                lines += _decided(mine)
    for device, where in (("cuda", "a GPU"), ("cpu", "a CPU")):
        mine = [r for r in results["pet_convolutions"]["rows"] if r["device"] == device]
        if mine:
            lines += [f"- `udf_pet`, ResNet's convolutions on {where}:", *_mutants(mine)]
    pipelines = results["fusion_plans"]["cases"]
    for over, name in (("inductor", "TorchInductor"), ("systemds", "SystemDS"), ("jax", "JAX")):
        beside = {}
        for case, found in pipelines.items():
            own = found["systemds_ns"] if over == "systemds" else found["median_ns"]
            time = own and own.get("warm" if over == "systemds" else over)
            if time:
                beside[case] = time / found["median_ns"]["udf_fusion"]
        if beside:
            lines += [f"- `udf_fusion`, SystemDS' cases, beside {name}:", *_extremes(beside, name)]
    tiles = results["tiled_pipelines"]["cases"]
    for over in ("eager", "inductor"):
        ratios = {n: c["median_ns"][over] / c["median_ns"]["tiled, static"]
                  for n, c in tiles.items()}  # fmt: skip
        name = {"eager": "eager mode", "inductor": "TorchInductor"}[over]
        lines += [f"- `tiled`, beside {name}:", *_extremes(ratios, name)]
    said = "The figures are those of the tables on this page; each names its machine."
    return "\n".join([*lines, "", said]) + "\n"


def contract_digests(results: Results) -> str:
    """Return the digests of weights after training, on two machines."""
    document, other = results["contract_digests"], results["contract_digests_intel"]
    there = {_run(r): r["digest"] for r in other["runs"]}
    rows = [(*_run(r), *(f"`{d[:12]}`" for d in (r["digest"], there[_run(r)])))
            for r in document["runs"]]  # fmt: skip
    said = f"{document['model']}, {document['steps']} steps. The first twelve digits of SHA-256."
    machines = [d["environment"]["machine"]["cpu"].split("(")[0] for d in (document, other)]
    header = ["library", "torch's kernels", "threads", *(f"weights, {m}" for m in machines)]
    second = f"{machines[1]}: {caption(other['environment'])}"
    return _with_source([*table(header, rows), "", said, "", second], document)


def exact_products(results: Results) -> str:
    """Return how far products of 16 bits are from float64, over stock's."""
    document = results["exact_products"]
    labels = list(document["rows"][0]["errors"])
    rows = [
        (row["dtype"], row["case"], *(f"{row['errors'][label]:.2f}" for label in labels))
        for row in document["rows"]
    ]
    said = (
        "Root mean square error over that of stock's product in the dtype of the row. A column "
        "names the bits of integers, the products of digits that are added, and the length of a "
        "chunk; "
        f"the contract takes: {document['chosen']}. Rows of models are geometric means over their "
        f"linear layers, after {document['steps']} steps of training, but for random weights. k is "
        f"{document['k']:,} where no row says another. `benches/experiments/exact_products.py` "
        "describes the rows."
    )
    products = [*table(["dtype", "product", *labels], rows), "", said]
    attention = [
        (row["case"], f"{row['length']:,}",
         *(f"{of[name]:.2f}" for of in (row["all"], row["others"]) for name in of))
        for row in document["attention"]
    ]  # fmt: skip
    names = list(document["attention"][0]["all"])
    head = ["causal attention", "length", *names, *(f"{name}, other channels" for name in names)]
    said = (
        "The same error of attention in bfloat16 and of the gradients of query, key and value, of "
        "all channels and of those that are not the loud one."
    )
    errors = [*products, "", *table(head, attention), "", said]
    speeds = [
        (name, f"{row['stock_us'] / 1e3:.2f}", f"{row['session_us'] / 1e3:.2f}",
         _share_of_speed(row["speed"]))
        for name, row in document["speeds"].items()
    ]  # fmt: skip
    head = ["bfloat16, one thread", "stock, ms", "repro, ms", "share of stock's speed"]
    return _with_source([*errors, "", *table(head, speeds)], document)


def exact_products_cuda(results: Results) -> str:
    """Return the speed of exact products on a GPU, as a share of stock's products in bfloat16."""
    document = results["exact_products_cuda"]
    rows = [
        (f"{r['m']:,} × {r['k']:,} × {r['n']:,}", r["dtype"], r["layout"],
         f"{r['ns']['std']['median'] / 1e3:.1f}", f"{r['ns']['repro']['median'] / 1e3:.1f}",
         _share_of_speed(r["std_over_repro"]))
        for r in document["shapes"]
    ]  # fmt: skip
    said = (
        "Medians of products replayed from CUDA graphs, stock and repro in turns; the digits of "
        "both factors in bfloat16 are made in each. In brackets the middle half."
    )
    head = ["m × k × n", "", "layout", "stock, µs", "repro, µs", "stock's time over repro's"]
    attended = []
    for r in document["attention"]:
        for what in ("forward", "with gradients"):
            ns = r[what]["ns"]
            attended.append((
                f"{r['samples']} × {r['length']:,}", what,
                *(f"{ns[library]['median'] / 1e3:,.0f}" for library in ("std", "repro")),
                _share_of_speed(r[what]["std_over_repro"]),
            ))  # fmt: skip
    of = (
        "Causal attention of 32 heads of 64 numbers, which share keys and values by four, likewise."
    )
    columns = ["samples × length", "", *head[3:]]
    return _with_source(
        [*table(head, rows), "", said, "", *table(columns, attended), "", of], document
    )


def contract_digests_cuda(results: Results) -> str:
    """Return the digests of weights after training on GPUs and their CPUs."""
    names = ("contract_digests_cuda_h100", "contract_digests_cuda")
    return render_cuda.contract([results[name] for name in names if results.has(name)])


def contract_aarch64(results: Results) -> str:
    """Return the digests of weights after training on aarch64 and here."""
    document = results["contract_aarch64"]
    emulator = document["emulator"].split(" (")[0]
    where = {"aarch64": f"aarch64 ({document['cpu']}, {emulator})", "x86_64": "x86-64"}
    rows = [
        (r["library"], where[r["processor"]], r["capability"], r["torch"], f"`{r['digest'][:12]}`")
        for r in document["runs"]
    ]
    header = ["library", "processor", "torch's kernels", "torch", "weights"]
    said = f"LeNet, batch 50, SGD, {document['steps']} steps, one thread."
    return _with_source([*table(header, rows), "", said], document)


def contract_operators(results: Results) -> str:
    """Return the models that call operators outside the contract, and whether weights agree."""
    document = results["contract_operators"]
    rows = []
    for row in document["models"]:
        if row["outside"]:
            names = ", ".join(f"`{name}`" for name in row["outside"])
            same = len(set(row["digests"])) == 1
            rows.append((row["model"], names, "the same" if same else "differ"))
    inside = [r for r in document["models"] if not r["outside"]]
    agree = sum(len(set(r["digests"])) == 1 for r in inside)
    said = (
        f"{len(inside)} of {len(document['models'])} models call nothing outside. Of these, "
        f"{agree} have the same weights after {document['steps']} steps of AdamW at both CPU "
        f"levels and numbers of threads ({'; '.join(document['places'])})."
    )
    header = ["model", "outside the contract", "weights"]
    shown = ["", *table(header, rows)] if rows else []
    return _with_source([said, *shown], document)


def same(results: Results) -> str:
    """Return what ways agree, model by model."""
    document = results["same"]
    said = f"{render_same.summary(document)} {render_same.strict(document)}"
    lines = [said, "", *render_same.all_models(document)]
    refused = render_same.refusals(document)
    before = [
        f"{len(e['subjects'])} of the models were measured before: {caption(e['environment'])}"
        for e in document.get("earlier", ())
    ]
    more = [line for part in (refused, before) if part for line in ("", *part)]
    return _with_source([*lines, *more], document)


def same_planted(results: Results) -> str:
    """Return which planted faults are named."""
    document = results["planted_sameness"]
    return _with_source(render_same.planted(document, results["same"]), document)


def on_policy(results: Results) -> str:
    """Return how far sampler and trainer are apart in TRL's trainer."""
    document = results["on_policy"]
    return _with_source(render_same.on_policy(document), document)


def resumed_trainers(results: Results) -> str:
    """Return whether trainers go on from a checkpoint with the same weights."""
    document = results["resumed_trainers"]
    return _with_source(render_same.resumed(document), document)


def same_one(results: Results) -> str:
    """Return the ways of one model under three libraries."""
    document = results["same"]
    before = [e for e in document.get("earlier", ()) if render_same.SHOWN in e["subjects"]]
    return _with_source(render_same.one_model(document), {**document, **(before or [{}])[0]})


def same_short(results: Results) -> str:
    """Return the ways of one model in which stock differs, and the sum over all models."""
    document = results["same"]
    lines = [*render_same.where_stock_differs(document), "", render_same.summary(document)]
    return "\n".join([*lines, ""])


def contract_speed(results: Results) -> str:
    """Return the speed of the contract's operators and of training steps as shares of stock's."""
    documents = [results[name] for name in _CONTRACT_SPEEDS if results.has(name)]
    columns = {
        f"{_cpu(d)}, {_LEVEL_NAMES[level]}": d["levels"][level]
        for d in documents
        for level in d["levels"]
    }
    first = documents[0]
    rows = [
        (name, *(_share_of_speed(c[kind][name]["speed"]) for c in columns.values()), f"{share:g}")
        for kind, share in first["asked"].items()
        for name in next(iter(columns.values()))[kind]
    ]
    said = (
        "The speed of stock is 1: medians of CPU time, one thread, and in brackets the middle half "
        f"of {first['turns']} turns, which alternate with stock's and begin with as "
        "many calls that are not timed. At AVX2, MKL and oneDNN are held to AVX2. Other work ran "
        "beside it."
    )
    sources = [line for d in documents for line in ("", _source(d))]
    return "\n".join([*table(["call", *columns, "asked"], rows), "", said, *sources]) + "\n"


def contract_small(results: Results) -> str:
    """Return what small models take under the contract, over stock's time."""
    return _models_over_stock(results["contract_small"], ("model",))


def corem_models(results: Results) -> str:
    """Return what whole models take under corem on the CPU, over stock's time."""
    return _models_over_stock(results["corem_models"], ("model", "precision"))


def _models_over_stock(document: Mapping[str, Any], names: tuple[str, ...]) -> str:
    levels, asked = document["levels"], document["asked"]

    def over_stock(row: Mapping[str, Any]) -> str:
        speed = row["speed"]
        low, high = 1 / speed["upper_quartile"], 1 / speed["lower_quartile"]
        return f"{1 / speed['median']:.2f} ({low:.2f} to {high:.2f})"

    kinds = {"step": "training step"}
    columns = [
        f"{kinds.get(kind, kind)}, {_LEVEL_NAMES[level]}" for level in levels for kind in asked
    ]
    rows = [
        (
            ", ".join(both[0][name] for name in names),
            *(over_stock(row[kind]) for row in both for kind in asked),
        )
        for both in zip(*levels.values(), strict=True)
    ]
    asked_row = ("asked", *(f"{share:g}" for _ in levels for share in asked.values()))
    said = (
        "The time of stock is 1: medians of CPU time, one thread, and in brackets the middle half "
        "of the turns."
    )
    found = [*table(["model, batch 2", *columns], [*rows, asked_row]), "", said, ""]
    return "\n".join([*found, _source(document), ""])


def contract_small_cuda(results: Results) -> str:
    """Return what models take on a GPU under corem and repro, over stock's time."""
    document = results["contract_small_cuda"]
    asked = document["asked"]

    def over_stock(row: Mapping[str, Any], library: str) -> str:
        found = row[library]
        shown = (
            f"{found['median']:.2f} ({found['lower_quartile']:.2f} to "
            f"{found['upper_quartile']:.2f})"
        )
        small = {
            "training step": "training step of a small model",
            "training step, autocast to bfloat16": "the same in bfloat16",
        }
        limit = asked[library].get(small.get(row["what"], row["what"]))
        return shown if limit is None else f"{shown}, asked {limit:g}"

    rows = [
        (row["model"], row["what"], f"{row['stock_ms']['median']:.1f}",
         *(over_stock(row, library) for library in ("corem", "repro")),
         f"{row['bytes']['repro'] / row['bytes']['stock']:.2f}" if "bytes" in row else "")
        for row in document["rows"]
    ]  # fmt: skip
    said = (
        f"The time of stock is 1: medians of {document['turns']} turns, and in brackets their "
        "middle half. The last column has repro's peak memory over stock's. The small models train "
        "on two samples. The Llama has bfloat16, "
        f"batch {document['batch']} of {document['length']} tokens; *decode* is "
        f"{document['tokens']} tokens with a cache. *First tokens* is each of the first "
        f"{document['tokens']} of a process."
    )
    head = ["model", "what", "stock, ms", "corem", "repro", "memory"]
    return "\n".join([*table(head, rows), "", said, "", _source(document), ""])


def _share_of_speed(found: Mapping[str, float]) -> str:
    low, high = found["lower_quartile"], found["upper_quartile"]
    return f"{found['median']:.2f} ({low:.2f} to {high:.2f})"


def contract_models(results: Results) -> str:
    """Return how many digests the runs of each model end with, and what first made them differ."""
    document = results["contract_models"]
    rows = []
    for row in document["rows"]:
        digests = [run["digest"] for run in row["runs"]]
        causes = {
            entry["other"]: f"step {entry['step']}, `{entry['operator']}` in `{entry['layer']}`"
            for entry in row["differs"]
        }
        same = f"`{digests[0][:12]}`" if len(set(digests)) == 1 else f"{len(set(digests))} digests"
        first = (causes.get(k, "") for k in ("threads", "capability"))
        rows.append((row["model"], row["optimizer"], row["library"], same, *first))
    header = ["model", "optimizer", "library", "weights", "another number of threads",
              "another CPU level"]  # fmt: skip
    places = {(run["capability"], run["threads"]) for run in document["rows"][0]["runs"]}
    said = [f"- {name}: {m['label']}, {m['steps']} steps" for name, m in document["models"].items()]
    levels = ", ".join(sorted({c for c, _ in places}))
    threads = " and ".join(str(t) for t in sorted({t for _, t in places}))
    note = (
        f"{len(places)} runs a row: torch's {levels} kernels, with {threads} threads. "
        "`deterministic` is stock with `torch.use_deterministic_algorithms(True)`. The last two "
        "columns name the first step that ends with other weights, and the first operator in it "
        "that gives other bits for equal inputs."
    )
    return _with_source([*table(header, rows), "", *said, "", note], document)


def contract_platforms(results: Results) -> str:
    """Return the digests of the four models on every platform, by the version of torch."""
    runs: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    places = []
    for name in ("contract_models", "contract_models_amd"):
        if not results.has(name):
            continue
        document = results[name]
        version = document["environment"]["versions"]["torch"].split("+")[0]
        first = document["rows"][0]["runs"]
        levels = " and ".join(dict.fromkeys(_LEVEL_NAMES[r["capability"].lower()] for r in first))
        places.append(f"torch {version}: {_cpu(document)}, {levels}, 1 and 2 threads")
        for row in document["rows"]:
            key = row["model"], row["optimizer"], row["library"]
            digests = runs.setdefault(key, {}).setdefault(version, [])
            digests += [r["digest"] for r in row["runs"]]
    document = results["contract_digests_cuda"]
    version = document["environment"]["versions"]["torch"].split("+")[0]
    gpu = document["device"]["machine"]["gpu"]
    places.append(f"torch {version}: {_cpu(document)}, one thread, and {gpu}")
    for row in document["rows"]:
        key = row["model"], row["optimizer"], row["library"]
        digests = runs.setdefault(key, {}).setdefault(version, [])
        digests += [row["cpu"], row["cuda"]]
    versions = sorted({v for found in runs.values() for v in found})
    rows = [
        (*key, *(_digests(found.get(v, ())) for v in versions))
        for key, found in sorted(runs.items(), key=lambda item: item[0][2] != "repro")
    ]
    header = ["model", "optimizer", "library", *(f"torch {v}" for v in versions)]
    return "\n".join([*table(header, rows), "", *(f"- {place}" for place in places), ""])


def _digests(found: Sequence[str]) -> str:
    if len(set(found)) == 1:
        return f"`{found[0][:12]}` in {len(found)} runs"
    return f"{len(set(found))} digests in {len(found)} runs" if found else ""


#: Records of other ways to fixed results, by device.
_OPPONENTS = ("contract_opponents", "contract_opponents_cuda")


def contract_opponents(results: Results) -> str:
    """Return what other ways to fixed results cost against stock."""
    parts = []
    for name in filter(results.has, _OPPONENTS):
        document = results[name]
        others = list(next(iter(document["calls"].values()))["speeds"])
        rows = [
            (
                call,
                *(_share(row["speeds"][o]["median"]) if o in row["speeds"] else "" for o in others),
            )
            for call, row in document["calls"].items()
        ]
        parts.append(_with_source(table(["call", *others], rows), document))
    return "\n".join(parts)


def contract_digests_sixteen(results: Results) -> str:
    """Return the digests of weights in bfloat16."""
    document = results["contract_digests_sixteen"]
    return _with_source([*render_cuda.digests_in_sixteen(document).splitlines()], document)


def ways_to_fixed_results(results: Results) -> str:
    """Return what other ways to fixed results fix, beside what this project does."""
    return fixed_results.compared(results["contract_small_cuda"])


def _share(speed: float) -> str:
    return f"{speed:.2f}" if speed >= 0.1 else f"{speed:.4f}"


def _run(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["library"], row["capability"], str(row["threads"])


def _whole(share: float) -> str:
    """Return a share as text that says 100 % of nothing less than the whole."""
    return "100 %" if share == 1.0 else f"{100 * min(share, 0.9999):.2f} %"


def coverage(results: Results) -> str:
    """Return what share of 24 models' evaluations is swapped, and what keeps it below 100 %."""
    return _coverage(results["coverage"])


def coverage_compiled(results: Results) -> str:
    """Return the same under torch.compile, as far as it was measured."""
    return _coverage(results["coverage_compiled"])


def coverage_compiled_cuda(results: Results) -> str:
    """Return the same under torch.compile on a GPU, as far as it was measured."""
    return _coverage(results["coverage_compiled_cuda"])


def coverage_cuda(results: Results) -> str:
    """Return the same for a GPU, as far as it was measured."""
    return _coverage(results["coverage_cuda"])


def _coverage(document: Mapping[str, Any]) -> str:
    models: dict[tuple[str, str], dict[str, Any]] = {}
    for row in document["models"].values():
        models.setdefault((row["origin"], row["model"]), {})[row["precision"]] = row
    lines, left = [], []
    for (origin, name), found in models.items():
        plain = next(iter(found.values()))
        shares = [
            _whole(found[p]["share"]) if p in found else "not measured"
            for p in ("float32", "bfloat16")
        ]
        operators = sorted({r["operator"].partition("::")[2] for r in plain["rows"]})
        lines.append([name, origin, f"{plain['evaluations']:,}", str(len(operators)), *shares])
        for precision, row in found.items():
            left += [
                f"{name}, {precision}: `{each['operator']}`"
                f"{', generated' if each.get('generated') else ''}: {'; '.join(each['reasons'])}"
                for each in row["rows"]
                if sum(each["swapped"].values()) < sum(each["evaluations"].values())
            ]
            left += [f"{name}, {precision}: `{n}` has no known definition" for n in row["unknown"]]
    header = ["model", "from", "evaluations", "operators", "swapped, float32", "bfloat16, autocast"]
    packages = ", ".join(f"{name} {version}" for name, version in document["packages"].items())
    if "device" in document:
        packages += f"; {document['device']['machine']['gpu']}"
    rest = [f"- {line}" for line in left] or ["Nothing is left out: no row is below 100 %."]
    parts = [*table(header, lines), "", *rest, "", *_elsewhere(document), f"{packages}."]
    return _with_source(parts, document)


def _elsewhere(document: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each other machine on which rows of coverage were measured."""
    machine, versions = (document["environment"][n] for n in ("machine", "versions"))
    here = machine["cpu"], machine["cores"], versions["torch"], document["environment"]["date"]
    places: dict[tuple[Any, ...], list[str]] = {}
    for name, row in document["models"].items():
        if "measured" in row:
            one = row["measured"]
            place = one["cpu"], one["cores"], one["torch"], one["date"]
            if place != here:
                places.setdefault((*place, one.get("gpu", "")), []).append(name)
    found = []
    for (cpu, cores, torch, date, gpu), names in places.items():
        beside = f"{gpu} beside {cpu}" if gpu else cpu
        found += [
            f"Measured on {beside}, {cores} cores, with torch {torch}, {date}: {'; '.join(names)}.",
            "",
        ]
    return found


def inlined(results: Results) -> str:
    """Return the kernels of libtorch that have a function inlined."""
    from benches.experiments.inlined import WAYS

    document = results["inlined"]
    rows = [
        [f"`{name}`", ", ".join(one["families"]), str(one["functions"]),
         ", ".join(f"`{c}`" for c in one["calls"]) or "none", WAYS[name]]
        for name, one in document["kernels"].items()
    ]  # fmt: skip
    header = ["kernel", "family", "functions", "math symbols that it calls", "in a session"]
    others = ", ".join(f"{count} of {who}" for who, count in sorted(document["others"].items()))
    return _with_source([*table(header, rows), "", f"Besides: {others}."], document)


def _ratio(summary: Mapping[str, float]) -> str:
    low, high = summary["lower_quartile"], summary["upper_quartile"]
    return f"{summary['median']:.2f} ({low:.2f} to {high:.2f})"


def other_machines(results: Results) -> str:
    """Return the table of machines that QEMU imitates."""
    document = results["other_machines"]
    rows, parts = [], []
    for title, machine in document["machines"].items():
        found = machine["functions"]
        different = sum(entry["different"] for entry in found.values())
        inputs = sum(entry["inputs"] for entry in found.values())
        wrong = machine["canary"]
        rows.append([
            title, f"`{machine['command']}`", str(len(found)), f"{inputs:,}", f"{different:,}",
            f"{wrong['different']:,} of {wrong['inputs']:,}",
        ])  # fmt: skip
        parts += [
            f"{name} on {title}: {100 * entry['inputs'] / entry['of']:.0f} % of all encodings."
            for name, entry in found.items()
            if entry["inputs"] * 10 > entry["of"]
        ]
    header = ["machine", "run by", "functions", "inputs", "different", "canary's exp, different"]
    emulators = sorted({m["emulator"].split(" (")[0] for m in document["machines"].values()})
    lines = [*table(header, rows), "", *parts, f"Emulators: {', '.join(emulators)}."]
    return _with_source(lines, document)


def wheel_symbols(results: Results) -> str:
    """Return the table of the slots in wheels for another processor."""
    document = results["wheel_symbols"]
    rows = []
    for name, facts in document["wheels"].items():
        for title, found in facts["objects"].items():
            entries = [e for each in found["calls"].values() for e in each]
            kinds: Counter[str] = Counter()
            for kind, _, count in entries:
                kinds[kind] += count
            vectors = sum(s.startswith("Sleef_") for s in found["calls"])
            scalable = sum(s.endswith("sve") for s in found["other_sleef"])
            if entries:
                rows.append([
                    name.split("-")[1], f"`{title}`", str(len(found["calls"]) - vectors),
                    str(vectors), ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())),
                    str(scalable),
                ])  # fmt: skip
    header = ["torch", "object", "scalar symbols", "AdvSIMD symbols", "slots", "SVE, not bound"]
    return _with_source(table(header, rows), document)


def aarch64_session(results: Results) -> str:
    """Return what a session did in torch's wheel for aarch64."""
    document = results["aarch64_session"]
    there, verdict = document["there"], document["verdict"]
    operators = len(there["inside"])
    slots = ", ".join(
        f"{sum(kinds.values())} in `{name}`" for name, kinds in there["slots"].items()
    )
    rows = [
        ["torch, its kernels", f"{there['torch']}, {there['capability']}"],
        ["imitated CPU", f"{document['cpu']}, {document['emulator'].split(' (')[0]}"],
        ["slots that the session found", slots],
        ["functions that a session reaches", f"{len(there['reached'])} of {len(FUNCTIONS)}"],
        ["refused", "; ".join(f"`{n}` ({e.split(':')[0]})" for n, e in there["refused"].items())],
        ["operators with the bits of this CPU, under corem",
         f"{len(verdict['same_as_here'])} of {operators}"],
        ["the same, under the stock functions",
         f"{len(verdict['stock_same_as_here'])} of {operators}"],
        ["bits as before on exit", "yes" if there["restored"] else "no"],
    ]  # fmt: skip
    return _with_source(table(["what", "found"], rows), document)


def aarch64_forms(results: Results, stored: str = "aarch64_forms") -> str:
    """Return the table of forms for AdvSIMD, and the share of all encodings that ran."""
    document = results[stored]
    rows = []
    for title, library in document["libraries"].items():
        for form, functions in library["forms"].items():
            inputs = sum(entry["inputs"] for entry in functions.values())
            different = sum(entry["different"] for entry in functions.values())
            rows.append([title, f"`{form}`", str(len(functions)), f"{inputs:,}", f"{different:,}"])
    every = document["exhaustive"]
    parts = [
        f"{name}, `{every['form']}`: {found['chunks']} of {found['of']} chunks of "
        f"2^{every['chunk_bits']} encodings ran, "
        f"{100 * found['chunks'] / found['of']:.0f} % of all; "
        f"{len(found['different_chunks'])} digests differ from the certificate's."
        for name, found in every["functions"].items()
    ]
    header = ["library", "form", "functions", "inputs", "different"]
    return _with_source([*table(header, rows), *(["", *parts] if parts else [])], document)


def aarch64_sve(results: Results) -> str:
    """Return the same for SVE."""
    return aarch64_forms(results, "aarch64_sve")


def site(results: Results) -> str:
    """Say how large the site is."""
    found = results["site"]
    return (
        f"`make site` makes {found['pages']} pages of {found['pages_bytes'] / 1e6:.1f} MB in all, "
        f"{found['bytes'] / 1e6:.1f} MB with script, styles and pictures; the index of the search "
        f"is {found['search_bytes'] / 1e6:.1f} MB of it. MkDocs {found['mkdocs']}, Material "
        f"{found['mkdocs_material']}.\n"
    )


def first_hour(results: Results) -> str:
    """Return what each step of the first hour took and said."""
    document = results["first_hour"]
    rows = [
        (
            f"`{row['command']}`", f"{row['seconds']:,.0f} s", f"{row['cpu_seconds']:,.0f} s",
            f"{row['words']:,}", str(row["status"]),
        )
        for row in document["rows"]
    ]  # fmt: skip
    header = ("command", "seconds", "of processor time", "words on the screen", "status")
    kept = "the same throughout" if document["torch_kept"] else "REPLACED"
    note = f"torch and torchvision were {kept}. Load average at the end: {document['load'][0]:g}."
    demo, tests = document["set_ups"]
    alone = (
        f"From cached downloads, each in a clone of its own, the set-up of the demo takes "
        f"{demo['seconds']:.0f} s ({demo['cpu_seconds']:.0f} s of processor time, the compiling of "
        f"what a session needs among them) and that of the tests {tests['seconds']:.0f} s "
        f"({tests['cpu_seconds']:.0f} s; what the tests need is compiled in the tests). Of their "
        f"{demo['bytes'] / 1e9:.1f} and {tests['bytes'] / 1e9:.1f} GB on the disk, "
        f"{demo['torch_bytes'] / 1e9:.1f} GB are torch and what comes with it, which both need."
    )
    return _with_source([*table(header, rows), "", note, "", alone], document)


def wheel(results: Results) -> str:
    """Return the size of the wheel, what it is for, and how long the first steps take."""
    document = results["wheel"]
    facts, seconds = document["wheel"], document["seconds"]
    torches = ", ".join(v.partition("+")[0] for v in document["shipped"]["observer"])
    hidden = document["hidden"]
    # Wheels from before the switchboard had a launcher for each device.
    overrides = "switchboard" if "switchboard" in document["shipped"] else "launcher"

    def took(name: str) -> str:
        values = seconds[name]
        return f"{values['median']:.1f} s ({values['min']:.1f} to {values['max']:.1f})"

    rows = [
        ["the wheel", f"`{facts['file']}`, {facts['bytes'] / 2**20:.1f} MiB"],
        [f"observer, gate and {overrides} for torch", torches],
        ["`libdevice` of triton that the functions for GPUs are beside",
         str(len(document["shipped"]["pack"]))],
        ["from `pip install` to the first table, torch's download left out",
         took("to_the_first_table")],
        ["the same suite again", took("suite_under_corem_again")],
        ["a profile of `std`", took("profile_of_std")],
        ["load average of the machine meanwhile (1, 5 and 15 minutes)",
         ", ".join(map(str, document["load_average"]))],
        ["programs and folders hidden", f"{len(hidden['files'])} and {len(hidden['folders'])}"],
        ["libraries compiled", str(len(document["compiled"]))],
    ]  # fmt: skip
    for version, row in document.get("beside", {}).items():
        passed = row["passed"].values()
        rows.append([
            f"beside torch {version}, on the CPU: checks passed ({', '.join(row['passed'])})",
            f"{sum(passed)} of {len(passed)}; {len(row['compiled'])} libraries compiled",
        ])  # fmt: skip
    if "demo" in document:
        now, before = document["demo"]["now"], document["demo"]["before"]
        rows.append(
            ["`make demo` in a fresh clone, after the downloads; at "
             f"{before['commit']}; load average of the last 5 minutes",
             "; ".join(
                 f"{r['seconds']:.0f} s, of the processor {r['cpu_seconds']:.0f} s (load "
                 f"{r['load_average']:.1f})" for r in (now, before)
             )]
        )  # fmt: skip
    return _with_source(table(["what", "found"], rows), document)


REGIONS: dict[str, Callable[[Results], str]] = {
    "interrupts": interrupts,
    "cpu_operators": cpu_operators,
    "coverage": coverage,
    "contract_digests": contract_digests,
    "contract_digests_cuda": contract_digests_cuda,
    "contract_digests_sixteen": contract_digests_sixteen,
    "exact_products": exact_products,
    "exact_products_cuda": exact_products_cuda,
    "contract_models": contract_models,
    "contract_arm": contract_aarch64,
    "contract_operators": contract_operators,
    "contract_small": contract_small,
    "corem_models": corem_models,
    "contract_small_cuda": contract_small_cuda,
    "same": same,
    "same_one": same_one,
    "same_planted": same_planted,
    "on_policy": on_policy,
    "resumed_trainers": resumed_trainers,
    "same_short": same_short,
    "contract_speed": contract_speed,
    "contract_platforms": contract_platforms,
    "contract_opponents": contract_opponents,
    "fixed_results": ways_to_fixed_results,
    "coverage_compiled": coverage_compiled,
    "coverage_cuda": coverage_cuda,
    "coverage_compiled_cuda": coverage_compiled_cuda,
    "inlined": inlined,
    "summation_trees": summation_trees,
    "special_functions": special_functions,
    "taso_examples": taso_examples,
    "taso_funnel": taso_funnel,
    "fusion_plans": fusion_plans,
    "recompilation": recompilation,
    "tiled_pipelines": tiled_pipelines,
    "rewriting_gains": rewriting_gains,
    "pet_convolutions": pet_convolutions,
    "rewriting_wins": rewriting_wins,
    "exclusive": exclusive,
    "switchboard": switchboard,
    "innocent_pairs": innocent_pairs,
    "profile_structs": profile_structs,
    "demo": demo,
    "costs": costs,
    "entry_exit": entry_exit,
    "build": build,
    "demo_details": demo_details,
    "compiled_cpu": compiled_cpu,
    "double_precision": double_precision,
    "double_precision_check": float64_check,
    "double_precision_speed": double_precision_speed,
    "quick_paths": quick_paths,
    "scalar_forms": scalar_forms,
    "patch": patch,
    "site": site,
    "first_hour": first_hour,
    **{name: _profile(name) for name in render_profile.TABLES},
    **{name: _trust(name) for name in render_trust.TABLES},
    **{name: _diff(name) for name in render_diff.TABLES},
    **{name: _tolerance(name) for name in render_tolerance.TABLES},
    **{name: _compile(name) for name in render_compile.TABLES},
    **{name: _cuda(name) for name in render_cuda.TABLES},
    "other_machines": other_machines,
    "wheel": wheel,
    "wheel_symbols": wheel_symbols,
    "arm_session": aarch64_session,
    "arm_forms": aarch64_forms,
    "arm_sve": aarch64_sve,
    "analysis": analysis,
    "floors": lambda _: render_house.floors_table(),
}


def reach_page(results: Results) -> str:
    """Return docs/results/reach.md."""
    page = reach.markdown(*reach.load(results.folder / "reach.json"))
    return page.rstrip() + "\n" + _on_cuda()


def _on_cuda() -> str:
    """Return which of ATen's overloads a session overrides on CUDA, by function."""
    overloads = reached()
    rows = [
        [f, ", ".join(f"`{n}`" for n in sorted(overloads) if f in overloads[n])] for f in FUNCTIONS
    ]
    lines = [
        "",
        "## Eager CUDA",
        "",
        "The overloads whose CUDA kernel a session replaces, by function; float32, bfloat16 and "
        "half, all layouts. [cuda.md](../swap/cuda.md) lists what is not reached.",
        "",
        *table(["function", "overloads"], rows),
    ]
    return "\n".join(lines) + "\n"


def results_page(results: Results) -> str:
    """Return docs/results/results.md."""
    parts = [
        "# Results",
        "",
        "This page is generated from benches/results; do not edit it. `make results` measures "
        "everything again; a command in the text repeats one part.",
        "",
        "## Sessions: entry and exit",
        "",
        "First entries are measured in fresh processes that have imported torch; each process "
        "measures its own time.",
        "",
        entry_exit(results),
        "## Builds",
        "",
        "With several processes at once, the time ends when the last of them has the build.",
        "",
        build(results),
        "## LeNet on MNIST",
        "",
        demo(results),
        demo_details(results),
    ]
    for stem in filter(results.has, SPEEDS):
        cpu = _measured_on(results[stem])
        parts += [
            f"## Speed of the functions on {cpu}",
            "",
            f"![Nanoseconds per element of every contender on {cpu}]({stem}.svg)",
            "",
            "corem beside the fastest library that rounds some results wrongly; left of 1 corem is "
            "faster:",
            "",
            f"![corem's time over that of the fastest approximate library on {cpu}]"
            f"({stem}-best.svg)",
            "",
            speed(results, stem),
            f"### Figures that are missed on {cpu}",
            "",
            missed(results, stem),
            *filter(None, [missed_code(results, stem)]),
        ]
    if results.has("speed_analysis"):
        parts += ["### What the code spends its time on", "", analysis(results)]
    return "\n".join(parts).rstrip() + "\n"


def _proofs(certificate: Certificate) -> Sequence[str]:
    """Return a row of the table of corem's own certificates."""
    digests = {run.digest() for run in certificate.runs if not run.identity["flush"]}
    wrong = sum(run.tally.wrong for run in certificate.runs)
    return (
        certificate.subject["function"],
        "; ".join(run.label for run in certificate.runs),
        f"{certificate.runs[0].tally.inputs:,}",
        f"{wrong:,}",
        ", ".join(f"`{digest[:16]}`" for digest in sorted(filter(None, digests))),
    )


def _float_float(certificate: Certificate) -> Sequence[str]:
    """Return a row of the table of corem-ff's certificates."""
    run = certificate.runs[0]
    return (
        certificate.subject["function"],
        f"{run.tally.inputs:,}",
        f"{run.tally.wrong:,}",
        "" if run.tally.hard is None else f"{run.tally.hard:,}",
        f"`{(run.digest() or '')[:16]}`",
    )


def accuracy_page(results: Results) -> str:
    """Return docs/results/accuracy.md, from the certificates of corem and the stock libraries."""
    own = [load_certificate(p) for p in sorted((UDFS / "corem").rglob("*.certificate.json"))]
    pairs = [load_certificate(p) for p in sorted((UDFS / "corem-ff").rglob("*.certificate.json"))]
    stock = list(certified.stock(results.folder / "certificates"))
    wide = [c for c in stock if c.subject["dtype"] == "float32"]
    half = [c for c in stock if c.subject["dtype"] != "float32"]
    parts = [
        "# Accuracy",
        "",
        "This page is generated from certificates: those beside the sources of corem and corem-ff, "
        "and those of the stock libraries under benches/results/certificates. Do not edit it; "
        "`python -m benches.render.docs` writes it. [verification.md](../prove/verification.md) "
        "says how certificates are made and what they hold.",
        "",
        "## corem: which forms were run on which inputs",
        "",
        "Flushed: with FTZ and DAZ set. A correctly rounded function of one argument has only "
        "one possible digest.",
        "",
        *table(
            [
                "function",
                "forms",
                "inputs of each",
                "not correctly rounded",
                "digest of the outputs",
            ],
            map(_proofs, own),
        ),
        "",
        "## corem-ff: the form for GPUs with weak double precision",
        "",
        "The array form, every vector in float-float. The inputs that the float-float path calls "
        "hard, and all special and out-of-range arguments, are left to double.",
        "",
        *table(
            [
                "function",
                "inputs",
                "not correctly rounded",
                "left to double",
                "digest of the outputs",
            ],
            map(_float_float, pairs),
        ),
    ]
    if results.has("cuda_digests"):
        parts += [
            "",
            "## corem on CUDA",
            "",
            "The outputs of the overridden operator on all inputs are hashed as for the CPU; the "
            "outputs of a Triton kernel and of torch.compile are compared with them. See "
            "[cuda.md](../swap/cuda.md).",
            "",
            render_cuda.digests(results["cuda_digests"]),
        ]
    if results.has("cuda_pairs"):
        parts += [
            "For functions of two arguments, the pairs of the certificates are made again from "
            "their seed. The digests cover the chunks that were run.",
            "",
            render_cuda.pairs(results["cuda_pairs"]),
        ]
    sections = (
        ("## corem beside what PyTorch calls, float32", [_first_run(c) for c in own] + wide),
        ("## torch's operators in 16 bits, all 65,536 encodings", half),
    )
    for title, certificates in sections:
        if certificates:
            parts += ["", title, "", comparison_table(certificates)]
    return "\n".join(parts).rstrip() + "\n"


def _first_run(certificate: Certificate) -> Certificate:
    return replace(certificate, runs=certificate.runs[:1])


SPEED_SVG = "docs/results/speed.svg"
#: Pictures of one machine each, below docs; the pages that show them lie in a chapter.
QUICK_SVG = "results/quick-{}.svg"
DOUBLE_SVG = "results/double-{}.svg"
WHOLE: dict[str, Callable[[Results], str]] = {
    "docs/results/accuracy.md": accuracy_page,
    "docs/results/compile_results.md": lambda results: render_experiments.page(results.folder),
    "docs/results/reach.md": reach_page,
    "docs/results/results.md": results_page,
}


def fill(text: str, page: str, results: Results) -> str:
    """Return a page's text with its regions filled.

    Raises:
        DocsError: an unknown region, one without an end, or a result that is missing.
    """

    def replace(match: re.Match[str]) -> str:
        opening, name, _, end = match.groups()
        if name not in REGIONS:
            raise DocsError(f"{page} asks for {name!r}. Known regions: {', '.join(REGIONS)}.")
        if "<!-- generated:" in match.group(3):
            raise DocsError(f"{page}: the region {name!r} has no <!-- end -->.")
        return f"{opening}{REGIONS[name](results)}{end}"

    filled, found = _REGION.subn(replace, text)
    if found != len(_OPENING.findall(text)):
        raise DocsError(
            f"{page} has a line '<!-- generated:' that does not start a region. A region is the "
            "line '<!-- generated: NAME -->', text, and the line '<!-- end -->'."
        )
    return filled


def pages(root: Path, results: Results) -> Iterator[tuple[Path, str]]:
    """Yield every page that holds generated text, with the text it should have."""
    for relative, make in WHOLE.items():
        yield root / relative, make(results)
    for path in (*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))):
        if str(path.relative_to(root)) in WHOLE:
            continue
        text = path.read_text(encoding="utf-8")
        if _OPENING.search(text):
            yield path, fill(text, path.name, results)


def pictures(root: Path, results: Results) -> Iterator[tuple[Path, str, Callable[[], str]]]:
    """Yield every drawing: its file, the digest of what it shows, and what draws it."""
    for stem in filter(results.has, SPEEDS):
        numbers = drawings.speed_numbers(results[stem])
        picture = root / SPEED_SVG.replace("speed", stem)
        yield picture, drawings.digest(numbers), partial(drawings.speed_svg, numbers)
        ratios = drawings.best_numbers(results[stem])
        beside = picture.with_name(f"{stem}-best.svg")
        yield beside, drawings.digest(ratios), partial(drawings.best_svg, ratios)
    for name, path in (("quick_paths", QUICK_SVG), ("float64_speed", DOUBLE_SVG)):
        for machine, figures in results[name]["machines"].items() if results.has(name) else ():
            numbers = drawings.speed_numbers({"functions": figures["forms"]})
            yield (
                root / "docs" / path.format(slug(machine)),
                drawings.digest(numbers),
                partial(drawings.speed_svg, numbers),
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.render.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; 1 if a page is stale")
    options = parser.parse_args(arguments)
    try:
        wanted = list(pages(ROOT, Results()))
        drawn = list(pictures(ROOT, Results()))
    except UdfError as error:
        print(f"render_docs: {error}", file=sys.stderr)
        return 2
    stale: list[tuple[Path, Callable[[], str]]] = [
        (path, partial(str, text))
        for path, text in wanted
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    # matplotlib's output differs between versions: what counts is what was drawn.
    stale += [
        (path, draw)
        for path, digest, draw in drawn
        if not path.is_file() or digest not in path.read_text(encoding="utf-8")
    ]
    for path, make in stale:
        print(f"{path.relative_to(ROOT)} {'is stale' if options.check else 'written'}")
        if not options.check:
            path.write_text(make(), encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
