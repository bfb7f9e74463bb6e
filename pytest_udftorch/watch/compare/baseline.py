# SPDX-License-Identifier: Apache-2.0
"""Baselines: what a run's functions did, in a small file that is kept with the code.

Only what is the same in every run with the same code is in it, and times. The rows of a test stand
on lines of their own, so that a change is a readable diff.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import CompareError
from pytest_udftorch.watch.compare.figures import ALL_TESTS, Figures, Key

FORMAT: Final = "udftorch-baseline/1"
#: The folder of baselines, below pytest's root.
FOLDER: Final = ".udftorch"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VALUE: Final = shapes.text(r"-?(inf|[0-9.e+-]+)")
_HEX: Final = shapes.text(r"[0-9a-f]{8}(,[0-9a-f]{8})?|[0-9a-f]{16}(,[0-9a-f]{16})?")
_LIMITS: Final = shapes.optional(shapes.row(_VALUE, _VALUE))
_ROW: Final = shapes.record(
    {
        **dict.fromkeys(("operator_calls", "elements", "nan", "inf"), shapes.whole()),
        **dict.fromkeys(("in", "out"), _LIMITS),
    },
    {"time_ns": shapes.number(), "timed_elements": shapes.whole()},
    closed=True,
)
_SHAPE: Final = shapes.record(
    {
        "format": shapes.one_of((FORMAT,)),
        "about": shapes.mapping(shapes.text(), shapes.text()),
        "outputs": shapes.mapping(shapes.text(), shapes.mapping(_HEX, _HEX)),
        "tests": shapes.mapping(shapes.text(), shapes.mapping(shapes.text(), _ROW)),
    },
    closed=True,
)


@dataclass
class Baseline:
    """What the functions of libraries did in each test.

    Attributes:
        about: versions, CPU, libraries and their builds, the depth of profiling.
        tests: test -> function -> counts, ranges and times.
        outputs: function -> argument -> result, as encodings in hex.
    """

    about: dict[str, str]
    tests: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, test: str, summary: Mapping[str, Any]) -> None:
        """Add the summary of a test's profile; see ``Profile.summary``."""
        library = str(summary["library"])
        build = " ".join(
            str(summary[k]) for k in ("library", "version", "build_id") if k in summary
        )
        builds = {*filter(None, self.about.get("library", "").split(", ")), build}
        self.about["library"] = ", ".join(sorted(builds))
        self.about |= {k: str(summary[k]) for k in ("torch", "depth", "cpu_level") if k in summary}
        rows = self.tests.setdefault(test, {})
        for row in summary["functions"]:
            if row["dtype"] == "any":
                continue  # only calls and time are known of a whole operator
            name = " ".join((library, row["function"], row["dtype"], row["device"]))
            rows[name.removesuffix(" cpu")] = _row(row)

    @property
    def functions(self) -> list[str]:
        """The functions that ran, each after its library and before its dtype."""
        return sorted({name for rows in self.tests.values() for name in rows})

    def figures(self, label: str, tests: Iterable[str] | None = None) -> Figures:
        """Return what can be compared.

        Args:
            label: what the baseline is called.
            tests: the times of one element are taken over these; by default over all.
        """
        names = {name: name.removesuffix(" float32") for name in self.functions}
        if len({name.partition(" ")[0] for name in names}) == 1:
            # Then it can be compared with that of another library.
            names = {name: shown.partition(" ")[2] for name, shown in names.items()}
        rows: dict[Key, dict[str, Any]] = {}
        chosen = set(self.tests if tests is None else tests)
        for name, shown in names.items():
            found = [self.tests[t][name] for t in sorted(chosen) if name in self.tests[t]]
            time = _time(found)
            rows[ALL_TESTS, shown] = {} if time is None else {"time": time}
            if name in self.outputs:
                rows[ALL_TESTS, shown]["outputs"] = self.outputs[name]
        for test, functions in self.tests.items():
            for name, row in functions.items():
                rows[test, names[name]] = _quantities(row)
        return Figures(label, "profile", rows, self.about)

    def save(self, path: Path) -> None:
        """Write the file; the folder is made if needed.

        Raises:
            CompareError: the system refuses.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole_file.write(path, self.file_text())
        except OSError as error:
            raise CompareError(
                f"Cannot write the baseline {path}: {error.strerror or error}. Choose another "
                "folder with --udf-storage."
            ) from error

    def file_text(self) -> str:
        """Return the file's text: sorted, a row on each line."""
        blocks = [
            f'"format": {json.dumps(FORMAT)}',
            f'"about": {_lines(self.about)}',
            f'"outputs": {_lines({n: dict(sorted(o.items())) for n, o in self.outputs.items()})}',
        ]
        tests = [
            f"  {json.dumps(test)}: {_lines(rows, 3)}" for test, rows in sorted(self.tests.items())
        ]
        blocks.append('"tests": {\n' + ",\n".join(tests) + "\n }" if tests else '"tests": {}')
        return "{\n " + ",\n ".join(blocks) + "\n}\n"


def _lines(data: Mapping[str, Any], indent: int = 2) -> str:
    """Return an object with a name on each line."""
    if not data:
        return "{}"
    rows = [f"{' ' * indent}{json.dumps(n)}: {json.dumps(v)}" for n, v in sorted(data.items())]
    return "{\n" + ",\n".join(rows) + f"\n{' ' * (indent - 1)}}}"


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {k: int(row[k]) for k in ("operator_calls", "elements")}
    for side in ("in", "out"):
        low, high = row[f"{side}_min"], row[f"{side}_max"]
        found[side] = None if low is None else [_value(low), _value(high)]
    # Made: more came out than went in.
    infinities = [row[f"{side}_pos_inf"] + row[f"{side}_neg_inf"] for side in ("in", "out")]
    found["nan"] = max(0, row["out_nan"] - row["in_nan"])
    found["inf"] = max(0, infinities[1] - infinities[0])
    if row["timed_elements"]:
        found |= {
            "time_ns": float(f"{row['time_ns']:.4g}"),
            "timed_elements": row["timed_elements"],
        }
    return found


def _value(value: float | str) -> str:
    """Return a number that reads back the same; a profile's infinities are words already."""
    return value if isinstance(value, str) else repr(float(value))


def _time(rows: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the time of one element, so that runs of more or fewer can be compared."""
    timed = [row for row in rows if row.get("timed_elements")]
    elements = sum(row["timed_elements"] for row in timed)
    return {"ns": sum(row["time_ns"] for row in timed) / elements} if elements else None


def _quantities(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {k: row[k] for k in ("operator_calls", "elements", "nan", "inf")}
    for side in ("in", "out"):
        limits = row[side]
        found[side] = None if limits is None else (float(limits[0]), float(limits[1]))
    return found


def load(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        CompareError: there is none, or the file is no baseline.
    """
    try:
        return of_document(shapes.parse_json(shapes.read_file(path)))
    except OSError as error:
        kept = sorted(p.stem for p in path.parent.glob("*.json"))
        names = f" There: {', '.join(kept)}." if kept else ""
        raise CompareError(
            f"Cannot read the baseline {path}: {error.strerror or error}.{names} Make it with "
            f"pytest --udf-save={path.stem}."
        ) from error
    except shapes.Malformed as error:
        raise CompareError(
            f"{path} is not a baseline: {error}. Take it from the repository's history, or save it "
            f"again with pytest --udf-save={path.stem}."
        ) from error


def of_document(data: Any) -> Baseline:
    """Return the baseline that a JSON document holds.

    Raises:
        Malformed: it holds something else.
    """
    _SHAPE(data, "the file")
    for test, rows in data["tests"].items():
        for row in rows.values():
            for side in ("in", "out"):
                for text in row[side] or ():
                    _check_number(text, f"{side} of {test}")
    return Baseline(data["about"], data["tests"], data["outputs"])


def _check_number(text: str, where: str) -> None:
    try:
        if not math.isnan(float(text)):
            return
    except ValueError:
        pass
    raise shapes.Malformed(f"{where} is {shapes.shown(text)}, not a number")


def path_of(name: str, folder: Path) -> Path:
    """Return where a baseline lies: below the folder, by its name.

    Raises:
        CompareError: the name is no name of a file.
    """
    if not _NAME.fullmatch(name):
        raise CompareError(
            f"{name!r} is not a name of a baseline. Use letters, digits, dots, - and _, such as "
            "main or cpu-avx2; --udf-storage names the folder."
        )
    return folder / f"{name.removesuffix('.json')}.json"
