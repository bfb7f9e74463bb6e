# SPDX-License-Identifier: Apache-2.0
"""The recorder of foreign suites sees a wrong library in a suite that depends on it."""

from __future__ import annotations

import sys

import pytest

from benches.experiments import foreign_suites as foreign

SUITE = """
import random
import torch

def test_of_the_last_bit():
    assert torch.exp(torch.zeros(1)).item() == 1

def test_of_the_seeds():
    assert random.random() == random.Random(0).random()
    torch.testing.assert_close(torch.rand(3), torch.rand(3, generator=torch.manual_seed(0)))
"""


@pytest.mark.slow
def test_a_wrong_library_shows_in_the_outcomes(tmp_path):
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "test_it.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    prepared = foreign.Prepared.__new__(foreign.Prepared)
    prepared.suite = foreign.Suite("made-up", "1", "", (), ("test_it.py",))
    prepared.python, prepared.folder = sys.executable, folder
    std = prepared.run(foreign.STD, ["test_it.py"])
    assert std.counts() == {"passed": 2}
    wrong = prepared.run(foreign.CONTROLS[0], ["test_it.py::test_of_the_last_bit"])
    assert wrong.counts() == {"failed": 1}
    assert "assert" in wrong.messages["test_it.py::test_of_the_last_bit"]
    assert wrong.mathematics != std.mathematics
