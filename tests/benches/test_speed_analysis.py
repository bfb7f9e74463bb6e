# SPDX-License-Identifier: Apache-2.0
"""Instructions are counted where they are executed."""

from __future__ import annotations

import numpy as np
import pytest

from benches.experiments import speed_analysis
from benches.experiments.speed import contenders, levels
from benches.experiments.speed_analysis import (
    ELEMENTS,
    Tracer,
    TracingError,
    analyse,
    cycles,
    kind,
    ports,
)
from pytest_udftorch import UdfError

WIDEST = next(levels())


@pytest.fixture(scope="module")
def tracer():
    return Tracer()


@pytest.fixture(scope="module")
def forms():
    if WIDEST == "scalar":
        pytest.skip("no vector forms on this CPU")
    return {c.name: c for c in contenders("exp", WIDEST)}


def calls(tracer, contender, x):
    inputs = np.full(64, x, dtype=np.float32)
    return speed_analysis._calls(tracer.follow(contender, inputs))


def test_a_call_is_followed_from_its_first_to_its_last_instruction(tracer, forms):
    vector = forms["corem vector"]
    found = calls(tracer, vector, 1.25)
    assert len(found) == 64 // int(vector.form[1:])
    for call in found:
        assert call == found[0]
        assert call[-1].startswith("ret")
        assert any(kind(i) == "permute" for i in call)
    # A result between two floats costs more, and elsewhere.
    assert len(calls(tracer, vector, -104.0)[0]) > 2 * len(found[0])


def test_the_array_form_is_counted_by_element(tracer, forms):
    inputs = np.full(2 * ELEMENTS, 1.25, dtype=np.float32)
    array = analyse(tracer, forms["corem"], inputs)
    vector = analyse(tracer, forms["corem vector"], inputs)
    assert sum(array["mix"].values()) == pytest.approx(array["instructions"])
    assert 0.5 < array["instructions"] / vector["instructions"] < 1.5
    assert all(0 < c < array["instructions"] for c in array["cycles"].values())


@pytest.mark.slow
def test_both_arguments_reach_a_function_of_two(tracer):
    forms = {c.name: c for c in contenders("pow", WIDEST)}
    for name in ("corem", "corem vector"):
        x = np.full(2 * ELEMENTS, 1.25, dtype=np.float32)
        usual = analyse(tracer, forms[name], x, np.full_like(x, 3.7))
        # A NaN takes another way, wherever it stands.
        special = analyse(tracer, forms[name], x, np.full_like(x, np.nan))
        assert special["instructions"] != usual["instructions"]
        assert sum(usual["mix"].values()) == pytest.approx(usual["instructions"])


def test_more_steps_than_there_is_room_for(tracer, forms, monkeypatch):
    monkeypatch.setattr(speed_analysis, "MOST_STEPS", 10)
    with pytest.raises(TracingError, match="corem vector cannot be followed: over 10 steps"):
        calls(tracer, forms["corem vector"], 1.0)


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("vfmadd213ps %zmm2,%zmm0,%zmm1", "multiply, add"),
        ("vaddps %zmm2,%zmm1,%zmm2", "multiply, add"),
        ("vpaddd %zmm2,%zmm1,%zmm2", "integer, bits"),
        ("vpslld $0x12,%zmm1,%zmm0", "integer, bits"),
        ("vpermt2ps (%rax),%zmm1,%zmm3", "permute"),
        ("vcvtps2pd %ymm0,%zmm1", "convert"),
        ("vdivpd %zmm0,%zmm1,%zmm2", "divide, root"),
        ("kortestw %k0,%k1", "compare, select"),
        ("vmovaps %zmm3,%zmm5", "load, move"),
        ("jne 8cd0 <f>", "branch"),
        ("vzeroupper", "other"),
    ],
)
def test_kinds(instruction, wanted):
    assert kind(instruction) == wanted


def test_cycles_grow_with_the_instructions_and_leave_branches_out():
    one = ["vmulps %zmm0, %zmm1, %zmm2"]
    model = speed_analysis.MODELS[0]
    assert cycles(one * 8, model) == pytest.approx(8 * cycles(one, model))
    assert cycles([*one, "jne 10 <f>"], model) == cycles(one, model)


def test_the_fullest_ports_are_those_that_the_instructions_need():
    look_up, multiply = "vpermt2ps %zmm0, %zmm1, %zmm2", "vmulps %zmm0, %zmm1, %zmm3"
    # Permutations have one port, which multiplications do not wait for.
    assert ports([look_up] * 4, "icelake-server") == {"ICXPort5": pytest.approx(4, rel=0.05)}
    both = ports([look_up] * 4 + [multiply] * 4, "icelake-server")
    assert both == {p: pytest.approx(4, rel=0.05) for p in ("ICXPort0", "ICXPort5")}
    assert set(ports([look_up] * 4 + [multiply], "icelake-server")) == {"ICXPort5"}


@pytest.mark.parametrize("ask", [cycles, ports])
def test_a_report_that_says_nothing_is_an_error(monkeypatch, ask):
    monkeypatch.setattr(speed_analysis, "_predicted", lambda instructions, model: "nothing")
    with pytest.raises(UdfError, match=r"llvm-mca said no .* of znver4: 'nothing'"):
        ask(["vmulps %zmm0, %zmm1, %zmm2"], "znver4")
