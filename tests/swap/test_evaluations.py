# SPDX-License-Identifier: Apache-2.0
"""The line of a profile that says what share of a run's evaluations a session swaps."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap import evaluations
from pytest_udftorch.swap.cpu import operators
from pytest_udftorch.watch.profile import report

X = torch.linspace(-2.0, 2.0, 96).reshape(4, 24)


def train():
    """A step: attention, gelu, silu, softmax, their gradients, a norm of odd order."""
    query = X.reshape(1, 2, 6, 8).clone().requires_grad_()
    out = F.scaled_dot_product_attention(query, query, query)
    hidden = F.silu(F.gelu(out).reshape(4, 24))
    loss = F.cross_entropy(hidden, torch.zeros(4, dtype=torch.long))
    (loss + torch.linalg.vector_norm(hidden, 2.5)).backward()


def profiled(run, library="corem", **options):
    with patched(library, profile="counters", **options) as session, evaluations() as found:
        run()
    return found, session.profile


def test_a_profile_has_what_definitions_ask_for():
    found, profile = profiled(train)
    assert found.operators["aten::gelu"] == {"erf": 96}
    assert found.operators["aten::_scaled_dot_product_flash_attention_for_cpu"] == {"exp": 72}
    assert not found.unknown
    assert sum(found.swapped(profile).values()) == found.total
    line = f"100 % of {found.total:,} evaluations are swapped."
    assert found.line(profile) == line
    noted = found.noted(profile)
    assert noted.notes == (*profile.notes, line)
    assert line in str(noted)
    assert f"note: {line}" in report.terminal([noted])
    assert line in noted.summary()["notes"]


def test_what_no_session_swaps_is_named():
    def run():
        torch.special.ndtri(X / 5 + 0.5)
        X.clone().exp_()

    found, profile = profiled(run)
    assert found.swapped(profile) == {"aten::special_ndtri": 0, "aten::exp": 96}
    assert found.line(profile) == (
        "50.00 % of 192 evaluations are swapped; not: 96 of aten::special_ndtri."
    )


def test_an_override_that_is_hidden_is_missed(monkeypatch):
    shown = tuple(op for op in operators._POINTWISE if not op.name.startswith("gelu"))
    with patched("std"), monkeypatch.context() as hidden:
        hidden.setattr(operators, "_POINTWISE", shown)
        operators.cpu_operators.forget()  # sessions keep what they made
        found, profile = profiled(train)
    operators.cpu_operators.forget()
    missed = {n for n, had in found.swapped(profile).items()
              if had < sum(found.operators[n].values())}  # fmt: skip
    assert missed == {"aten::gelu", "aten::gelu_backward"}
    assert "aten::gelu_backward, 96 of aten::gelu" in found.line(profile)


def test_activations_that_are_one_function_count_for_theirs():
    found, profile = profiled(lambda: (torch.sigmoid(X), F.mish(X)), composites=True)
    assert {r.key["function"] for r in profile.rows("function")} == {"sigmoid", "mish"}
    assert found.line(profile).startswith("100 % of 384 ")


@pytest.mark.parametrize("library", ["corem", "std"])
def test_a_run_without_functions_lacks_none(library):
    found, profile = profiled(lambda: X + 1, library)
    assert found.line(profile) == "No evaluation was counted."


def test_an_operator_without_a_definition_is_named():
    found, profile = profiled(lambda: torch.poisson(X.abs()))
    assert found.line(profile).endswith("; what aten::poisson evaluates is not known.")
