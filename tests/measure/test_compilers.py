# SPDX-License-Identifier: Apache-2.0
"""Compilers outside torch: as executors of a pair, as a backend, and as candidates of a plan."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_udftorch import errors, measure
from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure import recording
from pytest_udftorch.measure.planning.executors import REGISTRY, openvino

#: Executor -> the modules that it imports.
NEEDS = {
    "onnxruntime": ["onnxruntime", "onnxscript"],
    "openvino": ["openvino"],
    "tvm": ["tvm"],
    "iree": ["iree.compiler", "iree.runtime", "torch_mlir"],
}


def absent(name):
    for module in NEEDS[name]:
        root = module.partition(".")[0]
        if importlib.util.find_spec(root) is None or importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    return ""


def of(name, *marks):
    skip = pytest.mark.skipif(bool(absent(name)), reason=f"{name}: {absent(name)}")
    return pytest.param(name, marks=[skip, *marks])


# Their compilers, or what they import, take seconds.
COMPILERS = [
    of("onnxruntime"),
    of("openvino"),
    of("tvm", pytest.mark.slow),
    of("iree", pytest.mark.slow),
]
QUICK = [of("openvino"), of("onnxruntime", pytest.mark.slow)]

pytestmark = [
    # SWIG's classes in the packages.
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning"),
]


class Model(nn.Module):
    """Tensors and other values, nested, with a channels_last input that is also an output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 10)

    def forward(self, x, more, factor):
        y = self.norm(self.conv(x)).relu()
        p = torch.softmax(self.head(y.mean((2, 3))), -1) * more["scale"] * factor
        return {"y": (y, p), "n": 7, "none": None, "best": p.argmax(1), "x": x, "sum": y.sum()}


@pytest.fixture
def arguments():
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    return x.contiguous(memory_format=torch.channels_last), {"scale": torch.ones(10)}, 2.0


@pytest.fixture(autouse=True)
def registry():
    torch.compiler.reset()
    yield
    REGISTRY.reset()


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_agrees_and_keeps_the_signature(name, arguments):
    pair = measure.model_pair(Model().eval(), arguments, name)
    assert pair.failures == {}
    pair.check()
    x, more, factor = arguments
    kept = x.clone()
    found = pair[name](x, more, factor)
    assert (found["n"], found["none"]) == (7, None)
    assert found["sum"].shape == ()
    second = pair[name](x + 1, more, factor)
    again = pair[name](x, more, factor)
    torch.testing.assert_close(again["y"][0], found["y"][0], rtol=0, atol=0)
    assert not torch.equal(second["y"][0], found["y"][0])
    # Its results are its own: writing into them changes nothing else.
    for result in (found["x"], found["y"][0]):
        result.zero_()
    assert torch.equal(x, kept)
    assert again["y"][0].abs().sum() > 0
    with pytest.raises(errors.ExecutorError, match=r"compiled for float32\[2, 3, 9, 9\]"):
        pair[name](x[:1], more, factor)
    with pytest.raises(errors.ExecutorError, match=r"2\.0, but the inputs are .* 3\.0"):
        pair[name](x, more, 3.0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen += x
        return self.seen * 2


@pytest.mark.parametrize("name", QUICK)
def test_state_is_refused(name):
    pair = measure.model_pair(Counting().eval(), torch.ones(3), name)
    assert "forward() writes into seen" in pair.failures[name]


def test_what_is_missing_is_named(monkeypatch, arguments):
    for modules in NEEDS.values():
        for module in modules:
            monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
            monkeypatch.setitem(sys.modules, module, None)
    pair = measure.model_pair(nn.ReLU().eval(), torch.ones(3), list(NEEDS))
    assert pair.working == ["eager"]
    for name in NEEDS:
        assert "not installed" in pair.failures[name] or "does not load" in pair.failures[name]


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tvm", "iree"])
def test_formats_that_a_compiler_would_change_are_refused(name):
    x = torch.ones(3, dtype=torch.float64 if name == "openvino" else torch.bfloat16)
    pair = measure.model_pair(nn.ReLU().eval(), x, name)
    assert f"{name} serves float32" in pair.failures[name]


def test_openvino_is_imported_without_its_telemetry(tmp_path, monkeypatch):
    before = dict(sys.modules)
    with openvino.silent():
        assert importlib.util.find_spec("json")
        with pytest.raises(ImportError):
            import openvino_telemetry  # noqa: F401
    assert ("openvino_telemetry" in sys.modules) == ("openvino_telemetry" in before)


@pytest.mark.slow
@pytest.mark.parametrize("name", [of("openvino")])
def test_openvino_leaves_no_files_in_the_home_folder(tmp_path, name):
    import os
    import subprocess

    script = (
        "import torch\nfrom pytest_udftorch.measure import model_pair\n"
        "pair = model_pair(torch.nn.ReLU().eval(), torch.ones(3), 'openvino')\n"
        "assert not pair.failures, pair.failures\n"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert list(Path(tmp_path).glob("intel*")) == []


def backend(model, name, **options):
    return torch.compile(
        model,
        backend="udf_compiler",
        dynamic=False,
        options={"executor": name, "gain": 0, **options},
    )


def small():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)]
    return nn.Sequential(*layers).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", QUICK)
def test_the_backend_follows_weights_and_keeps_layouts(name):
    model = small()
    compiled = backend(model, name, strict=True)
    with recording() as reports:
        torch.testing.assert_close(compiled(X), model(X))
    (report,) = reports
    assert report.left_alone == ""
    assert f"compiled by {name}" in report.notes
    model[4].weight.mul_(2)
    torch.testing.assert_close(compiled(X), model(X))
    torch.compiler.reset()
    convolution = model[:3].to(memory_format=torch.channels_last)
    x = X.contiguous(memory_format=torch.channels_last)
    assert backend(convolution, name, strict=True)(x).stride() == convolution(x).stride()


@torch.no_grad()
def test_a_wrong_compiler_is_refused_by_its_check():
    """Negative control: one element is off by a thousandth."""

    def make(model, inputs):
        def run(*given):
            results = list(model(*given))
            results[0] = results[0].clone()
            results[0].view(-1)[results[0].argmax()] *= 1.001
            return tuple(results)

        return run

    measure.register_executor(measure.Executor("slightly-wrong", make))
    model = small()
    with recording() as reports:
        found = backend(model, "slightly-wrong")(X)
    assert torch.equal(found, model(X))
    assert "does not pass its check" in reports[0].left_alone
    torch.compiler.reset()
    with pytest.raises(RewriteError, match="does not pass its check"):
        backend(model, "slightly-wrong", strict=True)(X)
    pair = measure.model_pair(nn.Sequential(model, nn.Identity()).eval(), X, "slightly-wrong")
    with pytest.raises(errors.DisagreementError, match="slightly-wrong"):
        pair.check()


@torch.no_grad()
def test_a_compiler_that_fails_leaves_the_graph_alone():
    def refuse(model, inputs):
        raise ValueError("no such operator")

    measure.register_executor(measure.Executor("refuses", refuse))
    model = small()
    with recording() as reports:
        assert torch.equal(backend(model, "refuses")(X), model(X))
    assert "no such operator" in reports[0].left_alone
    torch.compiler.reset()
    with pytest.raises(errors.ExecutorError, match="onnxruntim"):
        backend(model, "onnxruntim")(X)


@pytest.mark.slow
@pytest.mark.parametrize("name", [of("openvino"), of("onnxruntime")])
def test_it_is_a_candidate_of_plans(name):
    model = nn.Sequential(small()[:3], nn.Conv2d(4, 4, 1), nn.ReLU()).eval()
    plan = measure.oracle(model, X, executors=["eager", name], runs=6, rounds=2)
    assert name in str(plan.report)
    torch.testing.assert_close(plan.apply(model)(X), model(X))
