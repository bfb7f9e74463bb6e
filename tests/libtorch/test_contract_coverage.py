# SPDX-License-Identifier: Apache-2.0
"""The bench of what 24 models call outside of the contract."""

from __future__ import annotations

import torch

from benches.experiments import contract_coverage


def test_a_step_names_what_is_outside_and_only_that():
    def made(between):
        layer = torch.nn.Linear(4, 4)
        return lambda: (layer, lambda m: between(m(torch.rand(3, 4))).sum())

    assert not contract_coverage.outside(made(torch.tanh))
    found = contract_coverage.outside(made(lambda y: y.cumprod(1)))
    assert found["aten::cumprod"]["calls"] >= 1
