# SPDX-License-Identifier: Apache-2.0
"""The reach table: what it finds, that it sees a partial swap, and what is stored."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import cli, errors, find_library
from pytest_udftorch.swap.cpu import attention
from pytest_udftorch.swap.cpu.operators import cpu_operators
from pytest_udftorch.swap.library.symbols import golden_points
from pytest_udftorch.swap.reach import operators
from pytest_udftorch.swap.reach import table as reach
from pytest_udftorch.swap.reach.catalogue import SHAPES, TENSOR_DTYPES, Operator, groups, place
from pytest_udftorch.swap.session.binder import binder

STORED = Path(__file__).parents[2] / "benches" / "results" / "reach.json"


needs_vectors = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch calls no vector forms"
)


def only(rows, **where):
    return [r for r in rows if all(getattr(r, k) == v for k, v in where.items())]


@pytest.fixture(scope="module")
def exp_rows():
    return reach.table(["torch.exp"])


def test_exp_is_reached_in_every_layout_and_dtype(exp_rows):
    forward = only(exp_rows, direction="forward")
    assert {r.layout for r in forward} == set(SHAPES)
    assert {r.dtype for r in forward} == set(TENSOR_DTYPES)
    for row in forward:
        if row.layout == "empty":
            assert row.outcome == "no elements"
        else:
            assert row.outcome == "reached", row
            (changed,) = row.changed.values()
            assert changed[0] == changed[1] > 0
            assert row.symbols
    # The derivative of exp is its result.
    assert {r.outcome for r in only(exp_rows, direction="backward")} == {"no function needed"}


def test_the_canary_changes_every_element_of_float32_results(exp_rows):
    for row in only(exp_rows, dtype="float32", direction="forward"):
        if row.layout != "empty":
            assert row.canary is not None
            assert row.canary[0] == row.canary[1]
    # No function of canary is called for a float64 tensor.
    assert {r.canary for r in only(exp_rows, dtype="float64")} == {None}


def test_operators_made_of_several_functions():
    names = ["F.softmax(last)", "F.log_softmax(first)", "F.elu", "F.softplus"]
    rows = reach.table(names)
    assert {r.operator for r in rows} == set(names)
    outcomes = {r.outcome for r in rows}
    assert outcomes <= {"reached", "no function needed", "no elements"}
    backward = only(rows, operator="F.elu", direction="backward", dtype="float32")
    assert {r.outcome for r in backward} == {"reached"}
    softmax = only(rows, operator="F.softmax(last)", layout="contiguous", dtype="float32")
    assert softmax[0].changed == {"exp": [201, 201]}  # each of 67 positions, in each of 3 rows


@needs_vectors
def test_what_is_overridden_through_the_dispatcher_is_reached(monkeypatch):
    names = [f"F.scaled_dot_product_attention({backend})" for backend in ("flash", "math")]
    rows = only(reach.table([*names, "F.gelu"]), layout="contiguous")
    assert {r.outcome for r in rows} <= {"reached", "no function needed"}
    # Negative control: without the override it is not.
    monkeypatch.setattr(attention, "attention_kernels", lambda loops: {})
    cpu_operators.forget()  # sessions keep what they made
    rows = only(reach.table(names), direction="forward")
    cpu_operators.forget()
    for row in only(rows, operator=names[0]):
        if row.dtype == "float64":  # its exp_u20 is SLEEF's exp
            assert row.outcome == "reached"
        else:
            assert row.outcome in ("not reached", "partly reached")
    assert {r.outcome for r in only(rows, operator=names[1])} == {"reached"}


# Negative controls: slots that a session does not see, as if code were inlined ------


@pytest.fixture
def hide(monkeypatch):
    bound = binder()

    def apply(pattern):
        kept = [s for s in bound.slots if not re.fullmatch(pattern, s.symbol)]
        assert len(kept) < len(bound.slots)
        monkeypatch.setattr(bound, "slots", kept)
        # What sessions remember of these slots holds for no others.
        monkeypatch.setattr(bound, "_steps", OrderedDict())

    return apply


@needs_vectors
@pytest.mark.parametrize(
    ("pattern", "part"), [("expf", "the vectors"), ("Sleef_expf.*", "the tail")]
)
def test_a_partial_swap_is_told_from_a_whole_one(hide, pattern, part):
    hide(pattern)
    rows = reach.table(["torch.sigmoid", "F.softmax(first)"])
    for name in ("torch.sigmoid", "F.softmax(first)"):
        (row,) = only(
            rows, operator=name, direction="forward", dtype="float32", layout="contiguous"
        )
        assert row.outcome == "partly reached", part
        changed, total = row.changed["exp"]
        assert 0 < changed < total
        assert row.reason == ""  # nothing is known of such a torch: the command fails


def test_an_operator_whose_symbols_are_out_of_sight_is_not_reached(hide):
    # torch.exp itself calls VML, which stays: only so can the session be opened at all.
    hide("expf|Sleef_expf.*")
    rows = reach.table(["torch.sigmoid"])
    outcomes = {r.outcome for r in only(rows, dtype="float32", direction="forward")}
    assert outcomes == {"not reached", "no elements"}


def test_a_function_that_the_definition_needs_but_nobody_calls(monkeypatch):
    """An operator that claims to need more than it calls is not wholly reached."""
    wrong = Operator("wrong", torch.exp, "exp sin", layouts=("contiguous",), dtypes=("float32",))
    monkeypatch.setattr(operators, "OPERATORS", [wrong])
    (row,) = reach.table()
    assert row.outcome == "partly reached"


# What a run refuses ------------------------------------------------------------------


def test_one_function_may_have_several_rows():
    named = {op.name for op, *_ in reach.cases(["torch.softmax"])}
    assert named == {"F.softmax(last)", "F.softmax(middle)", "F.softmax(first)"}
    assert {op.name for op, *_ in reach.cases(["torch.pow"])} == {"torch.pow"}
    assert {op.name for op, *_ in reach.cases(["F.gelu(tanh)"])} == {"F.gelu(tanh)"}


def test_unknown_operator():
    with pytest.raises(errors.CoverageError, match=r"no operator 'torch\.exx'.*torch\.exp"):
        reach.table(["torch.exx"])


@pytest.mark.parametrize(
    "call", [torch.rand_like, lambda x: torch.log(x - 10.0)], ids=["random", "NaN"]
)
def test_results_that_tell_nothing_are_refused(monkeypatch, call):
    bad = Operator("bad", call, "log", layouts=("contiguous",), dtypes=("float32",))
    monkeypatch.setattr(operators, "OPERATORS", [bad])
    with pytest.raises(errors.CoverageError, match="gives NaN or does not repeat itself"):
        reach.table()


def test_an_operator_that_torch_does_not_have_for_a_dtype(monkeypatch):
    def refuse(x):
        raise NotImplementedError("not for this dtype")

    lacking = Operator("lacking", refuse, "exp", layouts=("contiguous",), dtypes=("float32",))
    monkeypatch.setattr(operators, "OPERATORS", [lacking])
    (row,) = reach.table()
    assert (row.outcome, row.reason) == ("unsupported", "not for this dtype")


# Stored and shown --------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path, exp_rows):
    path = tmp_path / "reach.json"
    reach.save(exp_rows, path)
    environment, rows = reach.load(path)
    assert rows == exp_rows
    assert {"machine", "versions", "flags", "date"} <= set(environment)


def test_files_that_cannot_be_read_or_written(tmp_path, exp_rows):
    path = tmp_path / "reach.json"
    with pytest.raises(errors.CoverageError, match="is not a stored reach table"):
        reach.load(path)
    for text in ("{", "[]", '{"format": "other"}', '{"format": "udftorch-reach-1"}'):
        path.write_text(text)
        with pytest.raises(errors.CoverageError, match="is not a stored reach table"):
            reach.load(path)
    with pytest.raises(errors.CoverageError, match="cannot be written"):
        reach.save(exp_rows, tmp_path / "nowhere" / "reach.json")


def test_the_command(tmp_path, capsys):
    path = tmp_path / "reach.json"
    assert cli.main(["reach", "torch.log", "--store", str(path)]) == 0
    assert "torch.log forward" in capsys.readouterr().out
    assert {r.operator for r in reach.load(path)[1]} == {"torch.log"}


def test_the_command_explains_mistakes(tmp_path, capsys):
    assert cli.main(["reach", "torch.lgo"]) == 2
    assert "Did you mean 'torch.log'" in capsys.readouterr().err
    assert cli.main(["reach", "torch.log", "--store", str(tmp_path / "no" / "reach.json")]) == 2
    assert "No folder" in capsys.readouterr().err


@needs_vectors
def test_the_command_fails_on_what_it_cannot_explain(hide, capsys):
    hide("Sleef_expf.*")
    assert cli.main(["reach", "torch.sigmoid"]) == 1
    assert "no reason is known for torch.sigmoid" in capsys.readouterr().err


@pytest.fixture(scope="module")
def stored():
    return reach.load(STORED)


def test_the_stored_table_is_complete(stored):
    _, rows = stored
    wanted = {(op.name, direction, dtype, layout) for op, direction, dtype, layout in reach.cases()}
    assert {(r.operator, r.direction, r.dtype, r.layout) for r in rows} == wanted
    assert all(r.reason for r in rows if r.outcome in ("not reached", "partly reached"))


def test_every_reason_is_used(stored):
    _, rows = stored
    for reason in reach.REASONS:
        for operator in reason.operators:
            assert any(r.operator == operator and r.reason == reason.text for r in rows), operator


def test_the_functions_of_corem_are_reached(stored):
    _, rows = stored
    for function in find_library("corem").function_names:
        mine = only(rows, operator=f"torch.{function}", dtype="float32", direction="forward")
        assert {r.outcome for r in mine} == {"reached", "no elements"}, function


def test_the_page_shows_every_operator_and_the_machine(stored):
    environment, rows = stored
    page = reach.markdown(environment, rows)
    assert all(op.name in page for op in operators.OPERATORS)
    assert environment["versions"]["torch"] in page
    assert "in double precision" in page
    assert len(json.dumps(environment)) < 2000


# Layouts -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", SHAPES)
def test_layouts_keep_the_values(layout):
    shape = SHAPES[layout]
    values = torch.tensor(golden_points(torch.Size(shape).numel(), 0.0, 1.0)).reshape(shape)
    placed = place(values, layout)
    assert torch.equal(placed, values)
    if layout in ("strided", "sliced", "transposed"):
        assert not placed.is_contiguous()
    if layout == "channels_last":
        assert placed.is_contiguous(memory_format=torch.channels_last)


def test_needs_are_read_as_groups_of_alternatives():
    assert groups("exp log1p|log") == (frozenset({"exp"}), frozenset({"log1p", "log"}))
    assert groups("") == ()


def test_dimensions_of_row_operators():
    op = Operator("x", F.softmax, "exp", dim="middle")
    assert (op.shape("contiguous"), op.dim_index("contiguous")) == ((2, 7, 37), 1)
    with pytest.raises(ValueError, match="mixes no dimension"):
        Operator("y", torch.exp, "exp").dim_index("contiguous")
