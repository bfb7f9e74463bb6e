# SPDX-License-Identifier: Apache-2.0
"""Significant bits under random rounding errors, and the operators that lose them."""

from __future__ import annotations

import ctypes
import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pytest_udftorch import patched
from pytest_udftorch.cli import FAILED, MISUSE, main
from pytest_udftorch.diagnose import significant_bits, stochastic
from pytest_udftorch.diagnose.sensitivity.digits import Samples, chi_squared, significant
from pytest_udftorch.diagnose.sensitivity.perturbation import Perturbation
from pytest_udftorch.errors import DiagnosisError
from pytest_udftorch.prove import ulp_error

PAGE = Path(__file__).parents[2] / "docs" / "diagnose" / "sensitivity.md"

UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "log", "log10", "log1p", "log2", "sin", "sinh", "tan", "tanh",
)  # fmt: skip


class Naive(torch.nn.Module):
    """expm1 near zero as the difference that cancels."""

    def forward(self, x):
        return torch.exp(x) - 1


class Small(torch.nn.Module):
    def forward(self, x):
        return x / 4096


class Exact(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2 + 1) - 0.5


def planted():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 64), torch.nn.Tanh(), Small(), Naive()
    return torch.nn.Sequential(*layers).eval(), torch.randn(32, 8)


def whole_numbers(rows=32):
    return torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8)


# The library -------------------------------------------------------------------------


@pytest.mark.parametrize("function", UNARY)
def test_every_result_is_one_of_the_two_numbers_around_the_true_one(function):
    positive = function in ("log", "log10", "log2", "acosh")
    x = torch.linspace(1.01, 9.0, 400) if positive else torch.linspace(-0.99, 0.99, 400)
    call = getattr(torch, function)
    with patched("corem", (function,)):
        nearest = call(x)
    moved = []
    for seed in (1, 2, 3, 4):
        with stochastic(seed, (function,)):
            y = call(x)
        # Negative control of the bound: the same numbers are not all nearest.
        assert ulp_error(y, x, function=function).max() < 1
        moved.append((y != nearest).double().mean().item())
    assert 0.35 < sum(moved) / 4 < 0.65


def test_exact_results_stay_and_odd_functions_stay_odd():
    for seed in (1, 7):
        with stochastic(seed):
            assert torch.exp(torch.zeros(40)).eq(1).all()
            assert torch.log2(torch.tensor([1.0, 2, 4, 2**40])).tolist() == [0, 1, 2, 40]
            assert torch.hypot(torch.tensor(3.0), torch.tensor(4.0)) == 5
            assert torch.pow(torch.tensor(1.5), torch.tensor(3.0)) == 3.375
            x = torch.linspace(0, 3, 999)
            assert torch.equal(torch.sin(-x), -torch.sin(x))
            limits = torch.tensor([math.inf, -math.inf, math.nan, 100.0, -200.0])
            assert torch.exp(limits).nan_to_num(-1).tolist() == [
                torch.finfo(torch.float32).max, 0, -1, torch.finfo(torch.float32).max, 0,
            ]  # fmt: skip


def test_a_seed_is_a_library_and_seeds_are_independent():
    x = torch.linspace(-5, 5, 20_001)
    true = np.exp(x.double().numpy())
    up = []
    for seed in (1, 2, 2**32 - 1):
        with stochastic(seed, ("exp",)):
            whole = x.exp()
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            assert torch.equal(whole, torch.cat([part.exp() for part in x.split(7)]))
            torch.set_num_threads(threads)
        up.append(whole.double().numpy() > true)
    for one in up:
        assert abs(one.mean() - 0.5) < 0.02
    # No seed repeats another one, and neighbours do not follow each other.
    assert abs((up[0] == up[1]).mean() - 0.5) < 0.02
    assert abs((up[0] == up[2]).mean() - 0.5) < 0.02
    assert abs((up[0][1:] == up[0][:-1]).mean() - 0.5) < 0.02


def test_seeds_that_cannot_be_are_refused():
    with pytest.raises(DiagnosisError, match=r"seed=-1 is out of range"), stochastic(-1):
        pass
    with (
        pytest.raises(DiagnosisError, match="seed 3 is open"),
        stochastic(3) as outer,
        stochastic(4),
    ):
        pass
    seed = ctypes.c_uint32.in_dll(outer.build.load(), "udf_stochastic_seed")
    assert seed.value == 0
    with (
        pytest.raises(DiagnosisError, match=r"'corem' takes no seed"),
        stochastic(1, ("exp",), library="corem"),
    ):
        pass


# The estimates -----------------------------------------------------------------------


def test_quantiles_are_those_of_the_tables():
    # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4.
    assert chi_squared(0.975, 10) == pytest.approx(20.483, abs=5e-4)
    assert chi_squared(0.025, 15) == pytest.approx(6.262, abs=5e-4)
    bits, low, high = significant(2.0**-10, 24, 16)
    assert bits == pytest.approx(10 - math.log2(2.5758293))
    assert low < bits < high


def test_intervals_hold_the_true_number_as_often_as_they_say():
    generator = torch.Generator().manual_seed(1)
    true = 10 - math.log2(2.5758293)
    held = 0
    for _ in range(400):
        samples = Samples(torch.zeros(1))
        noise = torch.randn(8, 1, generator=generator, dtype=torch.float64) * 2.0**-10
        for one in 1 + noise:
            samples.add(one.float())
        found = samples.bits()
        held += found.low <= true <= found.high
    assert 0.92 < held / 400 < 0.98


def test_ulps_of_exact_results_stay_and_others_take_both_sides():
    torch.manual_seed(0)
    a, b = torch.randn(4000), torch.randn(4000)
    change = Perturbation(5)
    add = torch.ops.aten.add.Tensor
    got = a + b
    true = a.double() + b.double()
    truth = change.truth(add, (a, b), {})
    changed = got.clone()
    change.change(changed, truth())
    exact = got.double() == true
    assert exact.any()
    assert torch.equal(changed[exact], got[exact])
    rest = ~exact
    ulp = torch.exp2(torch.frexp(true[rest])[1].double() - 24)
    assert ((changed[rest].double() - true[rest]).abs() < 2 * ulp).all()
    assert abs((changed[rest] != got[rest]).double().mean() - 0.5) < 0.05
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        y = torch.tensor([0.0, 1.0, -2.0, math.inf, torch.finfo(dtype).max], dtype=dtype)
        z = y.clone()
        Perturbation(1).change(z)
        assert z[0] == 0
        assert z[3] == math.inf
        assert z[4].isfinite()
        assert (z[1:3] != y[1:3]).all()


# Models ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "perturb", ["functions", "operators", pytest.param("both", marks=pytest.mark.slow)]
)
def test_a_planted_cancellation_is_named(perturb):
    found = significant_bits(make=planted, perturb=perturb)
    assert found.losses[0].operator == "aten::sub.Tensor"
    assert found.losses[0].place.layer == "3"
    assert found.losses[0].surely_lost > 10
    (output,) = found.outputs.values()
    assert 8 < output.bits < 11  # of 24, exp(x) - 1 cancels 12 and more for x of 1 / 4096
    layers = {one.place.layer: one for one in found.layers}
    assert layers["3"].lost > 10
    # What comes before loses nothing to speak of.
    assert layers["1"].after.low > 18
    assert found.unsteady is None
    assert not found.parted
    assert "aten::sub.Tensor in 3: " in found.text()
    json.dumps(found.document())


def test_an_exact_model_and_a_stable_one_lose_nothing():
    found = significant_bits(Exact().eval(), (whole_numbers(),))
    assert found.outputs["output"].exact
    assert not found.losses
    assert "exact" in found.text()
    assert found.verdict() == "Every bit of every output holds."
    torch.manual_seed(0)
    stable = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Sigmoid()).eval()
    found = significant_bits(stable, torch.randn(16, 8))
    assert not found.losses
    assert found.least > 18


def test_a_layer_that_multiplies_is_not_exact():
    """An operator that chooses a number or its product with another one rounds the product."""
    lines = {
        layer: significant_bits(layer.eval(), torch.randn(16, 8)).text()
        for layer in (torch.nn.LeakyReLU(), torch.nn.ReLU())
    }
    assert ["output: exact" in text for text in lines.values()] == [False, True]


def test_training_is_watched_and_repeats():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    found = [significant_bits(model.train(), x, samples=4).document() for _ in range(2)]
    assert found[0] == found[1]
    phases = {one["place"]["phase"] for one in found[0]["operators"]}
    assert phases == {"forward", "backward", "optimizer"}
    assert "gradient of 0.weight" in found[0]["outputs"]


def test_only_what_is_named_is_perturbed():
    found = significant_bits(
        make=planted, perturb="operators", operators=("aten::tanh",), samples=4
    )
    by_name = {one.operator: one for one in found.operators}
    assert by_name["aten::addmm"].after.exact
    assert not by_name["aten::tanh"].after.exact
    found = significant_bits(make=planted, perturb="functions", functions=("log",), samples=4)
    assert found.outputs["output"].exact  # it has tanh and exp alone


def test_bfloat16_has_the_bits_of_its_type():
    def make():
        return torch.nn.Tanh().eval(), torch.linspace(-2, 2, 500)

    found = significant_bits(make=make, on="dtype=bfloat16", perturb="operators")
    assert 5 < found.outputs["output"].bits <= 8


def test_a_run_that_differs_by_itself_and_one_that_branches_are_said_to():
    state = iter(range(100))

    class Restless(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x * 2) + next(state)

    found = significant_bits(make=lambda: (Restless(), torch.ones(3)), samples=3)
    assert found.unsteady is not None
    assert "not deterministic by itself" in found.text()

    class Branching(torch.nn.Module):
        def forward(self, x):
            y = torch.exp(x)
            return y.cos() if y.sum() > self.middle else y.sin()

    model = Branching()
    x = torch.linspace(-1, 1, 50)
    model.middle = float(x.double().exp().sum())
    found = significant_bits(model.eval(), x)
    assert "control flow depends on the last bits" in found.parted
    assert "aten::" in found.text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"perturb": "all"}, "perturb='all'"),
        ({"samples": 2}, "samples=2 say nothing"),
        ({"probability": 1.0}, "probability=1.0"),
        ({"perturb": "functions", "operators": ("mm",)}, "operators are named"),
        ({"operators": "mm"}, "not a sequence of names"),
        ({"perturb": "operators", "operators": ("cosh",)}, "calls none of cosh"),
        ({"on": "compiled"}, "'compiled' cannot be watched"),
        ({"on": "library=corem"}, "has a library or a context of its own"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(DiagnosisError, match=message):
        significant_bits(make=planted, **options)


def test_nothing_to_run_or_to_watch_is_refused():
    with pytest.raises(DiagnosisError, match="nothing to run"):
        significant_bits()
    with pytest.raises(DiagnosisError, match="calls no operator"):
        significant_bits(make=lambda: lambda: 1)
    with pytest.raises(DiagnosisError, match="A side cannot be 'nonsense'"):
        significant_bits(make=planted, on="nonsense")


def test_the_command_prints_stores_and_fails_below_a_limit(tmp_path, capsys):
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def make():\n"
        "    x = torch.linspace(1000, 1001, 64)\n"
        "    return lambda: torch.log(x) - 6.9\n"
    )
    where = f"{tmp_path}/model.py:make"
    store = tmp_path / "found.json"
    arguments = ["sensitivity", where, "--samples", "5", "--store", str(store)]
    assert main([*arguments, "--least", "5"]) == 0
    assert "aten::sub" in capsys.readouterr().out
    stored = json.loads(store.read_text())
    assert stored["format"] == "udftorch-sensitivity-1"
    assert stored["samples"] == 5
    assert main([*arguments, "--least", "23"]) == FAILED
    assert main(["sensitivity", where, "--store", str(tmp_path / "no" / "x.json")]) == MISUSE
    assert "cannot be written" in capsys.readouterr().err


def test_the_page_runs_as_shown(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"<!-- file: model.py -->\n```python\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "model.py").write_text(source)
    (shown,) = re.findall(r"```console\n\$ udftorch (.*?)^```$", text, re.M | re.S)
    command, *lines = shown.splitlines()
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    for line in lines:
        for part in filter(None, line.split("...")):
            assert part.strip() in out
    scripts = re.findall(r"[^>]\n```python\n(.*?)^```$", text, re.M | re.S)
    assert len(scripts) == 2
    for script in scripts:
        exec(compile(script, str(PAGE), "exec"), {})


def cancelling_terms():
    """256 terms of about 1e4 whose sum is a quarter."""
    signs = torch.cat([torch.ones(128), -torch.ones(128)])
    return (torch.randn(64, 128) * 1e4).repeat(1, 2) * signs + 1e-3


@pytest.mark.parametrize(
    ("call", "make", "operator"),
    [
        (
            lambda x: torch.cdist(x, x.flip(0)),
            lambda: torch.rand(40, 39) * 2 + 99,
            "aten::_euclidean_dist",
        ),
        (
            lambda x: nn.functional.batch_norm(x, None, None, training=True),
            lambda: torch.randn(256, 8) + 1e4,
            "aten::native_batch_norm",
        ),
        (
            lambda x: nn.functional.layer_norm(x, (256,)),
            lambda: torch.randn(64, 256) + 1e4,
            "aten::native_layer_norm",
        ),
        (lambda x: x.sum(-1), cancelling_terms, "aten::sum.dim_IntList"),
    ],
)
def test_cancellation_inside_one_operator_is_seen(call, make, operator):
    torch.manual_seed(0)
    x = make()
    truth = call(x.double())
    right = -float(((call(x).double() - truth).norm() / truth.norm()).log2())
    found = significant_bits(call, (x,), perturb="operators", samples=8)
    bits = found.outputs["output"]
    # An error of one run, and the bits that hold with probability 0.99: up to three less.
    assert bits.low - 1 < right < bits.high + 3
    assert found.losses[0].operator == operator
    # The control: the same numbers without an offset lose nothing.
    steady = significant_bits(call, (x - x.mean(),), perturb="operators", samples=8)
    if "sum" not in operator:
        assert steady.outputs["output"].low > bits.high + 4


def test_complex_numbers_are_perturbed():
    x = torch.complex(torch.randn(64), torch.randn(64))

    def call(x):
        return torch.fft.ifft(torch.fft.fft(x + 1e5)) - 1e5

    found = significant_bits(call, (x,), perturb="operators", samples=8)
    bits = found.outputs["output"]
    assert not bits.exact
    assert bits.high < 12
    assert significant_bits(lambda x: x.flip(0), (x,), perturb="operators").outputs["output"].exact


def test_what_could_not_be_looked_into_is_said():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 1, 16, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = significant_bits(lambda q: flex_attention(q, q, q) * 2, (q,), samples=3)
    assert "Not looked into: what flex_attention computes itself." in found.text()
    assert "Not looked into" not in significant_bits(lambda q: q * q, (q,), samples=3).text()
