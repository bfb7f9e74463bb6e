# SPDX-License-Identifier: Apache-2.0
"""What runs under a watcher: computations on every kind of tensor, and every watcher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_udftorch import patched
from pytest_udftorch.base.dispatch_mode import watching
from pytest_udftorch.diagnose.diff.origin import watching as watching_origin
from pytest_udftorch.diagnose.runs.switch import counting
from pytest_udftorch.diagnose.sensitivity.observation import Book
from pytest_udftorch.diagnose.sensitivity.observation import watching as observing
from pytest_udftorch.measure.planning.roofline import _Counter
from pytest_udftorch.reproduce import within_contract
from pytest_udftorch.reproduce.agreement.parting import Cut, Watch
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.observe.recorder import Wanted, recorder
from pytest_udftorch.swap.reach.coverage import _Recorder
from pytest_udftorch.swap.reach.evaluations import evaluations
from pytest_udftorch.swap.session.binder import binder

Run = Callable[[], Any]

# Bits of results ---------------------------------------------------------------------


def bits(value: Any) -> Any:
    """Return all that a result holds, as plain data: nothing of the package looks at it."""
    if isinstance(value, TwoTensor):
        return "two", bits(value.a), bits(value.b)
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.layout is torch.jagged:
            return "jagged", bits(value.values()), bits(value.offsets())
        if value.is_nested:
            return "nested", *map(bits, value.unbind())
        if value.device.type == "meta":
            return tuple(value.shape), value.stride()
        if value.is_quantized:
            return bits(value.int_repr()), value.q_scale()
        if value.layout is not torch.strided:
            return str(value.layout), bits(value.to_dense())
        plain = value.resolve_conj().resolve_neg()
        if plain._is_zerotensor():
            plain = torch.zeros(plain.shape, dtype=plain.dtype)
        flat = plain.contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), flat.numpy().tobytes()
    if isinstance(value, Mapping):
        return tuple((k, bits(v)) for k, v in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(bits, value))
    return repr(value)


# Kinds of tensors --------------------------------------------------------------------

X: Final = torch.linspace(-2, 2, 36).reshape(6, 6)


class Plain(torch.Tensor):
    """A subclass without a rule of its own."""


def _nested() -> Any:
    return torch.nested.as_nested_tensor([X[:2], X[2:]])


def _jagged() -> Any:
    return torch.nested.nested_tensor([X[:2], X[2:]], layout=torch.jagged)


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return tuple((torch.ones(3, 3) @ torch.ones(3)).exp().shape)


def _freed() -> Any:
    """Resize memory to nothing and back, as sharded training does."""
    weight = torch.ones(4)
    with torch.no_grad():
        weight.untyped_storage().resize_(0)
        views = [weight.view(2, 2), weight.detach()]
        weight.untyped_storage().resize_(16)
        weight.copy_(torch.full((4,), 2.0))
    return [v.exp() for v in views]


def _padded_encoder() -> Any:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 2:] = True
    with torch.no_grad():
        return model(x, src_key_padding_mask=padding)


def _scalar(x: Any) -> Any:
    return (x.exp() * x.sin()).sum()


def _module() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))


def _per_sample() -> Any:
    """Gradients of a module for each sample: layers run under grad inside vmap."""
    model = _module()
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(given: Any, row: Any) -> Any:
        return torch.func.functional_call(model, given, row[None]).square().sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, X)


def _trained() -> Any:
    model = _module()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


class _Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    q = X[:2, :4].reshape(1, 1, 2, 4).repeat(1, 1, 8, 1)
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + i - j)


def _two() -> Any:
    x = TwoTensor(X.clone(), X + 1).requires_grad_()
    (x.cos() * 2).sum().backward()
    return x.grad


func: Final = torch.func

#: Name -> a computation.
RUNS: Final[Mapping[str, Run]] = {
    "strided": lambda: X[::2, ::3].exp() @ X[:3, :2].t(),
    "zero-dimensional": lambda: torch.tensor(0.5).exp() / 0,
    "empty": lambda: torch.empty(0, 3).exp().sum(0) / 0,
    "complex": lambda: torch.fft.fft(X.exp()).conj() / torch.complex(X, X).conj().imag,
    "complex half": lambda: torch.complex(X, X).to(torch.complex32) + 1,
    "eight bits": lambda: X.to(torch.float8_e4m3fn).to(torch.float32) + 1,
    "integers": lambda: (X.int() // 3).cumsum(0).bitwise_and(1) > 0,
    "sparse": lambda: (X.relu().to_sparse() * 2 @ X).exp(),
    "sparse sum": lambda: torch.sparse.sum(X.relu().to_sparse() / 0, 0),
    "csr": lambda: X.relu().to_sparse_csr() @ X + 1,
    "bsr": lambda: X.to_sparse_bsr((2, 3)).to_dense() * 2,
    "csc": lambda: X.relu().to_sparse_csc() * 2,
    "nested": lambda: torch.nn.functional.linear(_nested().relu(), X).softmax(-1),
    "jagged": lambda: (_jagged() * 2).sin().exp(),
    "mkldnn": lambda: X.to_mkldnn().relu().to_dense() + 1,
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8).relu().dequantize(),
    "meta": lambda: (X.to("meta") + 1).exp(),
    "fake": _fake,
    "subclass": lambda: torch.stack([X.as_subclass(Plain).exp(), X]).sum(0),
    "wrapper": lambda: TwoTensor(X, X + 1).cos().exp(),
    "wrapper, reverse": _two,
    "freed memory": _freed,
    "zeros": lambda: torch.ops.aten._efficientzerotensor([3]) * 2 + 1,
    "padded encoder": _padded_encoder,
    "reverse": _trained,
    "forward": lambda: func.jvp(_scalar, (X,), (X + 1,)),
    "hessian": lambda: func.hessian(_scalar)(X[0]),
    "jvp of grad": lambda: func.jvp(func.grad(_scalar), (X[0],), (torch.ones(6),)),
    "jacfwd of grad": lambda: func.jacfwd(func.grad(_scalar))(X[0]),
    "jacrev of jacfwd": lambda: func.jacrev(func.jacfwd(_scalar))(X[0]),
    "vmap of hessian": lambda: func.vmap(func.hessian(_scalar))(X[:2]),
    "vmap": lambda: func.vmap(torch.linalg.vector_norm)(X / 0),
    "per sample": _per_sample,
    "functionalize": lambda: func.functionalize(lambda x: x.clone().mul_(2).exp_())(X),
    "custom function": lambda: func.vmap(func.grad(lambda x: _Cube.apply(x).sum()))(X),
    "double backward": lambda: torch.autograd.functional.hvp(_scalar, X[0], X[1]),
    "cond": lambda: torch.cond(X.sum() < 9, lambda x: x.exp(), lambda x: x.sin(), (X,)),
    "flex attention": _flex,
    "compiled": lambda: torch.compile(lambda x: x.exp() + 1, backend="eager", fullgraph=True)(X),
}

# Watchers ----------------------------------------------------------------------------


@contextlib.contextmanager
def _recording(native: bool) -> Iterator[None]:
    where = Whereabouts()
    with where, recorder(where, Wanted(), None, "xxh3-128" if native else "sha1", native):
        yield


@contextlib.contextmanager
def _watching_layers(make: Callable[[Whereabouts], Any]) -> Iterator[None]:
    where = Whereabouts()
    with where, make(where):
        yield


@contextlib.contextmanager
def _covering() -> Iterator[None]:
    with binder().marking(apart=True), _Recorder():
        yield


def _cut() -> Cut:
    return Cut(batch=6, row=1, length=0, start=0, stop=0, memory=0, first=0, last=0)


#: Name -> what a computation runs in, which is not to change what it gives. The error model of
#: golden values adds errors, so that it is tried by test_diagnoses_end alone.
WATCHERS: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "profile": lambda: patched("std", profile="events"),
    "profile coverage": evaluations,
    "coverage": _covering,
    "record": lambda: _recording(native=True),
    "record in Python": lambda: _recording(native=False),
    "nan": lambda: watching_origin("nan"),
    "inf": lambda: watching_origin("inf"),
    "subnormal": lambda: watching_origin("subnormal"),
    "sensitivity": lambda: _watching_layers(lambda where: observing(where, Book(), None)),
    "tolerance and blame": lambda: counting(["exp", "sin"]),
    "same": lambda: _watching_layers(lambda where: Watch(where, _cut())),
    "roofline": _Counter,
    "contract": within_contract,
}


class _Crasher(TorchDispatchMode):
    """The negative control: a watcher that looks at everything and changes what it sees."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, torch.Tensor) and returned.is_floating_point():
            return returned + 1
        return returned


CONTROLS: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "changes": _Crasher,
    "changes nothing": lambda: watching(lambda f, a, k: f(*a, **k)),
}
