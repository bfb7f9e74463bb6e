# SPDX-License-Identifier: Apache-2.0
"""Golden values: what rounding explains passes everywhere, what it does not is named."""

import itertools
import json

import pytest
import torch
from torch import nn

from pytest_udftorch.base import plain_data
from pytest_udftorch.diagnose import check_golden, store_golden
from pytest_udftorch.diagnose.golden.file import MOST, load
from pytest_udftorch.errors import GoldenError, GoldenMismatchError

X = torch.arange(16 * 3 * 36, dtype=torch.float32).sin().reshape(16, 3, 6, 6)


class Model(nn.Module):
    """Convolution, norm, GELU, linear layer, softmax; one part may be planted wrong."""

    def __init__(self, wrong=""):
        super().__init__()
        self.wrong = wrong
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8, 1e-3 if wrong == "epsilon" else 1e-5),
            nn.GELU("tanh" if wrong == "tanh" else "none"), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
        with torch.no_grad():
            for p in self.parameters():
                p.copy_((torch.arange(p.numel()) % 97 + 1.0).reciprocal().reshape(p.shape) - 0.1)

    def forward(self, x):
        y = self.layers(x)
        if self.wrong == "half":
            y = y.half().float()
        if self.wrong == "one class":
            y = y + torch.zeros_like(y).index_fill(1, torch.tensor([3]), 1e-4)
        return y.softmax(-1), y.argmax(-1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("golden") / "model.json"
    judgement = store_golden(path, Model(), X, digests=True)
    assert 0 < judgement.worst < 1
    return path


def test_layouts_threads_and_rows_of_memory_pass(path):
    threads = torch.get_num_threads()
    assert check_golden(path, Model(), X).same_bits is True
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        assert check_golden(path, Model(), X).same_bits is None
    finally:
        torch.set_num_threads(threads)
    like = Model().to(memory_format=torch.channels_last)
    assert check_golden(path, like, X.to(memory_format=torch.channels_last), library="x").worst < 1


@pytest.mark.parametrize("wrong", ["epsilon", "tanh", "half", "one class"])
def test_planted_faults_are_told(path, wrong):
    with pytest.raises(GoldenMismatchError, match=r"output 0: .*(farther|times what is allowed)"):
        check_golden(path, Model(wrong), X)


def test_other_bits_on_the_same_platform_fail(path, tmp_path):
    golden = load(path)
    golden.digests = {platform: "0" * 64 for platform in golden.digests}
    golden.save(tmp_path / "other.json")
    with pytest.raises(GoldenMismatchError, match=r"rounding explains the difference"):
        check_golden(tmp_path / "other.json", Model(), X)
    # An update keeps what other platforms have stored.
    golden.digests["elsewhere"] = "1" * 64
    golden.save(tmp_path / "other.json")
    store_golden(tmp_path / "other.json", Model(), X, digests=True)
    assert load(tmp_path / "other.json").digests["elsewhere"] == "1" * 64
    assert check_golden(tmp_path / "other.json", Model(), X).same_bits is True


def test_an_element_that_is_not_kept_shows_in_the_sums(tmp_path):
    x = torch.arange(4 * MOST, dtype=torch.float32)
    store_golden(tmp_path / "big.json", torch.sin, x)
    assert check_golden(tmp_path / "big.json", torch.sin, x).worst < 1

    def changed(x):
        return torch.sin(x) + (torch.arange(x.numel()) == 7) * 0.01

    with pytest.raises(GoldenMismatchError, match="of 8 sums over all elements"):
        check_golden(tmp_path / "big.json", changed, x)


def test_special_values_and_gradients(tmp_path):
    def special(x):
        x = x.detach().requires_grad_()
        y = torch.exp(x * 100)  # an infinity in float32, but not in float64
        (x * x).sum().backward()
        return y, x.log(), x.grad

    x = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    store_golden(tmp_path / "special.json", special, x)
    assert check_golden(tmp_path / "special.json", special, x).worst < 1
    with pytest.raises(GoldenMismatchError, match=r"output 1: .*\n.*nan"):
        check_golden(
            tmp_path / "special.json", lambda x: (special(x)[0], x.log().nan_to_num(), x * 2), x
        )


def resized():
    """Gives memory by the bytes of float32, as sharded training does; in float64 it would end."""
    weight = torch.ones(4)
    weight.untyped_storage().resize_(16)
    return weight.copy_(torch.full((4,), 2.0)).exp()


def test_what_cannot_be_stored_says_why(tmp_path):
    path = tmp_path / "none.json"
    weight, counted = torch.ones(3), itertools.count()
    for computation, inputs, reason in (
        (lambda: None, (), "returned no numbers"),
        (lambda x: {torch.float32: x}[x.dtype], torch.ones(3), "does not run in float64"),
        (
            lambda x: x * (x.view(torch.uint8)[..., -1:] < 128),
            torch.ones(3),
            "leaves float64: aten",
        ),
        (resized, (), "a tensor that is longer than its memory"),
        (lambda x: x + next(counted), torch.ones(3), "different results when it is run again"),
        (lambda x: x + 0.1 * (x.dtype != torch.float64), torch.ones(3), "farther from the float64"),
        (torch.fft.fft, torch.ones(3), "real and imaginary"),
    ):
        with pytest.raises(GoldenError, match=reason):
            store_golden(path, computation, inputs)
    assert not path.exists()
    store_golden(path, lambda x: x @ weight, torch.ones(2, 3), truth=lambda x: x @ weight.double())
    plain = path.read_text()
    # Casts and tensors of float32 compute in float64.
    store_golden(path, lambda x: (x.float() @ weight).to(x.dtype), torch.ones(2, 3))
    assert path.read_text() == plain
    (tmp_path / "file").touch()
    with pytest.raises(GoldenError, match="Cannot write"):
        store_golden(tmp_path / "file" / "none.json", torch.sin, torch.ones(3))


def test_files_that_are_none(path, tmp_path):
    with pytest.raises(GoldenError, match="inputs, or the module's parameters"):
        check_golden(path, Model(), X + 1)
    with pytest.raises(GoldenError, match="Cannot read"):
        check_golden(tmp_path / "missing.json", Model(), X)
    data = json.loads(path.read_text())
    bad = tmp_path / "bad.json"
    for change in (
        {"format": "udftorch-golden/0"}, {"inputs": "x"}, {"outputs": 3}, {"sha256": "0" * 64},
        {"outputs": [data["outputs"][0] | {"truth": "1 2"}, data["outputs"][1]]},
        {"outputs": [data["outputs"][0] | {"limits": "-1"}, data["outputs"][1]]},
        {"outputs": [data["outputs"][0] | {"truth": "1-"}, data["outputs"][1]]},
        {"outputs": [data["outputs"][1] | {"truth": "1"}]},
    ):  # fmt: skip
        kept = {k: v for k, v in data.items() if k != "sha256" or k in change}
        made = kept | change
        bad.write_text(json.dumps(made if "sha256" in change else plain_data.sealed(made)))
        with pytest.raises(GoldenError, match="holds no golden values"):
            load(bad)


def test_other_kinds_are_told(path):
    def first(x):
        return Model()(x)[0]

    class Like(Model):
        def __init__(self, change):
            super().__init__()
            self.change = change

        def forward(self, x):
            return self.change(*super().forward(x))

    for change, reason in (
        (lambda y, k: (y,), "1 tensors instead of 2"),
        (lambda y, k: (y.double(), k), "float64 of shape"),
        (lambda y, k: (y[1:], k), r"of shape \[15, 10\] instead of"),
        (lambda y, k: (y, k + 1), "int64 values are not those"),
    ):
        with pytest.raises(GoldenMismatchError, match=reason):
            check_golden(path, Like(change), X)
