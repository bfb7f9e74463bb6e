# SPDX-License-Identifier: Apache-2.0
"""Errors of special functions: the control is right, and a rounded logarithm is not."""

from __future__ import annotations

import torch

from benches.experiments import special_functions as experiment


def test_only_the_logarithm_loses_accuracy():
    x = torch.exp2(torch.linspace(4, 100, 2000)).double()
    exact = torch.lgamma(x)
    right = experiment.error(experiment.lgamma(x, torch.log).float(), exact)
    rounded = experiment.error(experiment.lgamma(x, experiment.rounded_log).float(), exact)
    assert right["wrong"] == 0
    assert rounded["max_ulp"] > 1
    assert rounded["wrong"] > 0.1


def test_errors_are_in_units_in_the_last_place():
    exact = torch.tensor([1.0, 3.0, -1024.0], dtype=torch.float64)
    units = torch.tensor([2.0**-23, 2.0**-22, -(2.0**-13)], dtype=torch.float64)
    found = experiment.error((exact + units * torch.tensor([0, 1, 2])).float(), exact)
    assert found == {"max_ulp": 2.0, "wrong": 2 / 3}
