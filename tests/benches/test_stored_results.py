# SPDX-License-Identifier: Apache-2.0
"""benches/results: how large it is, what every file says, and what a summary leaves out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches import certified, store, stored, summaries, tables
from benches.experiments import experiment, stock_certificates
from benches.experiments.experiment import Experiment, Prepared
from pytest_udftorch.prove import load_certificate as load_certificate
from pytest_udftorch.prove.verify.merge import comparison_table

EXP = Path(__file__).parents[2] / "udfs" / "corem" / "exp"
FILES = sorted(stored.RESULTS.rglob("*.json"))
#: What the whole folder and a single file may have, in bytes.
FOLDER, FILE = 1_500_000, 200_000


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder instead of benches/results."""
    folder = tmp_path / "results"
    (folder / "certificates").mkdir(parents=True)
    monkeypatch.setattr(stored, "RESULTS", folder)
    return folder


def test_the_results_stay_small():
    sizes = {path.name: path.stat().st_size for path in FILES}
    assert len(sizes) > 100
    assert sum(sizes.values()) <= FOLDER
    assert [name for name, size in sizes.items() if size > FILE] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_says_where_it_comes_from_and_is_a_summary(path):
    document = stored.load(path)
    assert document["command"]
    if path.parent.name == "certificates":
        # Each run says on which machine which build of which library was compared with what.
        for row in document["rows"]:
            assert row["machine"]["cpu"]
            assert row["version"]
            assert row["compiler"]
            assert row["cpu_level"]
            assert row["reference"]
            assert row["digest"]
    else:
        # Benches of torch.compile, which compile no UDF, keep these at the top.
        environment = document.get("environment", document)
        assert environment["machine"]["cpu"]
        assert environment["versions"]["torch"]
        assert environment["flags"]
    name = path.relative_to(stored.RESULTS).with_suffix("").as_posix()
    if path.stem != "reach":  # which `udftorch reach` writes
        assert summaries.summarised(name, document) == document


# What a summary leaves out -----------------------------------------------------------

ROWS = [{"case": {"n": n}, "runs_ns": {"a": [n, n + 1]}, "share": n / 3} for n in range(4)]


def test_a_summary_leaves_out_runs_and_says_so(results, tmp_path, monkeypatch):
    document = {"command": "c", "rows": ROWS}
    everything = tmp_path / "compile_predictor_cpu.json"
    stored.write(everything, document)
    assert stored.load(everything) == document
    # The raw rows of what goes into the folder are kept where the variable says.
    raw = tmp_path / "raw"
    monkeypatch.setenv(stored.RAW, str(raw))
    stored.write(results / everything.name, document)
    assert stored.load(raw / everything.name) == document
    summary = stored.load(results / everything.name)
    assert [row["case"]["n"] for row in summary["rows"]] == [0, 1, 2, 3]
    assert summary["rows"][1] == {"case": {"n": 1}, "share": 0.3333333}
    assert "runs_ns" in summary["left_out_of"]["rows"]
    assert not list(tmp_path.rglob("*.partial"))


def test_the_command_names_the_folder_of_raw_rows(results, tmp_path, monkeypatch):
    monkeypatch.setenv(stored.RAW, "")  # put back at the end
    monkeypatch.setattr(
        store, "measure", lambda name: stored.write(results / f"{name}.json", {"rows": ROWS})
    )
    assert store.main(["compile_predictor", "--raw", str(tmp_path / "raw")]) == 0
    assert stored.load(tmp_path / "raw" / "compile_predictor.json") == {"rows": ROWS}


def test_a_place_goes_through_lists_and_any_key():
    document = {"rows": [{"a": {"x": 1, "y": 2}, "b": {"x": 3}}, {"a": {"x": 4}}], "x": 5}
    assert summaries._without(document, [("rows", "*", "x")]) == {
        "rows": [{"a": {"y": 2}, "b": {}}, {"a": {}}], "x": 5
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (123456789.0, 123456789.0),
        (0.123456789, 0.1234568),
        (1234.56789, 1234.568),
        (7.916241884231567e-09, 7.916242e-09),
        # Six digits of it would be 0.49999995, which rounds up, and it rounds down.
        (2.34549999, 2.3454999900000002 - 2e-16),
        (0.49999999999, 0.49999999999),
        (0.9999999999, 0.9999999999),
        (1.0000000001, 1.0000000001),
    ],
)
def test_numbers_keep_what_they_say(value, kept):
    assert summaries.rounded(value) == pytest.approx(kept, rel=1e-15)


@given(st.floats(1e-12, 1e12), st.integers(1, 6))
def test_a_number_of_a_summary_rounds_as_before(value, digits):
    short = summaries.rounded(value)
    assert f"{short:.{digits}g}" == f"{value:.{digits}g}"
    assert summaries.rounded(short) == short


def test_rows_without_runs_are_measured_again(results, monkeypatch):
    monkeypatch.setattr(experiment, "_warm_compiler", lambda device: None)  # nothing is compiled

    def prepare(case, device):
        return Prepared({"a": lambda: case["n"], "b": lambda: None})

    cases = [{"n": 1}, {"n": 2}]
    path = results / "compile_predictor_cpu.json"
    for keep_runs, measured in ((False, 2), (False, 0), (True, 2)):
        lines: list[str] = []
        bench = Experiment("counted", lambda _d, _s: cases, prepare, keep_runs=keep_runs)
        experiment.run(bench, path, "cpu", "small", say=lines.append)
        assert len(lines) == measured


# Tables ------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "~", "a", 0.5, [], {}]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["rows", "named", "n", "m"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN | st.lists(st.fixed_dictionaries({"n": PLAIN, "m": PLAIN}), min_size=3, max_size=6))
def test_what_is_packed_is_unpacked(value):
    assert tables.compact(tables.unpacked(tables.packed(value))) == tables.compact(value)


def test_tuples_are_summarised_as_the_lists_that_they_become(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    rows = tuple({"n": n, "share": n + 1 / 3} for n in range(5))
    for name, kind in (("tuple", tuple), ("list", list)):
        stored.write(tmp_path / f"{name}.json", {"command": "c", "rows": kind(rows)})
    texts = [(tmp_path / f"{name}.json").read_text() for name in ("tuple", "list")]
    assert texts[0] == texts[1]
    assert '"table"' in texts[0]


def test_an_object_that_would_be_read_as_a_table_is_refused():
    with pytest.raises(ValueError, match=r"\['table', 'rows'\] would be read as a table"):
        tables.packed({"a": [{"table": 1, "rows": []}]})


def test_records_of_one_shape_are_a_table():
    rows = [{"n": n, "in": "ms", "of": {"a": n + 1, "b": n + 2}} for n in range(5)]
    shape = {"n": None, "in": ["ms"], "of": {"a": None, "b": None}}
    cells = [[n, n + 1, n + 2] for n in range(5)]
    assert tables.packed(rows) == {"table": shape, "rows": cells}
    named = {str(row["n"]): row for row in rows}
    assert tables.packed(named) == {"table": shape, "named": dict(zip(named, cells, strict=True))}
    # One that lacks a part has a cell that says so; other shapes stay as they are.
    del rows[2]["of"]
    assert tables.packed(rows)["rows"][2] == [2, "~", "~"]
    other = [{"a": 1}, {"b": 2}, {"c": 3}]
    assert tables.packed(other) == other


def test_a_row_has_a_line(results):
    path = results / "rows.json"
    rows = [{"name_of_it": f"{n:040}", "values_of_it": [n] * 60} for n in range(20)]
    stored.write(path, {"command": "c", "rows": rows})
    lines = path.read_text().splitlines()
    assert sum(line.startswith('["000') and line.count(",") >= 60 for line in lines) == 20
    assert len(lines) < 30
    assert stored.load(path)["rows"] == rows


# Certificates of stock libraries -----------------------------------------------------


def test_stored_certificates_give_the_same_table(results, tmp_path, monkeypatch):
    source = EXP / "exp.float32.certificate.json"
    (tmp_path / "own").mkdir()
    shutil.copy(source, tmp_path / "own")
    monkeypatch.setattr(stock_certificates, "LIBRARIES", {"own": {"float32": ("exp",)}})
    given = ["own", "--certificates", str(tmp_path), "--store"]
    assert stock_certificates.main(given) == 0
    path = results / "certificates" / "own.json"
    assert path.stat().st_size < source.stat().st_size / 2
    (row, *_) = stored.load(path)["rows"]
    whole = load_certificate(source)
    assert row["digest"] == whole.runs[0].digest()
    assert "chunk_digests" not in row
    summary = list(certified.stock(path.parent))
    assert comparison_table(summary) == comparison_table([whole])
    assert {run.complete for one in summary for run in one.runs} == {True}


def test_what_is_missing_is_verified(tmp_path, monkeypatch, capsys):
    commands = []

    def run(command, check):
        assert check
        commands.append(command[3:])
        target = Path(command[command.index("--out") + 1])
        target.mkdir(exist_ok=True)
        (target / f"{command[5]}.float32.certificate.json").write_text(json.dumps({"edited": 1}))

    monkeypatch.setattr(stock_certificates.subprocess, "run", run)
    assert stock_certificates.main(["libm", "--certificates", str(tmp_path)]) == 2
    assert "is not a certificate" in capsys.readouterr().err
    assert [command[:3] for command in commands] == [
        ["verify", "libm", name] for name in ("cos", "exp", "expm1", "log", "sin", "tanh")
    ]
    with pytest.raises(SystemExit):
        stock_certificates.main(["nowhere"])
    assert "is not one of libm, sleef, std, vml" in capsys.readouterr().err
