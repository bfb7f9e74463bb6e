# SPDX-License-Identifier: Apache-2.0
"""Figures of the benches of torch.compile, each with its numbers as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from benches.render import charts
from benches.render.bench_files import Bench, Row, medians
from benches.render.charts import Axis, Bar
from pytest_udftorch.base.units import time_text
from pytest_udftorch.watch.profile.tables import Cell, table, text_cell

__all__ = ["PUBLISHED", "SECTIONS", "numbers"]

#: Published end-to-end speed-ups of torch.compile over interpreted (see bench_report).
PUBLISHED: Final = {"resnet50": 1.61, "googlenet": 1.43, "mobilenet_v2": 1.63}


# What figures are made of ------------------------------------------------------------


#: By column: text, a whole number, a ratio (float), a finished cell, or nothing.
NumbersRow = Mapping[str, Cell | str | float | None]


def numbers(name: str, rows: Sequence[NumbersRow]) -> str:
    """Return a table of at least one row."""
    return table(name, list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])


def _figure(name: str, title: str, hint: str, drawing: str, rows: Sequence[NumbersRow]) -> str:
    name = escape(name)
    return (
        f'<figure id="{name}"><figcaption>{escape(title)}<span class="hint">{escape(hint)}</span>'
        f'</figcaption><div class="scroll drawing">{drawing}</div>'
        f"<details><summary>Numbers</summary>{numbers(f'{name}-numbers', rows)}</details></figure>"
    )


def _cell(value: Cell | str | float | None) -> Cell:
    """Return a cell of text, of a whole number, or of a ratio."""
    if value is None:
        return "-", ""
    if isinstance(value, str):
        return text_cell(value)
    if isinstance(value, int):
        return f"{value:,}", value
    return (f"{value:.2f}", value) if isinstance(value, float) else value


def _number(value: float | None, digits: int = 3) -> Cell | None:
    return None if value is None else (f"{value:.{digits}g}", value)


def _time(value: float | None) -> Cell | None:
    return None if value is None else (time_text(value), value)


def _percent(value: float, form: str = ".1f") -> Cell:
    return f"{100 * value:{form}} %", value


def _median(row: Row, name: str) -> float:
    return float(row["timings"][name]["median_ns"])


def _whose(bench: Bench, benches: Sequence[Bench]) -> str:
    """Return what distinguishes the bench's series from those of other devices."""
    return f", {bench.tag}" if len({b.tag for b in benches}) > 1 else ""


def _in_order(names: Iterable[str], first: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    return [n for n in first if n in found] + [n for n in found if n not in first]


_EXECUTORS: Final = (
    "eager",
    "eager+cudagraph",
    "eager+channels_last",
    "eager+channels_last+cudagraph",
    "compile",
    "compile-reduce-overhead",
    "compile+cudagraph",
    "compile+channels_last+cudagraph",
)


_TIMES_FASTER: Final = Axis("times faster", guide=1.0)


# The figures -------------------------------------------------------------------------


def _matmul(benches: Sequence[Bench]) -> list[str]:
    times: dict[str, list[tuple[float, float]]] = {}
    ratios: dict[str, list[tuple[float, float]]] = {}
    cells = []
    for bench in benches:
        whose = _whose(bench, benches)
        for row in sorted(bench.rows, key=lambda r: float(r["case"]["n"])):
            n = float(row["case"]["n"])
            for name in row["timings"]:
                taken = _median(row, name)
                # A multiplication and an addition for each term of each sum.
                times.setdefault(name + whose, []).append((n, 2 * n**3 / taken))
                faster = _median(row, "interpreted") / taken
                if name != "interpreted":
                    ratios.setdefault(name + whose, []).append((n, faster))
                cells.append(
                    {
                        "form": name,
                        "device": bench.tag,
                        "n": int(n),
                        "time": _time(taken),
                        "GFLOP/s": _number(2 * n**3 / taken),
                        "times faster": faster,
                        "first call": _time(row["first_call_ns"].get(name)),
                    }
                )
    found = [
        _figure(
            "matmul",
            "Products of square matrices",
            "Interpreted, by kernels of our own in C++, CUDA and Triton, and compiled. float32 "
            "without TF32.",
            charts.plot(
                times,
                Axis("rows and columns", log=True),
                Axis("GFLOP/s", log=True),
            ),
            cells,
        )
    ]
    if ratios:
        found.append(
            _figure(
                "matmul-speedup",
                "Products of square matrices: speed-up against size",
                "Over the interpreted form on the same device.",
                charts.plot(
                    ratios,
                    Axis("rows and columns", log=True),
                    Axis("times faster", log=True, guide=1.0),
                    names=list(times),
                ),
                cells,
            )
        )
    return found + _matmul_compile(benches, cells)


def _matmul_compile(benches: Sequence[Bench], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    groups: list[tuple[str, list[Bar]]] = []
    for bench in benches:
        for row in sorted(bench.rows, key=lambda r: float(r["case"]["n"])):
            spent = [
                Bar(v / 1e9, f"{v / 1e9:.2g} s", k)
                for k, v in row["first_call_ns"].items()
                if k.startswith("compile")
            ]
            if spent:
                size = f"n = {float(row['case']['n']):,.0f}"
                groups.append((f"{size}{_whose(bench, benches)}", spent))
    if not groups:
        return []
    return [
        _figure(
            "matmul-compile",
            "Compile time in the four modes",
            "The first call, with empty caches.",
            charts.bars(groups, Axis("seconds")),
            cells,
        )
    ]


def _graphs_ratio(row: Row) -> float | None:
    names = ("eager+cudagraph", "compile+cudagraph")
    if any(n not in row["timings"] for n in names):
        return None
    return _median(row, names[0]) / _median(row, names[1])


def _convolutions(benches: Sequence[Bench]) -> list[str]:
    found = []
    for bench in benches:
        for suffix, text in (("", ""), ("+cudagraph", ", both in a CUDA graph")):
            groups: dict[str, list[tuple[float, float]]] = {}
            cells = []
            for row in bench.rows:
                if f"compile{suffix}" not in row["timings"]:
                    continue
                case = row["case"]
                faster = _median(row, f"eager{suffix}") / _median(row, f"compile{suffix}")
                name = f"stride {case['stride']}, padding {case['padding']}"
                groups.setdefault(name, []).append((float(case["kernel"]), faster))
                cells.append(
                    {
                        **{k: int(case[k]) for k in ("kernel", "stride", "padding")},
                        "interpreted": _time(_median(row, f"eager{suffix}")),
                        "compiled": _time(_median(row, f"compile{suffix}")),
                        "times faster": faster,
                    }
                )
            if not groups:
                continue
            shape = bench.rows[0]["case"]
            found.append(
                _figure(
                    f"convolutions-{bench.tag}{suffix.replace('+', '-')}",
                    f"Single convolutions: speed-up against the kernel's size{text}",
                    f"{bench.where}; batch {shape['batch']}, {shape['channels']} channels, "
                    f"{shape['size']} x {shape['size']}. torch.compile over interpreted.",
                    charts.plot(
                        {k: sorted(v) for k, v in sorted(groups.items())},
                        Axis("kernel", ticks=(1, 3, 5)),
                        _TIMES_FASTER,
                    ),
                    cells,
                )
            )
    return found


def _resnet(benches: Sequence[Bench]) -> list[str]:
    found = []
    for bench in benches:
        alone, graphs, cells = [], [], []
        for row in bench.rows:
            inside = row["in_model_ns"]
            if not (inside.get("eager") and inside.get("compile")):
                continue
            case = row["case"]
            in_model = inside["eager"] / inside["compile"]
            on_its_own = _median(row, "eager") / _median(row, "compile")
            replayed = _graphs_ratio(row)
            tip = f"{case['layer']}, in the model {in_model:.2f}"
            alone.append((in_model, on_its_own, tip))
            if replayed is not None:
                graphs.append((in_model, replayed, tip))
            cells.append(
                {
                    "layer": case["name"],
                    "convolution": text_cell(case["layer"], wrap=True),
                    "calls": int(case["calls"]),
                    "alone, interpreted": _time(_median(row, "eager")),
                    "alone, compiled": _time(_median(row, "compile")),
                    "in the model, interpreted": _time(inside["eager"]),
                    "in the model, compiled": _time(inside["compile"]),
                    "faster alone": on_its_own,
                    "faster in the model": in_model,
                }
            )
        if not alone:
            continue
        series = {"alone, end to end": alone}
        if graphs:
            series["alone, both in a CUDA graph"] = graphs
        found.append(
            _figure(
                f"resnet-convolutions-{bench.tag}",
                "Convolutions of ResNet-50: alone against in the model",
                f"{bench.where}. Speed-up of each convolution by compiling: alone, end to end, "
                "against the profiler's times of the same convolutions inside the whole model. On "
                "the line both agree.",
                charts.plot(
                    series,
                    Axis("times faster in the model, by the profiler", log=True),
                    Axis("times faster alone", log=True, guide=1.0),
                    joined=False,
                    diagonal=True,
                ),
                cells,
            )
        )
    return found


def _predictor(benches: Sequence[Bench]) -> list[str]:
    found = []
    for bench in benches:
        result = bench.predictor
        judged = result.get("judged")
        if not judged:
            continue
        groups = [
            (name, [Bar(100 * j["within"], f"{100 * j['within']:.0f} %", name)])
            for name, j in judged.items()
        ]
        cells = [
            {
                "prediction by": name,
                "within 5 %": _percent(j["within"]),
                "median error": _percent(j["median_error"]),
            }
            for name, j in judged.items()
        ]
        pairs = list(zip(result["measured"], result["predicted"], strict=True))
        found += [
            _figure(
                f"predictor-{bench.tag}",
                "Predicting the speed-up of a convolution",
                f"{bench.where}; {result['convolutions']} random convolutions, each held out once. "
                "Share of predictions within 5 % of the measurement; the target was 95 %.",
                charts.bars(groups, Axis("percent of held-out convolutions")),
                cells,
            ),
            _figure(
                f"predicted-{bench.tag}",
                "Predicted and measured speed-ups",
                "By a perceptron that was given the shape and the interpreted time. On the line "
                "both agree.",
                charts.plot(
                    {"held-out convolution": pairs},
                    Axis("measured, times faster", log=True),
                    Axis("predicted, times faster", log=True),
                    joined=False,
                    diagonal=True,
                ),
                cells,
            ),
        ]
    return found


def _chains(benches: Sequence[Bench]) -> list[str]:
    faster: dict[str, list[tuple[float, float]]] = {}
    first: dict[str, list[tuple[float, float]]] = {}
    cells = []
    for bench in benches:
        whose = _whose(bench, benches)
        for row in sorted(bench.rows, key=lambda r: int(r["case"]["blocks"])):
            blocks = float(row["case"]["blocks"])
            ratios = {n: _median(row, "eager") / _median(row, n) for n in row["timings"]}
            graphs = _graphs_ratio(row)
            if graphs is not None:
                faster.setdefault(f"compile over eager, both in a CUDA graph{whose}", []).append(
                    (blocks, graphs)
                )
            for name, ratio in ratios.items():
                if name != "eager":
                    faster.setdefault(f"{name} over eager{whose}", []).append((blocks, ratio))
                cells.append(
                    {
                        "blocks": int(blocks),
                        "executor": name,
                        "device": bench.tag,
                        "time": _time(_median(row, name)),
                        "times faster": ratio,
                        "first call": _time(row["first_call_ns"][name]),
                    }
                )
            first.setdefault(f"compile{whose}", []).append(
                (blocks, row["first_call_ns"]["compile"] / 1e9)
            )
    x = Axis(
        "blocks of convolution, norm and ReLU", ticks=range(1, 33, 1 if len(faster) < 2 else 3)
    )
    return [
        _figure(
            "chains",
            "Blocks in series: speed-up against their number",
            "; ".join(dict.fromkeys(b.where for b in benches)),
            charts.plot(faster, x, _TIMES_FASTER),
            cells,
        ),
        _figure(
            "chains-compile",
            "Blocks in series: the first call, which compiles",
            "With empty caches.",
            charts.plot(first, x, Axis("seconds")),
            cells,
        ),
    ]


def _end_to_end(benches: Sequence[Bench]) -> list[str]:
    # The oracle measures the uniform executors too; where both were run, the bench of models
    # alone is shown.
    own = [b for b in benches if b.kind == "end_to_end"]
    chosen = own + [
        b for b in benches if b.kind == "cells" and b.device not in {o.device for o in own}
    ]
    return _models(
        chosen,
        "end-to-end",
        "The six models end to end",
        "Times faster than interpreted. The mark is the published speed-up of torch.compile, on "
        "another machine.",
    )


def _transformers(benches: Sequence[Bench]) -> list[str]:
    return _models(
        benches, "transformers", "A vision transformer and a small GPT", "Over interpreted."
    )


def _models(benches: Sequence[Bench], name: str, title: str, hint: str) -> list[str]:
    found = []
    for bench in benches:
        by_batch: dict[int, list[tuple[str, dict[str, float]]]] = {}
        for row in bench.rows:
            case = row.get("case", row)
            times = medians(row)
            if "eager" in times:
                by_batch.setdefault(int(case["batch"]), []).append((case["model"], times))
        for batch, rows in sorted(by_batch.items()):
            executors = _in_order((n for _, times in rows for n in times), _EXECUTORS)
            groups, cells = [], []
            for model, times in rows:
                bars = []
                for executor in (e for e in executors if e in times):
                    faster = times["eager"] / times[executor]
                    published = PUBLISHED.get(model) if executor == "compile" else None
                    if executor != "eager":
                        bars.append(Bar(faster, f"{faster:.2f}", executor, published))
                    cells.append(
                        {
                            "model": model,
                            "executor": executor,
                            "time": _time(times[executor]),
                            "times faster": faster,
                            "published": published,
                        }
                    )
                if bars:
                    groups.append((model, bars))
            if groups:
                found.append(
                    _figure(
                        f"{name}-{bench.tag}-{batch}",
                        f"{title}, batch {batch}",
                        f"{bench.where}. {hint}",
                        charts.bars(groups, _TIMES_FASTER),
                        cells,
                    )
                )
    return found


def _validation(benches: Sequence[Bench]) -> list[str]:
    found = []
    for bench in benches:
        groups, cells = [], []
        for row in bench.rows:
            bars = []
            for name, one in row["instruments"].items():
                over = float(one["over_pure"])
                bars.append(Bar(over, f"{over:.2f}", name))
                cells.append(
                    {
                        "model": row["model"],
                        "instrument": name,
                        "time": _time(one["wall_ns"]),
                        "times as long": over,
                        "sum by hooks": _number(row.get("layer_timing_share"), 4),
                        "sum by subtraction": _number(row.get("layer_subtraction_share"), 4),
                    }
                )
            groups.append((row["model"], bars))
        found.append(
            _figure(
                f"validation-{bench.tag}",
                "What the timers cost",
                f"{bench.where}. The whole model's time under each instrument, over its time "
                "without any. In the table: the sum over layers by hooks and by subtraction, as "
                "shares of the whole.",
                charts.bars(groups, Axis("times as long", guide=1.0)),
                cells,
            )
        )
    return found


def _layers(benches: Sequence[Bench]) -> list[str]:
    samples: dict[str, list[float]] = {}
    by_model: dict[str, dict[str, list[tuple[float, float, str]]]] = {}
    cells = []
    left_out = sum(b.left_out for b in benches)
    for bench in benches:
        whose = _whose(bench, benches)
        for row in bench.rows:
            for name in row["timings"]:
                ratio = _median(row, "eager") / _median(row, name)
                if name != "eager":
                    # A layer counts as often as the models call it.
                    samples.setdefault(name + whose, []).extend(
                        [ratio] * len(row["case"]["places"])
                    )
                cells.append(
                    {
                        "layer": text_cell(row["case"]["layer"], wrap=True),
                        "executor": name,
                        "device": bench.tag,
                        "calls": len(row["case"]["places"]),
                        "time": _time(_median(row, name)),
                        "times faster": ratio,
                    }
                )
                for model, place, label in row["case"]["places"]:
                    by_model.setdefault(model, {}).setdefault(name + whose, []).append(
                        (float(place), _median(row, name) / 1e3, f"{label}: {row['case']['layer']}")
                    )
    more = f" {left_out} layers were left out." if left_out else ""
    where = "; ".join(dict.fromkeys(b.where for b in benches))
    found = [
        _figure(
            "layer-density",
            "Density of the layers' speed-ups",
            f"{where}. Each layer alone, over its interpreted form.{more}",
            charts.density(samples, Axis("times faster", log=True, guide=1.0)),
            cells,
        )
    ]
    for model, series in by_model.items():
        series = {name: sorted(points) for name, points in series.items()}
        lines = [
            {"layer": text_cell(tip, wrap=True), "executor": n, "time": _time(1e3 * y)}
            for n, points in series.items()
            for _, y, tip in points
        ]
        found.append(
            _figure(
                f"layers-{model}",
                f"Layer times of {model}",
                f"{where}. Each layer alone, by its place in the forward pass.",
                charts.plot(
                    series,
                    Axis("place of the layer"),
                    Axis("microseconds", log=True),
                    joined=False,
                ),
                lines,
            )
        )
    return found


def _oracles(benches: Sequence[Bench]) -> list[str]:
    least = {
        (b.where, row["model"], row["batch"]): float(row["roofline_ns"])
        for b in benches
        if b.kind == "bounds"
        for row in b.rows
    }
    return [
        figure
        for bench in benches
        if bench.kind == "cells"
        for figure in (*_regrets(bench, least), *_plans_over(bench))
    ]


def _regrets(bench: Bench, least: dict[tuple[str, Any, Any], float]) -> list[str]:
    """Return the figure of the plans' regrets; ``least`` has rooflines that were measured apart."""
    plans: dict[str, list[tuple[float, float, str]]] = {}
    cells = []
    for number, row in enumerate(bench.rows, 1):
        cell = f"{row['model']}, batch {row['batch']}"
        timings = row.get("plan_measurement", {}).get("timings", {})
        bound = row.get("roofline_ns", least.get((bench.where, row["model"], row["batch"])))
        for name, value in row.get("regret", {}).items():
            # It is far above the others, which would lie on one line; the next figure shows it.
            if name != "torch.compile":
                plans.setdefault(name, []).append((float(number), 100 * float(value), cell))
            taken = timings.get(name, {}).get("median_ns")
            cells.append(
                {
                    "model and batch": cell,
                    "plan": name,
                    "time": _time(taken),
                    "regret": _percent(value, "+.1f"),
                    "regret over the roofline": taken / bound - 1 if taken and bound else None,
                }
            )
    if not plans:
        return []
    names = [f"{r['model']}, {r['batch']}" for r in bench.rows]
    # Beside each other: they are often equal.
    series = {
        name: [(x + 0.09 * (n - len(plans) / 2), y, cell) for x, y, cell in points]
        for n, (name, points) in enumerate(plans.items())
    }
    return [
        _figure(
            f"oracles-{bench.tag}",
            "Oracles: regret of every plan",
            f"{bench.where}. Time of a plan over the sum of the units' least times, less one; "
            "fusion across units can make it negative. Cells: "
            f"{'; '.join(f'{n}: {name}' for n, name in enumerate(names, 1))}.",
            charts.plot(
                series,
                Axis("cell", ticks=range(1, len(names) + 1)),
                Axis("regret, percent", guide=0.0),
                joined=False,
            ),
            cells,
        )
    ]


def _plans_over(bench: Bench) -> list[str]:
    """Return the figure of the plans that are used, against whole-model executors."""
    groups = []
    for row in bench.rows:
        over = row.get("plan_over", {})
        bars = []
        for other, label in (
            ("best_uniform", "over the best uniform executor"),
            ("torch_compile", "over torch.compile"),
            ("eager", "over interpreted"),
        ):
            if other in over:
                value = float(over[other]["times_faster"])
                bars.append(Bar(value, f"{value:.2f}", label))
        if bars:
            groups.append((f"{row['model']}, {row['batch']}", bars))
    if not groups:
        return []
    return [
        _figure(
            f"plans-{bench.tag}",
            "The plan that is used, against whole-model executors",
            f"{bench.where}. One fresh, interleaved measurement of each cell.",
            charts.bars(groups, _TIMES_FASTER),
            [
                {"model and batch": cell, "over": b.name, "times faster": b.value}
                for cell, bars in groups
                for b in bars
            ],
        )
    ]


def _triton(benches: Sequence[Bench]) -> list[str]:
    found = []
    for bench in benches:
        adding = bench.kind == "add"
        size = "elements" if adding else "columns"
        series: dict[str, list[tuple[float, float]]] = {}
        cells = []
        for row in bench.rows:
            for name, taken in row["median_ns"].items():
                # float32: read and written once; an addition reads two.
                count = row["elements"] if adding else row["rows"] * row["columns"]
                moved = (12 if adding and name != "copy" else 8) * count
                series.setdefault(name, []).append((float(row[size]), moved / taken))
                cells.append(
                    {
                        size: int(row[size]),
                        "form": name,
                        "time": _time(taken),
                        "GB/s": _number(moved / taken, 4),
                        "share of copy": _number(row["share_of_copy"][name]),
                    }
                )
        what = "Element-wise addition" if adding else "Softmax over rows"
        found.append(
            _figure(
                f"triton-{bench.kind}-{bench.tag}",
                f"{what}: achieved bandwidth",
                f"{bench.where}. Bytes that must be read and written, over the time; copy is the "
                "device's own copy of as many elements.",
                charts.plot(
                    {k: sorted(v) for k, v in series.items()},
                    Axis(size if adding else "columns of a row", log=True),
                    Axis("GB/s"),
                ),
                cells,
            )
        )
    return found


#: Title of a section; the kinds of rows it takes; what draws them.
SECTIONS: Final[tuple[tuple[str, tuple[str, ...], Callable[[Sequence[Bench]], list[str]]], ...]] = (
    ("Matrix products", ("compile_matmul",), _matmul),
    ("Convolutions", ("compile_convolutions",), _convolutions),
    ("Convolutions in a model", ("compile_resnet_convolutions",), _resnet),
    ("A predictor", ("compile_predictor",), _predictor),
    ("Blocks in series", ("compile_chains",), _chains),
    ("Models", ("end_to_end", "cells"), _end_to_end),
    ("Timers", ("validation",), _validation),
    ("Layers", ("compile_layers",), _layers),
    ("Oracles", ("cells", "bounds"), _oracles),
    ("Triton", ("add", "softmax"), _triton),
    ("Beyond the six", ("compile_transformers",), _transformers),
)
