# SPDX-License-Identifier: Apache-2.0
"""What rounding explains: innocent forms of a model agree, and planted faults do not."""

import pytest
import torch
from torch import nn

from benches.experiments import innocent_pairs as forms
from pytest_udftorch.measure import model_pair
from pytest_udftorch.measure.planning.pairs import Member, _in_double, reference
from pytest_udftorch.prove.judge.accuracy import accuracy
from pytest_udftorch.prove.judge.error_model import rounding_distances, unit_roundoff


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore:TF32 acceleration", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("name", forms.MODELS)
def test_innocent_forms_agree_and_faults_do_not(name):
    model, x = forms.case(name, 3)
    pair = model_pair(model, x, ["eager"])
    with torch.no_grad():
        for form, run in forms.INNOCENT.items():
            agrees, _, times = forms.judged(pair, form, run(model, x))
            assert agrees, (form, times)
        faults = list(forms.faulty(model))
        assert faults
        for fault, broken in faults:
            agrees, _, times = forms.judged(pair, fault, broken(x))
            assert not agrees, (fault, times)


def test_a_lucky_eager_result_accuses_nobody():
    """The eager result is one sample: here it happens to be exact."""
    torch.manual_seed(0)
    model, x = nn.Linear(4096, 8, bias=False).eval(), torch.randn(2, 4096)
    pair = model_pair(model, x, ["eager"])
    exact = pair.wanted[0].float()
    pair.exact = [accuracy(exact, pair.wanted[0])] * 2
    with torch.no_grad():
        # Added up one after the other, as nobody's kernel does but anybody's may.
        plain = torch.zeros(2, 8)
        for k in range(4096):
            plain += x[:, k : k + 1] * model.weight[:, k]
    member = Member("one after the other")
    pair.judge(member, (plain, plain))
    assert not member.accuracy.within(pair.tolerance, pair.exact[0])
    assert member.agrees


@pytest.mark.parametrize("terms", [64, 1024, 16384])
def test_the_model_foresees_a_plain_sum(terms):
    """Errors of float32 sums, one term after the other, lie about where the model says."""
    torch.manual_seed(terms)
    model, x = nn.Linear(terms, 64, bias=False), torch.randn(64, terms)
    exact = reference(model, (x,)).results
    (foreseen,) = rounding_distances(_in_double(model), (x.double(),), exact, 2.0**-24)[0]
    with torch.no_grad():
        plain = torch.zeros(64, 64)
        for k in range(terms):
            plain += x[:, k : k + 1] * model.weight[:, k]
    measured = float((plain - exact[0]).norm() / exact[0].norm())
    assert 0.3 * foreseen < measured < 2 * foreseen


def test_the_lowest_precision_counts():
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    assert unit_roundoff(model, (x,)) == 2.0**-24
    assert unit_roundoff(model.bfloat16(), (x.bfloat16(),)) == 2.0**-8
    assert unit_roundoff(nn.Identity(), (torch.ones(1, dtype=torch.int64),)) == 0


def test_a_model_that_no_mode_can_follow_is_judged_by_the_eager_result():
    class Refuses(nn.Module):
        def forward(self, x):
            if torch._C._len_torch_dispatch_stack():
                raise RuntimeError("no modes, please")
            return x * 2

    x = torch.ones(3)
    exact = (x.double() * 2,)
    assert rounding_distances(Refuses(), (x.double(),), exact, 2.0**-24) == [()]
    pair = model_pair(Refuses().eval(), x, ["eager"])
    assert "does not run under a mode" in pair.left
    member = Member("far")
    pair.judge(member, (x * 2.1, x * 2.1))
    assert not member.agrees


def test_permitted_tf32_is_rounding_and_otherwise_a_fault():
    def cut(t):
        return (t.view(torch.int32) & ~0x1FFF).view(torch.float32)

    torch.manual_seed(0)
    model, x = nn.Linear(256, 64).eval(), torch.randn(16, 256)
    pair = model_pair(model, x, ["eager"])
    with torch.no_grad():
        ten_bits = nn.functional.linear(cut(x), cut(model.weight), model.bias)
    member = Member("ten bits")
    pair.judge(member, (ten_bits, ten_bits))
    assert not member.agrees
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        permitted = model_pair(model, x, ["eager"])
        permitted.judge(member, (ten_bits, ten_bits))
    finally:
        torch.set_float32_matmul_precision(before)
    assert member.agrees
