# SPDX-License-Identifier: Apache-2.0
"""Whatever runs in plain torch runs under every watcher, with the same result."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from watched import CONTROLS, RUNS, WATCHERS, X, bits

from pytest_udftorch.diagnose import (
    check_golden,
    first_difference,
    first_origin,
    significant_bits,
    smallest_cause,
    store_golden,
)
from pytest_udftorch.errors import DiagnosisError, GoldenError, RunError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_watcher_changes_nothing(watcher, name):
    run = RUNS[name]
    wanted = bits(run())
    with WATCHERS[watcher]():
        got = run()
    assert bits(got) == wanted


def test_a_change_would_be_seen():
    """Negative controls: a watcher that changes results, and one that does nothing."""
    wanted = bits(RUNS["strided"]())
    with CONTROLS["changes"]():
        assert bits(RUNS["strided"]()) != wanted
    with CONTROLS["changes nothing"]():
        assert bits(RUNS["strided"]()) == wanted
    assert bits(X) != bits(torch.nextafter(X, X + 1))
    assert bits(X.to_sparse()) != bits(X)


#: Runs of which a diagnosis has nothing to say.
SILENT = ("fake",)


@pytest.mark.parametrize("name", [n for n in RUNS if n not in SILENT])
def test_diagnoses_end(name, tmp_path):
    """Each gives a result, or an error of the package that says what there is nothing to say of."""
    run = RUNS[name]
    assert not first_difference("eager", "threads=1", make=lambda: run).findings
    first_difference("eager", "library=corem", make=lambda: run)
    significant_bits(make=lambda: run, samples=3, perturb="operators")
    with contextlib.suppress(DiagnosisError):
        smallest_cause("std", "corem", run)
    with contextlib.suppress(GoldenError, RunError):
        store_golden(tmp_path / "golden.json", run)
        check_golden(tmp_path / "golden.json", run)


MADE = {
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "bsc": lambda x: x.to_sparse_bsc((2, 3)),
    "nested": lambda x: torch.nested.as_nested_tensor([x[:2], x[2:]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged),
    "mkldnn": lambda x: x.to_mkldnn(),
    "wrapper": lambda x: TwoTensor(x, x.clone()),
    "complex": lambda x: torch.complex(x, x),
}


@pytest.mark.parametrize("name", MADE)
def test_a_diff_sees_the_last_bit_of_tensors_that_are_not_plain(name):
    make, other = MADE[name], X.clone()
    other[5, 5] = torch.nextafter(other[5, 5], torch.tensor(9.0))

    def difference(x, y):
        return first_difference(lambda: make(x) * 2, lambda: make(y) * 2)

    assert not difference(X, X.clone()).findings
    assert difference(X, other).findings


@pytest.mark.parametrize("name", MADE)
def test_a_nan_is_seen_in_tensors_that_are_not_plain(name):
    made = MADE[name](X)
    found = first_origin("nan", make=lambda: lambda: made * math.inf * 0)
    assert found.operator.startswith("aten::mul")
    assert not first_origin("nan", make=lambda: lambda: made * 2).found


def test_what_hides_its_numbers_is_said():
    class Hidden(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return torch.zeros(3).as_subclass(cls)

    hidden = torch.ones(3).as_subclass(Hidden)
    found = first_origin("nan", make=lambda: lambda: [hidden + 1, torch.ones(2) * 2])
    assert "Not looked at: tensors of the kind Hidden." in found.text()
    assert "Not looked at" not in first_origin("nan", make=lambda: lambda: X + 1).text()
    found = first_origin("nan", make=lambda: RUNS["flex attention"])
    assert "what flex_attention computes itself" in found.text()
