# SPDX-License-Identifier: Apache-2.0
"""Profiles: what NumPy counted comes out of merging, tables and exports unchanged."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
from counts import META, Recorder, net

from pytest_udftorch import cli
from pytest_udftorch.base.units import share_text, time_text, value_text
from pytest_udftorch.errors import (
    NoProfileError,
    PackageMissingError,
    ProfileError,
    ProfileFileError,
)
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.export import write_text
from pytest_udftorch.swap.records.profile import KINDS, Profile, load_profiles, merge_profiles
from pytest_udftorch.swap.records.totals import IDENTITY
from pytest_udftorch.watch import profiles_html


def from_recorder(recorder, **meta):
    return Profile.from_arrays(
        recorder.strings,
        {"clocks": recorder.clocks, **META, **meta},
        cells=recorder.cells,
        operators=recorder.operators,
        events=recorder.events,
    )


@pytest.fixture(scope="module")
def recorder():
    """A net whose gate overflows: exp of up to 279."""
    recorder = Recorder()
    net(recorder, scale=40)
    return recorder


@pytest.fixture(scope="module")
def one(recorder):
    return from_recorder(recorder)


def test_rows_are_what_numpy_counts_over_all_values():
    recorder = Recorder()
    x = np.array([1e-40, 1, 800, -3, 0, np.nan, np.inf], np.float32)
    y = np.array([2.0, -800.0], np.float64)
    recorder.call("exp", x, module="a")
    recorder.call("exp", x, module="b", form="scalar")
    recorder.call("exp", y, module="b")
    rows = from_recorder(recorder).rows("function", "dtype")
    assert [r.name for r in rows] == ["exp", "exp float64"]
    single, double = rows
    assert (single.calls, single.elements, single.operator_calls) == (2, 14, 3)
    assert single.limits("in") == (-3, np.inf)
    assert single.limits("out") == (np.exp(np.float32(-3)), np.inf)
    special = {k: (single.special("in", k), single.special("out", k)) for k in KINDS}
    assert special == {"zero": (2, 0), "subnormal": (2, 0), "inf": (2, 4), "nan": (2, 2)}
    assert not single.made("inf")  # the block had an infinity already
    assert double.elements == 2
    assert double.limits("out") == (0.0, np.exp(2.0))
    # 1e-40, 1 and -3 in; 800 is 2^9.6.
    histogram = single.cell["hist_in"]
    found = {(int(s), int(b) - 160): int(histogram[s, b]) for s, b in np.argwhere(histogram)}
    assert found == {(0, -133): 2, (0, 0): 2, (0, 9): 2, (1, 1): 2}


def test_operator_calls_are_counted_once_per_call_of_the_operator():
    recorder = Recorder()
    x = np.ones(5, np.float32)
    for _ in range(3):
        recorder.call("exp", x, operator="aten::_log_softmax")
        recorder.call("log", x, operator="aten::_log_softmax", within=True)
        recorder.call("log", x, operator="aten::_log_softmax", within=True, form="scalar")
    recorder.call("log", x)
    p = from_recorder(recorder)
    assert {r.name: r.operator_calls for r in p.rows("function", "dtype")} == {"exp": 3, "log": 4}
    assert {r.name: r.calls for r in p.rows("function", "dtype")} == {"exp": 3, "log": 7}
    assert {r.name: r.operator_calls for r in p.rows("operator")} == {
        "aten::_log_softmax": 3,
        "aten::log": 1,
    }
    assert p.rows()[0].operator_calls == 4


def test_a_run_in_parts_is_the_run(tmp_path):
    """Two processes and two scopes add up to what one process would have counted."""
    whole, parts = Recorder(), [Recorder(), Recorder(), Recorder()]
    for number, part in enumerate(parts):
        # Other modules first, so that the same names have other ids.
        part.strings.id(f"only in part {number}")
        net(part, seed=number)
        net(whole, seed=number)
    parts[0].write(tmp_path / "profiled-a.bin")
    with record.ProfileWriter(tmp_path / "profiled-b.bin", parts[1].strings, META) as writer:
        writer.cells(parts[1].cells)
        writer.operators(parts[1].operators)
        writer.events(parts[1].events)
    parts[2].write(tmp_path / "profiled-c.bin", scope="test_c")
    found, want = Profile.load(tmp_path), from_recorder(whole)
    assert len(found.processes) == 3
    assert len(found.events) == len(want.events)

    def comparable(p):
        cells = [
            {k: v for k, v in c.items() if "time" not in k and not k.endswith("_ns")}
            for c in p.document()["cells"]
        ]
        return sorted(cells, key=lambda c: [c[k] for k in layout.CELL_KEY])

    assert comparable(found) == comparable(want)
    lines = [line.split()[:3] for line in found.table("function").split("\n")]
    assert ["exp", "24", "24"] in lines
    part = Profile.load(tmp_path / "profiled-c.bin", scope="test_c")
    assert comparable(part) == comparable(from_recorder(parts[2]))
    assert not len(part.events)
    with pytest.raises(NoProfileError, match=r"no scope 'test_d'\. Did you mean 'test_c'"):
        Profile.load(tmp_path, scope="test_d")


def test_merging_changes_nothing_of_the_parts(one):
    before = one.document()
    merged = merge_profiles([one, one])
    assert one.document() == before
    assert merged.rows()[0].elements == 2 * one.rows()[0].elements
    assert merged.first("inf") == one.first("inf")
    assert len(merged.processes) == 1  # parts of one process
    assert merge_profiles([one]) is one


def test_merge_refuses_what_does_not_belong_together(one, recorder):
    for key in IDENTITY:
        other = from_recorder(recorder, **{key: "other"})
        with pytest.raises(ProfileError, match=rf"differ in {key} \("):
            merge_profiles([one, other])
    with pytest.raises(NoProfileError):
        merge_profiles([])


def test_first_names_the_place(one, recorder):
    first = one.first("inf")
    assert (first.function, first.operator, first.module, first.stage, first.dtype) == (
        "exp", "aten::sigmoid", "gate", "forward", "float32",
    )  # fmt: skip
    assert 0 < first.after_s < 60
    assert str(first).startswith("exp (float32) in aten::sigmoid, layer gate, forward, after ")
    assert one.first("nan") is None
    with pytest.raises(ValueError, match="not one of nan, inf, subnormal"):
        one.first("zero")


def test_first_is_the_earliest_of_all_processes(tmp_path):
    x = np.full(16, -1, np.float32)
    early, late = Recorder(), Recorder()
    early.call("log", x, module="early")
    late.call("log", x, module="late")
    # The clocks of two machines: CLOCK_MONOTONIC starts anywhere.
    late.clocks = {k: v for k, v in late.clocks.items()}
    late.clocks["monotonic_ns"] += 10**15
    for row in late.rows.values():
        row["made_nan_ns"] += np.uint64(10**15)
    for order in ((early, late), (late, early)):
        merged = merge_profiles(from_recorder(r) for r in order)
        assert merged.first("nan").module == "early"


def test_what_came_in_was_not_made_here():
    recorder = Recorder()
    recorder.call("exp", np.array([np.nan, 1], np.float32))
    recorder.call("log", np.array([-1, 1], np.float32), module="m")
    assert from_recorder(recorder).first("nan").module == "m"


def test_layers_come_in_the_order_of_use_and_code_without_a_layer_last(one):
    assert list(dict.fromkeys(r.key["module"] for r in one.layers())) == [
        "features.1", "features.3", "gate", "",
    ]  # fmt: skip


def test_tables(one):
    for by in ("function", "operator", "layer", "stage"):
        text = one.table(by)
        header, rule, *lines = text.split("\n")
        assert header.split()[0] == by
        assert set(rule) == {"-"}
        assert all(len(line) <= len(rule) for line in lines)
    table = {line.split()[0]: line for line in one.table().split("\n")[2:]}
    assert "-238.7" in table["exp"]
    assert "inf 0→269" in table["exp"]
    assert "share" in one.table()
    assert one.table(top=1).endswith("... and 3 more")
    assert "more" not in one.table(top=4)
    with pytest.raises(ValueError, match="not one of function, operator, layer, stage"):
        one.table("module")


def test_a_table_without_times_has_no_columns_for_them():
    recorder = Recorder()
    recorder.call("exp", np.ones(3, np.float32))
    text = from_recorder(recorder).table()
    assert "time" not in text
    assert "share" not in text


def test_nothing_was_called():
    p = from_recorder(Recorder())
    assert p.table() == "no watched function was called"
    assert p.layers() == []
    assert p.first("nan") is None
    assert p.document()["cells"] == []
    assert len(p.to_pandas()) == 0


def test_a_row_of_nothing_but_nans_has_no_range():
    recorder = Recorder()
    recorder.call("exp", np.array([np.nan], np.float32))
    p = from_recorder(recorder)
    assert p.rows()[0].limits("in") is None
    assert p.document()["cells"][0]["in_min"] is None
    assert np.isnan(p.to_pandas()["in_min"][0])


def test_a_part_that_no_profile_has_is_named():
    with pytest.raises(ValueError, match=r"no part 'layer'\..*cells.*call rows\(\)"):
        from_recorder(Recorder()).to_pandas("layer")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-25.234, "-25.23"), (1e-9, "1e-9"), (1.23456e10, "1.235e10"), (1e100, "1e100"),
     (float("inf"), "inf"), (None, "-")],
)  # fmt: skip
def test_values_as_text(value, text):
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 ns"), (12.34, "12.3 ns"), (999.6, "1 µs"), (1.5e6, "1.5 ms"), (999.9e6, "1 s"),
     (4.2e12, "4,200 s"), (999.9e3, "1 ms")],
)  # fmt: skip
def test_times_as_text(time_ns, text):
    assert time_text(time_ns) == text


def test_shares_as_text():
    assert share_text(1, 3) == "33.3 %"
    assert share_text(1, 10_000) == "< 0.1 %"
    assert share_text(0, 3) == "0.0 %"
    assert share_text(1, 0) == "-"


# Files -------------------------------------------------------------------------------


def test_save_and_load(one, tmp_path):
    one.save(tmp_path / "p.bin")
    back = Profile.load(tmp_path / "p.bin")
    assert back.document() == one.document()
    assert back.to_pandas("events").equals(one.to_pandas("events"))
    with pytest.raises(ProfileFileError, match="holds an earlier profile"):
        one.save(tmp_path / "p.bin")


def test_saved_events_keep_their_process(one, recorder, tmp_path):
    both = merge_profiles([one, from_recorder(recorder, pid=77, rank=1)])
    both.save(tmp_path / "p.bin")
    back = Profile.load(tmp_path / "p.bin")
    assert [p.get("rank") for p in back.processes] == [None, 1]
    assert np.bincount(back.events["process"]).tolist() == [len(one.events)] * 2
    assert set(back.to_pandas("events")["pid"]) == {0, 77}


def test_a_cut_file_and_lost_events_are_noted(recorder, tmp_path):
    recorder.write(tmp_path / "profiled-a.bin")
    data = (tmp_path / "profiled-a.bin").read_bytes()
    (tmp_path / "profiled-a.bin").write_bytes(data[:-10])
    (tmp_path / "profiled-b.bin").touch()
    with pytest.warns(record.ProfileLossWarning):  # noqa: SIM117
        with record.ProfileWriter(tmp_path / "profiled-c.bin", recorder.strings, META) as writer:
            writer.lost_events(1234)
    (tmp_path / "profiled-d.bin").write_bytes(data[:-16])
    (tmp_path / "notes.txt").write_text("something else")
    assert Profile.load(tmp_path).notes == (
        "profiled-a.bin is cut off; it was read up to the last whole record.",
        "profiled-b.bin is empty: nothing could be written to it.",
        "profiled-c.bin lacks 1,234 events that were dropped.",
        "profiled-d.bin was not closed: its process died, or still runs.",
    )


def test_no_profile(tmp_path):
    with pytest.raises(NoProfileError, match=r"There is no file or folder .*none"):
        Profile.load(tmp_path / "none")
    with pytest.raises(NoProfileError, match=r"holds no profile .*--udf-profile-out=DIR"):
        Profile.load(tmp_path)
    (tmp_path / "profiled-x.bin").touch()
    with pytest.raises(NoProfileError, match="holds no profile"):
        Profile.load(tmp_path)


def test_a_header_of_someone_else(tmp_path):
    (tmp_path / "p.bin").write_bytes(record._header({"library": "x"}))
    with pytest.raises(ProfileFileError, match="lacks the clocks"):
        Profile.load(tmp_path / "p.bin")


def test_load_all_keeps_libraries_apart(recorder, tmp_path):
    recorder.write(tmp_path / "a" / "profiled-1.bin")
    recorder.write(tmp_path / "a" / "profiled-2.bin", META | {"library": "std"})
    recorder.write(tmp_path / "b" / "profiled-1.bin")
    std, corem = load_profiles([tmp_path / "a", tmp_path / "b"])
    assert (std.label, corem.label) == ("std", "corem")
    assert corem.rows()[0].elements == 2 * std.rows()[0].elements
    with pytest.raises(ProfileError, match=r"library \('corem' and 'std'\)"):
        Profile.load(tmp_path / "a")
    recorder.write(tmp_path / "c" / "profiled-1.bin", META | {"build_id": "other"})
    with pytest.raises(ProfileError, match="differ in build_id"):
        load_profiles([tmp_path / "a", tmp_path / "c"])


def test_the_time_that_was_profiled(recorder, tmp_path):
    with record.ProfileWriter(tmp_path / "p.bin", recorder.strings, META) as writer:
        writer.mark(wall_ns=5)
        writer.mark(wall_ns=70)
    assert Profile.load(tmp_path / "p.bin").wall_ns == 70


# Exports -----------------------------------------------------------------------------


def test_json(one, tmp_path):
    one.save_json(tmp_path / "deep" / "p.json")
    data = json.loads((tmp_path / "deep" / "p.json").read_text())
    assert data == one.document()
    (gate,) = (c for c in data["cells"] if c["module"] == "gate")
    assert gate["out_max"] == "inf"
    assert sum(gate["hist_in"]["+"].values()) + sum(gate["hist_in"]["-"].values()) == 3072
    assert data["first"]["inf"].startswith("exp (float32) in aten::sigmoid")
    json.dumps(one.summary(), allow_nan=False)


@pytest.mark.parametrize("what", ["cells", "operators", "events"])
def test_csv_and_parquet_hold_the_frame(one, tmp_path, what):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = one.to_pandas(what)
    assert len(frame) == len(getattr(one, what))
    one.save_csv(tmp_path / "p.csv", what)
    one.save_parquet(tmp_path / "p.parquet", what)
    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "p.parquet"), frame)
    csv = pandas.read_csv(tmp_path / "p.csv", keep_default_na=False)
    assert list(csv.columns) == list(frame.columns)
    assert len(csv) == len(frame)
    if what == "cells":
        assert frame["elements"].sum() == one.rows()[0].elements
        assert set(frame["stage"]) == {"forward", "backward"}
    if what == "events":
        assert frame["out_inf"].sum() == 2
        assert frame["elements"].sum() == one.rows()[0].elements


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_a_package_that_is_missing(one, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PackageMissingError, match=rf"needs the package {package}, .*pip install"):
        one.save_parquet(tmp_path / "p.parquet")


def test_a_place_that_cannot_be_written(one, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ProfileFileError, match="Choose another place"):
        one.save_json(tmp_path / "file" / "p.json")


def test_trace(one, tmp_path):
    one.save_trace(tmp_path / "t.json")
    trace = json.loads((tmp_path / "t.json").read_text())
    spans = trace["traceEvents"]
    assert len(spans) == len(one.events)
    for span, event in zip(spans, one.events, strict=True):
        start = trace["baseTimeNanoseconds"] + span["ts"] * 1000
        assert start == pytest.approx(int(event["start_ns"]), abs=2, rel=0)
        assert span["dur"] * 1000 == pytest.approx(int(event["end_ns"] - event["start_ns"]))
    gate = next(s for s in spans if s["args"]["module"] == "gate")
    assert gate["name"] == "exp"
    assert gate["args"]["out max"] == "inf"
    assert "out inf" in gate["args"]["special values"]


def test_a_trace_needs_events(recorder, tmp_path):
    p = Profile.from_arrays(recorder.strings, META, cells=recorder.cells)
    with pytest.raises(NoProfileError, match="--udf-profile=events"):
        p.save_trace(tmp_path / "t.json")


@pytest.mark.parametrize("content", ["[]", "{", '{"traceEvents": []}'])
def test_something_else_as_torchs_trace(one, tmp_path, content):
    (tmp_path / "torch.json").write_text(content)
    with pytest.raises(ProfileFileError, match="is not a trace of torch"):
        one.save_trace(tmp_path / "t.json", tmp_path / "torch.json")
    with pytest.raises(ProfileFileError, match="Cannot read"):
        one.save_trace(tmp_path / "t.json", tmp_path / "none.json")


def test_a_layer_has_the_same_name_everywhere(tmp_path):
    recorder = Recorder()
    recorder.call("exp", np.ones(4, np.float32), module="Net.act", operator="aten::exp")
    recorder.call("exp", np.ones(5, np.float32), module="", operator="aten::exp")
    recorder.write(tmp_path / "profiled-1.bin")
    (found,) = load_profiles([tmp_path])
    want = {"Net.act": 4, "(no module)": 5}
    assert {r.key["layer"]: r.elements for r in found.rows("layer")} == want
    assert {r.name: r.elements for r in found.rows("layer")} == want
    assert {r.layer: r.elements for r in found.layers()} == want
    table = [line.split("  ")[0] for line in found.table("layer").splitlines()[2:]]
    assert set(table) == set(want)
    frame = found.to_pandas()
    assert dict(zip(frame["layer"], frame["elements"], strict=True)) == want
    found.save_csv(tmp_path / "p.csv")
    header, *lines = (tmp_path / "p.csv").read_text().splitlines()
    place = header.split(",").index("layer")
    assert {line.split(",")[place] for line in lines} == set(want)
    assert {c["layer"]: c["elements"] for c in found.document()["cells"]} == want
    page = profiles_html([found])
    write_text(tmp_path / "new" / "p.html", page)
    assert (tmp_path / "new" / "p.html").read_text() == page
    assert all(f'data-sort="{name}"' in page for name in want)
    with pytest.raises(ValueError, match=r"'layers'\. Did you mean 'layer'"):
        found.rows("layers")


def test_a_profile_shows_itself(tmp_path):
    recorder = Recorder()
    recorder.call("exp", np.full(4, 100, np.float32), module="<b>", operator="aten::exp")
    recorder.write(tmp_path / "profiled-1.bin")
    (found,) = load_profiles([tmp_path])
    assert repr(found).startswith("<Profile corem")
    assert len(repr(found)) < 200
    assert all(len(repr(row)) < 100 and "calls" in repr(row) for row in found.rows("function"))
    assert str(found).splitlines()[1:4] == found.table("function").splitlines()
    assert "first inf made: exp (float32) in aten::exp, layer <b>" in str(found)
    html = found._repr_html_()
    assert "<td>exp</td>" in html
    assert "layer &lt;b&gt;" in html


# Runs --------------------------------------------------------------------------------


def at(second: int, **more: object) -> dict[str, object]:
    """The header of a process that began, and profiled, at a second."""
    ns = second * 10**9
    clocks = {"monotonic_ns": 0, "realtime_ns": ns, "process_ns": ns}
    return META | {"clocks": clocks, "session": f"{second}"} | more


def write_run(path, recorder, meta, wall_s=5):
    with record.ProfileWriter(path, recorder.strings, meta) as writer:
        writer.cells(recorder.cells)
        writer.mark(wall_ns=wall_s * 10**9)


def test_profiles_of_two_runs_are_added_up_only_if_asked(recorder, tmp_path, capsys):
    write_run(tmp_path / "profiled-1.bin", recorder, at(100))
    write_run(tmp_path / "profiled-2.bin", recorder, at(104, pid=7))  # a worker of the first
    one = Profile.load(tmp_path).rows()[0].elements
    write_run(tmp_path / "profiled-3.bin", recorder, at(200))
    says = r"2 runs under corem.*01:40 UTC: \S+-1.bin, \S+-2.bin; .*03:20 UTC: \S+-3.bin\)"
    for load in (lambda: Profile.load(tmp_path), lambda: load_profiles([tmp_path])):
        with pytest.raises(ProfileError, match=says):
            load()
    assert 2 * Profile.load(tmp_path, add_runs=True).rows()[0].elements == 3 * one
    assert cli.main(["report", str(tmp_path)]) == cli.MISUSE
    assert "--add-runs" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path), "--add-runs"]) == 0


def test_a_process_that_was_killed_lived_until_it_last_wrote(recorder, tmp_path):
    write_run(tmp_path / "profiled-1.bin", recorder, at(100))
    data = (tmp_path / "profiled-1.bin").read_bytes()
    write_run(tmp_path / "profiled-2.bin", recorder, at(107))
    with pytest.raises(ProfileError, match="of 2 runs"):
        load_profiles([tmp_path])
    mark = data.rindex(b'{"wall_ns"') - 16
    (tmp_path / "profiled-1.bin").write_bytes(data[:mark])
    os.utime(tmp_path / "profiled-1.bin", (108, 108))
    assert "was not closed" in load_profiles([tmp_path])[0].notes[0]


def test_a_profile_counts_once_however_often_it_is_named(recorder, tmp_path):
    write_run(tmp_path / "a" / "profiled-1.bin", recorder, at(100))
    (once,) = load_profiles([tmp_path / "a"])
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (twice,) = load_profiles([tmp_path / "a", tmp_path / "a" / "profiled-1.bin", tmp_path / "link"])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (copied,) = load_profiles([tmp_path / "a", tmp_path / "b"])
    assert once.document()["cells"] == twice.document()["cells"] == copied.document()["cells"]
    assert once.notes == twice.notes == ()
    assert re.fullmatch(r"\S+b/profiled-1.bin is a copy of \S+; it counts once\.", *copied.notes)
