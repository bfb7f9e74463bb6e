# SPDX-License-Identifier: Apache-2.0
"""The benches of the contract's speed and of what 24 models call outside of it."""

from __future__ import annotations

import torch

from benches.experiments import contract_coverage, contract_speed


def test_each_library_is_timed_by_its_own_kernel():
    x, results = torch.rand(100, 1000), []

    def call():
        results.append(tuple(x.sum(1).tolist()))

    found = contract_speed.compared(call)
    assert len(set(results)) == 2  # two orders of addition
    assert found["speed"]["count"] == contract_speed.ROUNDS
    assert all(seconds > 0 for seconds in found["median_s"].values())


def test_a_step_names_what_is_outside_and_only_that():
    def made(between):
        layer = torch.nn.Linear(4, 4)
        return lambda: (layer, lambda m: between(m(torch.rand(3, 4))).sum())

    assert not contract_coverage.outside(made(torch.tanh))
    found = contract_coverage.outside(made(lambda y: y.cumprod(1)))
    assert found["aten::cumprod"]["calls"] >= 1
