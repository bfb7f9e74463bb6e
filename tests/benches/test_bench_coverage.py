# SPDX-License-Identifier: Apache-2.0
"""Stored rows of coverage: those of several machines are joined, and each names its own."""

from __future__ import annotations

import json

import pytest

from benches.experiments import coverage as experiment
from benches.render import docs


def document(cpu, rows, **more):
    row = {"origin": "torchvision", "precision": "float32", "share": 1.0, "evaluations": 42,
           "rows": [], "unknown": {}}  # fmt: skip
    return {
        "command": "python -m benches.store coverage_compiled",
        "environment": {
            "date": "2026-11-24",
            "machine": {"cpu": cpu, "cores": 2, "torch_capability": "AVX512"},
            "versions": {
                "torch": "2.15.0",
                "python": "3.11.7",
                "clang": "19",
                "libc": "glibc 2.36",
            },
            "flags": [],
        },
        "packages": {"timm": "1.0"},
        "models": {f"{n}, float32": {**row, "model": n, "cpu_of_row": cpu} for n in rows},
        **more,
    }


@pytest.fixture
def stored(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps(document("A", ["alexnet", "resnet18"])))
    gpu = {"device": {"machine": {"gpu": "G"}}}
    two.write_text(json.dumps(document("B", ["resnet18", "googlenet"], **gpu)))
    return one, two


def test_rows_of_several_machines_are_joined_and_name_theirs(stored, tmp_path):
    to = tmp_path / "coverage_all.json"
    assert experiment.main(["--merge", *map(str, stored), "--store", str(to)]) == 0
    made = json.loads(to.read_text())
    rows = made["models"]
    assert {n: r["cpu_of_row"] for n, r in rows.items()} == {
        "alexnet, float32": "A", "googlenet, float32": "B", "resnet18, float32": "A",
    }  # fmt: skip
    assert rows["googlenet, float32"]["measured"]["gpu"] == "G"
    assert made["environment"]["machine"]["cpu"] == "A"
    assert made["command"] == "python -m benches.store coverage_all"
    again = experiment.merge([to, stored[1]])  # a row keeps its machine
    assert again["models"] == rows
    text = docs._coverage(made)
    assert (
        "Measured on G beside B, 2 cores, with torch 2.15.0, 2026-11-24: googlenet, float32."
        in (text)
    )
    assert text.count("Measured on") == 1


def test_joining_needs_a_file_to_write(stored, capsys):
    with pytest.raises(SystemExit):
        experiment.main(["--merge", str(stored[0])])
    assert "--merge needs --store" in capsys.readouterr().err
