# SPDX-License-Identifier: Apache-2.0
"""What the quick paths of corem gain, and where corem stands beside what torch calls.

The functions that have a quick path run as they are, without it (the same sources under a
description that leaves ``quick`` out), and beside VML and SLEEF, interleaved in one process.
llvm-mca says what their code takes on other CPUs. Whole torch operators follow, stock against
corem, on 2^16 elements and one thread. ``--store`` keeps the figures of this machine beside those
of others in ``benches/results/quick_paths.json``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest_udftorch
from benches import stored
from benches.experiments import speed, speed_analysis
from pytest_udftorch.swap.toolchain.environment import caption, describe

FILE: Final = stored.RESULTS / "quick_paths.json"
COMMAND: Final = "python -m benches.experiments.quick_paths --store"


def with_quick_path() -> list[str]:
    """Return the functions of corem that have one."""
    library = pytest_udftorch.find_library("corem")
    return [n for n in library.function_names if library.functions[n, "float32"].quick is not None]


@contextmanager
def described_without(*keys: str) -> Iterator[Path]:
    """Yield a copy of corem whose description leaves out keys of functions."""
    folder = pytest_udftorch.find_library("corem").folder
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "udfs" / "corem"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.certificate.json"))
        for other in ("corem-ff", "corem-composites"):
            shutil.copytree(folder.parent / other, copy.parent / other)
        description = copy / "udf.toml"
        text = description.read_text(encoding="utf-8")
        lines = re.compile(rf"^({'|'.join(keys)})(_\w+)? = .*\n", re.M)
        description.write_text(lines.sub("", text), encoding="utf-8")
        yield copy


def measure_forms(functions: Sequence[str], rounds: int) -> dict[str, Any]:
    """Time the array and the widest vector form of every function where it has a quick path."""
    harness, tracer = speed.Harness(), speed_analysis.Tracer()
    library = pytest_udftorch.find_library("corem")
    found: dict[str, Any] = {}
    with described_without("quick") as copy:
        plain = pytest_udftorch.find_library(str(copy))
        for function in functions:
            found[function] = {}
            for level in speed.levels():
                # The scalar form does not use a quick path, nor do some levels.
                used = library.functions[function, "float32"].quick_at(level)
                if level == "scalar" or used is None:
                    continue
                field = speed.contenders(function, level)
                forms = pytest_udftorch.build_library(plain, level).forms(function, "float32")
                field.append(speed.Contender("without quick path", "array", forms["array"]))
                inputs = speed.sample(function, speed.L1_ELEMENTS)
                row = speed.measure(harness, field, inputs, rounds)
                twice = speed.sample(function, 2 * speed_analysis.ELEMENTS)
                for contender in (field[0], field[-1]):
                    row[contender.name] |= speed_analysis.analyse(tracer, contender, *twice)
                found[function][level] = row
                print(function, level, {k: round(v["ns"], 3) for k, v in row.items()}, flush=True)
    return found


def measure_operators(functions: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Time ``torch.<function>``, std and corem interleaved; see ``speed.measure_operators``."""
    rows = speed.measure_operators(rounds, [f"torch.{function}" for function in functions])
    return {name.removeprefix("torch."): row for name, row in rows.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*", help="default: those with a quick path")
    parser.add_argument("--rounds", type=int, default=speed.ROUNDS)
    parser.add_argument("--store", action="store_true", help=f"add this machine to {FILE.name}")
    options = parser.parse_args(arguments)
    functions = options.functions or with_quick_path()
    figures = {
        "environment": describe(),
        "rounds": options.rounds,
        "forms": measure_forms(functions, options.rounds),
        "operators": measure_operators(functions, options.rounds),
    }
    print(caption(describe()))
    if options.store:
        stored.add_machine(FILE, COMMAND, figures)


if __name__ == "__main__":
    main()
