# SPDX-License-Identifier: Apache-2.0
"""The recorder in C++ makes what the mode in Python makes, and gives the dispatcher back."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_udftorch import cli
from pytest_udftorch.diagnose.runs.sides import side
from pytest_udftorch.diagnose.runs.work import Work, run
from pytest_udftorch.errors import CompilerNotFoundError
from pytest_udftorch.swap.observe import native_recorder, recorder
from pytest_udftorch.swap.observe.digests import note_of
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.observe.recorder import Stopped, Wanted
from pytest_udftorch.swap.toolchain import compiler as toolchain


def recorded(step, native=True, wanted=None):
    """Run a step once in a recorder; return its mode."""
    where = Whereabouts()
    torch.manual_seed(0)
    with where, recorder.recorder(where, wanted or Wanted(), None, "xxh3-128", native) as mode:
        assert mode.helped == native
        step()
    return mode


def both(step):
    """Return the calls that each recorder sees."""
    return [recorded(step, native).recording.calls for native in (True, False)]


class Layers(nn.Module):
    """Norms with running statistics, random numbers, branches, two gradients of one tensor."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x).relu_()
        return self.last(nn.functional.gelu(x, approximate="tanh").amax((2, 3))) * 2 + 1


def train():
    """Two steps of training."""
    torch.manual_seed(1)
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.rand(2, 3, 6, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def kinds():
    """Dtypes, layouts and arguments of every kind."""
    x = torch.linspace(-2, 2, 40).reshape(4, 10)
    for kind in (
        torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int16,
        torch.bool, torch.complex64, torch.complex32,
    ):  # fmt: skip
        x.to(kind).clone(memory_format=torch.contiguous_format)
    nan = x / 0 * 0
    nan[0, 0] = 1
    for other in (torch.float64, torch.bfloat16, torch.float16, torch.complex128):
        nan.to(other)
        (-nan).to(other)
    z = torch.complex(x, x)
    torch.stack([z.conj() + 1j, z.imag.neg() + z])
    torch.view_as_real(z.conj().resolve_conj())
    torch.stack([torch.complex(nan, x).to(torch.complex32).t().conj()])
    x[torch.tensor([0, 1]), :, None].sum(dtype=torch.float64)
    torch.cat([x, x.t().contiguous().t()], 1)[:, ::2].mul(0.1).fill_diagonal_(3.0)
    torch.empty(0, 3).sum(0, keepdim=True)
    torch.add(x, x, alpha=2, out=torch.empty(0))
    torch.where(x > 0, x, float("-inf")).to_sparse().to_dense()
    torch.searchsorted(x[0], x[1], side="right")
    torch.ones(2, 2, 3, 3).contiguous(memory_format=torch.channels_last).exp_()
    torch.zeros(3, dtype=torch.float32, device="meta") + 1
    torch.std_mean(x, (0, 1), correction=0)
    torch.nn.functional.embedding_bag(torch.tensor([[1, 2]]), x)
    torch.rand(3, generator=torch.Generator().manual_seed(3)).bernoulli_(0.5)


def odd():
    """Tensors that are not plain, given to operators and made by them."""
    x = torch.linspace(-2, 2, 36).reshape(6, 6)
    for make in (x.to_sparse, x.to_sparse_csr, x.to_sparse_csc):
        make().to_dense()
        make() * 2
    x.to_sparse_bsr((2, 3)).to_dense()
    x.to_sparse_bsc((2, 3)).to_dense()
    (x.to_sparse() @ x).to_mkldnn().relu().to_dense()
    (x / 0 * 0).to_sparse_csr() * 1
    nested = torch.nested.as_nested_tensor([x[:2], x[2:]])
    torch.nn.functional.linear(nested.relu(), x).to_padded_tensor(0.0)
    jagged = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
    (jagged * 2).sin().values().sum()
    TwoTensor(x, x + 1).cos().exp()
    torch.ops.aten._efficientzerotensor([3]) + 1
    torch.func.hessian(lambda y: y.exp().sum())(x[0])
    torch.func.vmap(torch.linalg.norm)(x)
    (torch.zeros(2, device="meta") + 1).exp()


def writes():
    """Writes in place, into views, and beside the count of versions."""
    x, y = torch.ones(3), torch.full((3,), 2.0)
    x.add_(y)
    x.detach().mul_(y)
    x.data.sub_(1)
    x[1:].zero_()
    x.sum()
    torch.add(x, y, out=x)  # one tensor, to read and to overwrite
    torch.mm(x[None], x[:, None], out=torch.empty(1, 1))
    x.resize_(2).sum()
    x.set_(torch.ones(4)).sum()
    with torch.inference_mode():
        z = torch.ones(2).add_(1)
        z.add_(1)
        torch.nn.functional.linear(z, torch.ones(1, 2))
    for number in range(2000):  # memory that is used again
        torch.full((2,), number % 7).sum()


@pytest.fixture
def hashed_by_python(monkeypatch):
    """The package xxhash does not show its function in C."""
    monkeypatch.setattr(recorder, "xxh3_address", lambda: None)


@pytest.mark.usefixtures("hashed_by_python")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_digests_of_python_are_the_same():
    native, python = both(kinds)
    assert native == python


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:Sparse CSR tensor support")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("step", [train, kinds, odd, writes])
def test_both_recorders_make_the_same(step):
    assert native_recorder.xxh3_address()
    step()  # torch makes tables for jagged tensors once
    native, python = both(step)
    for a, b in zip(native, python, strict=True):
        assert a == b
    assert type(native[0]) is recorder.Call
    assert len({c.operator for c in native}) > 5


def test_the_same_means_something():
    """Negative control: one number, bit, layer or NaN less, and calls differ."""
    x = torch.tensor([1.0, float("nan")])

    def calls(step):
        return recorded(step).recording.calls

    assert calls(lambda: x + 2) == calls(lambda: x + 2)
    assert calls(lambda: x + 2) != calls(lambda: x + 3)
    assert calls(lambda: x + 2) != calls(lambda: torch.nextafter(x, x + 1) + 2)
    assert calls(lambda: x.exp()) != calls(lambda: x.double().exp())
    assert calls(lambda: x.exp()) != calls(lambda: x.nan_to_num().exp())
    one = nn.Tanh()
    assert calls(lambda: one(x)) != calls(lambda: x.tanh())


def test_values_are_kept_and_replaced_at_the_same_places():
    x = torch.arange(4.0)
    ends = []

    def step():
        ends.append((x.exp() + 1).log())

    for native in (True, False):
        wanted = Wanted(frozenset({2}), {1: [torch.full((4,), 8.0)]})
        kept = recorded(step, native, wanted).recording.kept
        assert list(kept) == [2]
        assert kept[2].args[0].tolist() == [8.0] * 4
        assert torch.equal(ends[-1], kept[2].outputs[0])
        with pytest.raises(Stopped):
            recorded(step, native, Wanted(frozenset({0}), stop=True))
    assert torch.equal(ends[0], ends[1])


@pytest.mark.usefixtures("hashed_by_python")
def test_a_tensor_is_read_once_until_somebody_writes(monkeypatch):
    read = []
    own = recorder.xxh3()
    monkeypatch.setattr(recorder, "xxh3", lambda: lambda *a: read.append(a[1]) or own(*a))
    x = torch.ones(64)

    def step():
        for _ in range(5):
            x.t().sum()  # each time another view
        x.add_(1)
        x.sum()

    recorded(step)
    # x; the sum, five times; x after the write; its sum.
    assert len(read) == 8
    x.sum()
    read.clear()
    recorded(lambda: [x.sum(), x.sum()])
    assert len(read) == 3


@pytest.mark.usefixtures("hashed_by_python")
def test_an_error_while_a_digest_is_made_ends_the_run(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "xxh3", lambda: interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorded(lambda: torch.ones(3).exp())
    monkeypatch.undo()
    assert len(recorded(lambda: torch.ones(3).exp()).recording.calls) == 2


def test_errors_of_operators_are_those_of_torch():
    with pytest.raises(RuntimeError, match="must match"):
        recorded(lambda: torch.ones(3) + torch.ones(4))
    assert len(recorded(lambda: torch.ones(3).exp()).recording.calls) == 2


def test_other_modes_and_threads_are_left_alone():
    seen = []

    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def step():
        thread = threading.Thread(target=lambda: torch.ones(3).exp().log())
        thread.start()
        thread.join()
        with Other():
            torch.ones(3).cos()

    assert [c.operator for c in recorded(step).recording.calls] == ["aten::ones", "aten::cos"]
    assert seen == ["aten.ones.default", "aten.cos.default"]
    with Other():
        torch.ones(3).sin()
    assert seen[2:] == ["aten.ones.default", "aten.sin.default"]


def test_results_are_noted_as_they_are_left():
    """Parameters after the optimizer, a result that nobody made, and one that is a subclass."""

    def given():
        torch.manual_seed(0)
        x = torch.rand(2, 3, 6, 6, requires_grad=True)
        return Layers(), (x,)

    class Own(torch.Tensor):
        pass

    def own():
        return torch.ones(3).as_subclass(Own), torch.arange(6).reshape(2, 3).t()

    for make in (given, lambda: own):
        work = Work(make, train=True, steps=2)
        found = run(work, side("eager"), values=True)
        want = {n: note_of(t) for n, t in found.values.items()}
        assert {n: (t.shape, t.digest, t.taken) for n, t in found.result.items()} == {
            n: (t.shape, t.digest, t.taken) for n, t in want.items()
        }
        assert len(want) > 1


def test_a_second_recorder_inside_records_in_python():
    def step():
        where = Whereabouts()
        with recorder.recorder(where, Wanted(), None) as inner:
            assert not inner.helped
            torch.ones(3).exp()
        assert len(inner.recording.calls) == 2
        torch.ones(3)

    assert len(recorded(step).recording.calls) == 3


def test_without_a_compiler_runs_are_recorded_in_python_and_it_is_said(
    tmp_path, monkeypatch, capsys
):
    def missing(*_):
        raise CompilerNotFoundError("There is no clang. Install it.")

    (tmp_path / "one.py").write_text("import torch\ntorch.ones(3).exp()\n")
    arguments = ["record", "--out", str(tmp_path / "out"), str(tmp_path / "one.py")]
    monkeypatch.setattr(native_recorder, "_reasons", [])
    assert cli.main(arguments) == 0
    assert capsys.readouterr().err == ""
    native_recorder.load_recorder.cache_clear()
    monkeypatch.setattr(native_recorder.RECORDER.__class__, "obtain", missing)
    try:
        assert cli.main(arguments) == 0
        said = capsys.readouterr()
        assert "no clang" in said.err
        assert "2 operators of eager" in said.out
    finally:
        native_recorder.load_recorder.cache_clear()
    assert toolchain.find_compiler() is not None
