# SPDX-License-Identifier: Apache-2.0
"""Each row says what its operator does: rounding, functions, and bits under the contract.

The calls are those that torch's own test database leads to, forwards, backwards, in place and with
``out=``, and samples of ours of what it does not cover. A row that lies fails with its name.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import math
import re
import warnings
from pathlib import Path

import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.swap.contract import outside
from pytest_udftorch.swap.contract.outside import reason
from pytest_udftorch.swap.cpu import direct
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.operators import header, rows
from pytest_udftorch.swap.operators.definitions import FAMILIES
from pytest_udftorch.swap.operators.overload import arguments_of, is_exact, is_view, name_of
from pytest_udftorch.swap.operators.row import TRIED, Held, Kind
from pytest_udftorch.swap.operators.rows import ROWS, find
from pytest_udftorch.swap.operators.table import reached
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.session.binder import binder
from tests.operator_samples import QUICK, tensors, tree, walk, watching
from tests.reproduce.test_contract_outside import CALLS, random
from tests.reproduce.test_contract_reference import function, reference

aten = torch.ops.aten
X = torch.linspace(-1.7, 1.9, 12).view(3, 4)
Y = X.flip(0).abs() + 0.3
UNIT = Y / 4
IMAGES = torch.linspace(-1, 1, 96).view(1, 2, 6, 8)
BLOCKS = torch.linspace(-1, 1, 192).view(1, 2, 4, 4, 6)
HALVES = [2, 2]

# Samples of ours --------------------------------------------------------------------------


def lists():
    """Operators on lists of tensors."""
    pairs, exponents = ([X, X + 1], [Y, Y + 1]), [0.5, 1.5]
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.partition(".")
        if not base.startswith("aten::_foreach_") or "_out" in overload or overload == "out":
            continue
        func = getattr(getattr(aten, base[6:]), overload or "default")
        first = [t.clone() for t in pairs[1]]
        given = {
            "List": [pairs[1]], "Scalar": [0.7], "ScalarList": [exponents],
            "Tensor": [torch.tensor(0.7)], "": [],
        }.get(overload)  # fmt: skip
        if "addc" in base:
            last = {"Tensor": [torch.tensor(exponents)]}.get(overload, given)
            given = [pairs[0], pairs[1], *last]
        elif "lerp" in base:
            given = [pairs[0], *({"List": [pairs[1]]}.get(overload, given))]
        elif "ScalarAndTensor" in overload:
            first, given = 0.7, [pairs[1]]
        elif base.endswith(("copy", "copy_")):
            given = [pairs[0]]
        elif base.endswith("_mm"):
            given = [[t.mT for t in first]]
        elif "unscale" in base or given is None:
            continue
        yield name, functools.partial(func, first, *given)


def optimizers():
    """Fused steps."""
    for name, states, numbers in (
        ("adam", 2, {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-8,
                     "amsgrad": False, "maximize": False}),
        ("adamw", 2, {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-8,
                      "amsgrad": False, "maximize": False}),
        ("sgd", 1, {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.0,
                    "nesterov": False, "maximize": False, "is_first_step": False}),
        ("adagrad", 1, {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.1, "eps": 1e-8,
                        "maximize": False}),
    ):  # fmt: skip
        for overload in ("default", "tensor_lr"):
            func = getattr(getattr(aten, f"_fused_{name}_"), overload)
            state = [[Y.clone()] for _ in range(states)]
            steps = [] if name == "sgd" else [[torch.tensor(1.0)]]
            more = [[], *steps] if states == 2 else steps
            lr = torch.tensor(0.1) if overload == "tensor_lr" else 0.1
            given = [X.clone()], [X + 1], *state, *more
            call = functools.partial(func, *given, **numbers | {"lr": lr})
            yield f"_fused_{name}_.{overload}", call


#: Calls of what the database does not cover.
OURS = {
    "bits": lambda: ((X > 0).__and__(X > 1), (X > 0).__or__(X > 1), (X > 0).__xor__(X > 1)),
    "bits by number": lambda: ((X > 0).__and__(True), (X > 0).__or__(True), (X > 0).__xor__(True)),
    "_reshape_alias": lambda: aten._reshape_alias(X, [4, 3], [3, 1]),
    "_reshape_copy": lambda: aten._reshape_copy(X, [4, 3]),
    "_copy_from": lambda: aten._unsafe_index(X, [torch.tensor([0, 2])]),
    "_logcumsumexp": lambda: aten._logcumsumexp(X, 1),
    "_masked_softmax": lambda: torch._masked_softmax(X, X > 1, 1, 2),
    "_index_put_impl": lambda: aten._index_put_impl_(
        X.clone(), [torch.tensor([0, 0])], Y[:2], True
    ),
    "_index_put_impl without sums": lambda: aten._index_put_impl_(
        X.clone(), [torch.tensor([0, 1])], Y[:2], False
    ),
    "legit": lambda: aten._native_batch_norm_legit.no_stats(
        IMAGES, None, None, True, 0.1, 1e-5
    ),
    "evaluated": lambda: aten._native_batch_norm_legit_no_training(
        IMAGES, None, None, torch.ones(2), torch.ones(2), 0.1, 1e-5
    ),
    "functional": lambda: aten._native_batch_norm_legit_functional(
        IMAGES, None, None, torch.zeros(2), torch.ones(2), True, 0.1, 1e-5
    ),
    "weight norm": lambda: aten._weight_norm_interface_backward(
        X, X, Y[:, :1].contiguous(), Y[:, :1].contiguous(), 0
    ),
    "by type": lambda: (aten.bmm(IMAGES[0], IMAGES[0].mT), aten.norm.Scalar(X, 3)),
    "norms": lambda: (
        aten.norm.ScalarOpt_dtype(X, 2, dtype=torch.float32),
        aten.norm.ScalarOpt_dim_dtype(X, 3, [1], False, dtype=torch.float32),
    ),
    "attention layers": lambda: aten._native_multi_head_attention(
        X[None], X[None], X[None], 4, 2, torch.ones(12, 4), torch.ones(12), torch.ones(4, 4),
        torch.ones(4),
    ),
    "encoder": lambda: aten._transformer_encoder_layer_fwd(
        X[None], 4, 2, torch.ones(12, 4), torch.ones(12), torch.ones(4, 4), torch.ones(4), True,
        False, 1e-5, *(torch.ones(4),) * 4, torch.ones(8, 4), torch.ones(8), torch.ones(4, 8),
        torch.ones(4),
    ),
    "recurrent": lambda: torch.nn.LSTM(4, 3)(X[:, None]),
    "dropout": lambda: torch.native_dropout(X, 0.5, True),
    "bincount": lambda: torch.bincount(torch.tensor([1, 2, 2])),
    "clamps": lambda: (aten.clamp_max(X, 0.5), aten.clamp_max_(X.clone(), 0.5)),
    "copies": lambda: (
        aten.copy(X, Y), aten.lift(X), aten.lift_fresh_copy(X), aten.select_copy.int(X, 0, 1),
        aten.slice_copy.Tensor(X, 0, 1), aten.split_copy.Tensor(X, 2), aten.unsafe_chunk(X, 2),
        aten.unsafe_split_with_sizes(X, [1, 2]), aten.view_copy.dtype(X, torch.int32),
        aten.squeeze_copy.dims(X[None], [0]), aten.zero(X), aten.detach_(X.clone()),
    ),
    "signs": lambda: (aten.copysign.Scalar(X, -1.0), aten.copysign_.Scalar(X.clone(), -1.0)),
    "quotients": lambda: (
        aten.div.Scalar_mode(X, 0.3, rounding_mode="floor"),
        aten.div_.Scalar_mode(X.clone(), 0.3, rounding_mode="trunc"),
        aten.fmod.Scalar(X, 0.3), aten.fmod_.Scalar(X.clone(), 0.3),
        aten.remainder.Scalar_Tensor(0.7, Y), aten.remainder_.Scalar(X.clone(), 0.3),
        aten.sub_.Scalar(X.clone(), 0.3),
    ),
    "fill": lambda: (aten.fill.Tensor(X, Y[0, 0]), aten.fill_.Tensor(X.clone(), Y[0, 0])),
    "activations": lambda: (
        aten.gelu_(X.clone()), aten.hardswish_(X.clone()), aten.hardtanh_(X.clone()),
        aten.lerp.Tensor(X, Y, UNIT), aten.leaky_relu_backward(X, X - 1, 0.3, False),
    ),
    "windows": lambda: (
        torch.hamming_window(5), torch.hamming_window(5, False), torch.kaiser_window(5),
        torch.hamming_window(5, False, 0.5), torch.hamming_window(5, False, 0.5, 0.4),
        torch.kaiser_window(5, False), torch.kaiser_window(5, False, 7.0),
    ),
    "asked": lambda: (torch.all(X > 0, (0, 1)), torch.any(X > 0, (0, 1)),
                      aten.is_same_size(X, Y), torch.bucketize(0.3, X[0]),
                      torch.searchsorted(X[0], 0.3), aten.unique_dim(X, 0)),
    "drawn": lambda: (
        torch.empty(40).random_(), torch.empty(40).random_(7), torch.empty(40).random_(2, 7),
        torch.normal(0.5, Y), torch.rand(3, generator=torch.Generator()),
        torch.randn(3, generator=torch.Generator()), torch.randperm(5),
        torch.randperm(5, generator=torch.Generator()),
        torch.randint(5, (3,), generator=torch.Generator()),
        torch.randint(2, 5, (3,), generator=torch.Generator()),
        aten.rand_like.generator(X, generator=torch.Generator()),
        aten.randn_like.generator(X, generator=torch.Generator()),
        torch.empty(3, 4).bernoulli_(UNIT), aten.bernoulli.p(X, 0.3), torch.empty(40).uniform_(),
        aten.bernoulli.Tensor(X, UNIT), torch.empty(40).exponential_(),
    ),
    "padding": lambda: aten.reflection_pad2d(IMAGES, [1, 2, 1, 2]),
    "scattered": lambda: (
        aten.scatter.reduce(X, 0, torch.zeros(3, 4).long(), Y, reduce="add"),
        aten.scatter_.reduce(X.clone(), 0, torch.zeros(3, 4).long(), Y, reduce="multiply"),
        aten.scatter.value_reduce(X, 0, torch.zeros(3, 4).long(), 0.3, reduce="add"),
        aten.scatter_.value_reduce(X.clone(), 0, torch.zeros(3, 4).long(), 0.3, reduce="add"),
        aten.scatter_.value(X.clone(), 0, torch.zeros(3, 4).long(), 0.3),
    ),
    "set": lambda: (X.clone().set_(Y), X.clone().set_(Y.untyped_storage()), aten.set_(X.clone())),
    "special": lambda: (
        torch.special.xlog1py(X.abs(), 0.3), torch.special.xlog1py(0.3, Y),
        torch.special.zeta(Y + 1, 2.0), torch.special.zeta(2.5, Y), torch.xlogy(Y, 0.3),
        torch.xlogy(0.3, Y), Y.clone().xlogy_(0.3), torch.special.modified_bessel_k0(Y),
        torch.special.modified_bessel_k1(Y), torch.special.scaled_modified_bessel_k0(Y),
        torch.special.scaled_modified_bessel_k1(Y),
    ),
    "renorm": lambda: aten.embedding_renorm_(X.clone(), torch.tensor([0, 2]), 0.5, 2.0),
    "upsampling": lambda: (
        aten._upsample_bicubic2d_aa(IMAGES, [4, 9], True),
        aten._upsample_bicubic2d_aa_backward(IMAGES, [6, 8], [1, 2, 4, 9], True),
        aten._upsample_nearest_exact2d(IMAGES, [4, 9]),
        aten._upsample_nearest_exact2d_backward(IMAGES, [6, 8], [1, 2, 4, 9]),
        aten._upsample_nearest_exact3d(BLOCKS, [3, 5, 7]),
        aten._upsample_nearest_exact3d_backward(BLOCKS, [4, 4, 6], [1, 2, 3, 3, 3]),
        aten.upsample_nearest2d(IMAGES, [4, 9]),
        aten.upsample_nearest2d_backward(IMAGES, [6, 8], [1, 2, 4, 9]),
        aten.upsample_nearest3d(BLOCKS, [3, 5, 7]),
        aten.upsample_nearest3d_backward(BLOCKS, [4, 4, 6], [1, 2, 3, 3, 3]),
    ),
}  # fmt: skip

#: Functions in code that oneDNN generates.
GENERATED = {
    "mkldnn_rnn_layer": {"exp", "tanh"},
    "_transformer_encoder_layer_fwd": {"erf"},
}

#: Overloads that are not called here: of devices, libraries and formats that are not here, of
#: quantized numbers, of forms that torch makes of others and nobody calls, and of its own use.
UNKNOWN = frozenset(
    f"aten::{name}" for name in (
        "_amp_foreach_non_finite_check_and_unscale", "_thnn_fused_gru_cell",
        "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl",
        "_amp_foreach_non_finite_check_and_unscale_", "_assert_async", "_assert_async.msg",
        "_convolution", "_copy_from", "_cudnn_rnn", "_efficientzerotensor",
        "_fused_adagrad", "_fused_adagrad.tensor_lr", "_fused_adam",
        "_fused_adam.tensor_lr", "_fused_adamw", "_fused_adamw.tensor_lr",
        "_fused_rms_norm_backward", "_fused_sgd", "_fused_sgd.tensor_lr", "_grouped_mm",
        "_index_put_impl", "_nested_tensor_from_mask",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention.quantized",
        "_scaled_dot_product_flash_attention_backward", "_use_cudnn_ctc_loss",
        "_use_cudnn_ctc_loss.Tensor", "_use_miopen_ctc_loss",
        "_use_miopen_ctc_loss.Tensor", "addmm.dtype", "baddbmm.dtype", "bmm.dtype",
        "cauchy", "convolution_overrideable", "cudnn_batch_norm",
        "cudnn_batch_norm_backward", "detach_", "embedding_renorm", "exponential",
        "geometric", "log_normal", "mkldnn_convolution", "mkldnn_linear",
        "mkldnn_rnn_layer_backward", "mm.dtype", "random", "random.from", "random.to",
        "record_stream", "resize", "set", "set.source_Storage",
        "set.source_Storage_storage_offset", "set.source_Tensor",
        "set_.source_Storage_storage_offset", "uniform",
    )
)  # fmt: skip


def everything(seen, limit):
    """Hand every call of the database, and of ours, to ``seen``."""
    with binder().marking(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some operators are deprecated
        walk(seen, limit=limit)
        for call in (*OURS.values(), *(c for _, c in lists()), *(c for _, c in optimizers())):
            with watching(seen), torch.no_grad():
                call()


# What a row is held to ----------------------------------------------------------------------


def magnitudes(values):
    """The bits of numbers without their signs; none of other types."""
    return [
        t.detach().contiguous().view(torch.int32).reshape(-1) & 0x7FFFFFFF
        for t in values
        if t.dtype is torch.float32 and t.layout is torch.strided
    ]


def moved(given, made):
    """Whether each number that was made is one that was given, or 0, 1, infinite or no number."""
    numbers = [v for v in tree.tree_leaves(given) if isinstance(v, int | float)]
    constants = [0.0, 1.0, math.inf, *(float(v) for v in numbers if abs(v) < 1e30)]
    indices = [t.float() for t in tensors(given) if not t.is_floating_point()]
    known = torch.cat(magnitudes([*tensors(given), torch.tensor(constants), *indices]))
    return all(
        bool((torch.isin(bits, known) | t.detach().reshape(-1).isnan()).all())
        for bits, t in zip(magnitudes(made), made, strict=True)
    )


def wide(values):
    return tree.tree_map(
        lambda v: v.double() if isinstance(v, torch.Tensor) and v.dtype is torch.float32 else v,
        values,
    )


def rounds(func, given, result):
    """Whether a call gave a number that it did not get, and that float64 does not give either."""
    made = [t for t in tensors(result) if t.dtype is torch.float32 and t.layout is torch.strided]
    if not made or moved(given, made):
        return False
    exact = [t for t in tensors(func(*wide(given[0]), **wide(given[1]))) if t.is_floating_point()]
    return not all(
        torch.equal(t.double().nan_to_num(7), e.nan_to_num(7))
        for t, e in zip(made, exact, strict=True)
    )


def called(symbols, *dtypes):
    """The functions behind symbols of these types."""
    names = {s.function for s in symbols if s.dtype in dtypes}
    return names - {"sincos"} | ({"sin", "cos"} if "sincos" in names else set())


def family(functions):
    """The functions that may stand for these."""
    return {f for group in FAMILIES if set(group) & set(functions) for f in group}


class Calls:
    """Looks at a few calls of each overload that has a row, under the stock functions."""

    def __init__(self, limit=QUICK, only=None):
        self.limit, self.only = limit, only
        self.count = collections.Counter()
        self.symbols = collections.defaultdict(set)
        self.lies = {}

    def __call__(self, func, args, kwargs, call):
        row = find(name_of(func))
        name = str(func.name())
        if row is None or (self.only and row.name != self.only):
            return call()
        self.count[name] += 1
        if self.count[name] > self.limit or is_view(func):
            return call()
        exact = is_exact(func, args, kwargs) and row.values and row.kind is not Kind.ASKS
        casts = row.rounds_if == "casts" and len({t.dtype for t in tensors((args, kwargs))}) > 1
        given = tree.tree_map(
            lambda v: v.clone() if isinstance(v, torch.Tensor) and exact else v, (args, kwargs)
        )
        binder().marked()
        result = call()
        self.symbols[row.name] |= set(binder().marked())
        if exact and not casts and not kwargs.get("dtype") and rounds(func, given, result):
            self.lies[row.name] = f"{name} rounds, and its row says that it is exact"
        return result


@pytest.fixture(scope="module")
def watched():
    """A quick walk over the database, and our samples."""
    found = Calls()
    everything(found, QUICK)
    return found


def unnamed(found):
    """Row -> functions that its operator evaluates and it does not name."""
    lies = {}
    for name, symbols in found.symbols.items():
        row = find(name)
        if strange := called(symbols, "float32") - family((*row.functions, *row.beside)):
            lies[name] = strange
    return lies


def unwitnessed(found):
    """Row -> functions that it names, and that neither a symbol nor an override evaluates."""
    overrides = collections.defaultdict(set)
    for overload, functions in reached().items():
        overrides[find(overload.partition(".")[0]).name] |= functions
    lies = {}
    for name, symbols in found.symbols.items():
        # A kernel for float32 may compute in double.
        seen = called(symbols, "float32", "float64") | overrides[name]
        if lost := set(find(name).functions) - family(seen) - GENERATED.get(name, set()):
            lies[name] = lost
    return lies


def test_what_is_called_exact_rounds_nothing(watched):
    assert not watched.lies


def test_the_functions_named_are_those_that_an_operator_evaluates(watched):
    assert not unnamed(watched)
    assert not unwitnessed(watched)


@pytest.mark.slow
def test_all_samples_of_the_database_say_the_same():
    found = Calls(limit=20)
    everything(found, None)
    assert not found.lies
    assert not unnamed(found)


@pytest.mark.parametrize(
    ("name", "lie", "call"),
    [
        ("leaky_relu", {"exact": True}, lambda: torch.nn.functional.leaky_relu(X, 0.3)),
        ("add", {"exact": True}, lambda: X + Y / 3),
        ("round", {"rounds_if": ""}, lambda: torch.round(X / 3, decimals=3)),
        ("index_put", {"rounds_if": ""},
         lambda: X.index_put((torch.tensor([0, 0]),), Y[:2] / 3, accumulate=True)),
    ],
)  # fmt: skip
def test_a_row_that_says_exact_of_what_rounds_is_found(monkeypatch, name, lie, call):
    monkeypatch.setitem(rows.BY_NAME, name, dataclasses.replace(rows.BY_NAME[name], **lie))
    found = Calls(only=name)
    with binder().marking(), watching(found):
        call()
    assert list(found.lies) == [name]


@pytest.mark.parametrize("lie", [(), ("sin",)])
def test_a_row_that_names_other_functions_is_found(monkeypatch, lie):
    row = dataclasses.replace(rows.BY_NAME["mish"], functions=lie)
    monkeypatch.setitem(rows.BY_NAME, "mish", row)
    found = Calls(only="mish")
    with binder().marking(), watching(found):
        torch.nn.functional.mish(X)
    assert unnamed(found)["mish"] >= {"exp", "log1p", "tanh"}


def test_kernels_in_c_are_for_the_overloads_that_the_rows_say():
    cpp = direct.load()
    assert cpp is not None
    of_cpu = header.kernels()[header.NAME].partition("UDFTORCH_CUDA_KERNELS")[0]
    told = re.findall(r'\{"([^"]+)", ', of_cpu)
    assert {"exp", "gelu_", "pow.Tensor_Scalar", "normal_", "rsqrt.out"} <= set(told)

    def kind(name):
        place = f"aten::{name}", "CPU"
        below = switchboard.python(place, torch.neg)
        return switchboard.above(place, below, cpp.target, 1).kind

    assert {kind(name) for name in told} == {"C++"}
    assert kind("atan2") == "Python"


# Overloads that nobody calls ----------------------------------------------------------------


def uncalled(count):
    """Overloads with a row that were not called, but those that torch makes of others.

    Torch makes an overload with ``out=`` of a functional one, or both of one kernel.
    """
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.partition(".")
        if not name.startswith("aten::") or find(base[6:]) is None or name in count:
            continue
        arguments = getattr(getattr(aten, base[6:]), overload or "default")._schema.arguments
        out = any(a.kwarg_only and a.alias_info and a.alias_info.is_write for a in arguments)
        composed = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        if not out and not composed:
            found.add(name)
    return found


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) != (2, 14), reason="other overloads"
)
def test_each_overload_is_called_here_or_marked_unknown(watched):
    assert uncalled(watched.count) == UNKNOWN


# Bits under the contract --------------------------------------------------------------------

#: Operator with a kernel of the contract -> the scalar loop that is its reference, in
#: ``native/operator``, or what it is made of that has one.
LOOPS = {
    **dict.fromkeys(
        ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "_grouped_mm"), "mm"
    ),
    "convolution": "convolution", "convolution_backward": "weight_gradient",
    **dict.fromkeys(("sum", "mean"), "sums"), "cumsum": "prefixes", "prod": "prod",
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), "var"),
    **dict.fromkeys(("linalg_vector_norm", "_foreach_norm"), "norm"),
    **dict.fromkeys(("embedding_dense_backward", "index_add", "scatter_add", "_index_put_impl"),
                    "scatter"),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "_fused_rms_norm"), "layer_norm"),
    **dict.fromkeys(("native_layer_norm_backward", "native_group_norm_backward",
                     "_fused_rms_norm_backward"), "layer_norm_backward"),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
                     "_native_batch_norm_legit_no_training"), "batch_norm"),
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward"),
                    "batch_norm_backward"),
    **dict.fromkeys(("_adaptive_avg_pool2d_backward",), "avg_pool_backward"),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward"),
                    "max_pool_backward"),
    **{row.name: "upsample" for row in ROWS if "upsample" in row.name},
    **{row.name: "attention" for row in ROWS if "scaled_dot_product" in row.name},
    "_softmax": "softmax", "_softmax_backward_data": "softmax_backward",
    "_log_softmax": "log_softmax", "_log_softmax_backward_data": "log_softmax_backward",
    "logsumexp": "logsumexp",
    # Of the elements of these, and of their gradients.
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), "sums"),
    **dict.fromkeys(("_weight_norm_interface", "_weight_norm_interface_backward"), "sums"),
    **dict.fromkeys(("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward",
                     "_embedding_bag_per_sample_weights_backward"), "mm"),
    **{row.name: "scatter" for row in ROWS
       if row.name.startswith(("_ctc_loss", "_embedding_bag_backward", "grid_sampler"))},
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), "nll"),
    **dict.fromkeys(("mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
                    "loss"),
    **dict.fromkeys(("smooth_l1_loss", "huber_loss"), "smooth_l1"),
    **dict.fromkeys(("smooth_l1_loss_backward", "binary_cross_entropy_backward"),
                    "smooth_l1_backward"),
    "uniform": "uniform", "normal": "normal", "exponential": "exponential",
    "bernoulli": "bernoulli", "multinomial": "multinomial",
    **dict.fromkeys(("native_dropout", "native_dropout_backward"), "bernoulli"),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), "adam"),
    "_fused_sgd": "sgd", "_fused_adagrad": "adagrad",
    # Widened in 16 bits alone, around torch's kernel in float32.
    "avg_pool2d_backward": "narrow",
}  # fmt: skip

#: What maps elements, one by one.
ONE_BY_ONE = (Kind.MAPS, Kind.PRODUCTS)
_INSIDE = (Held.ROUNDED, Held.FUNCTION, Held.TRIED, Held.OWN)


def test_what_has_a_kernel_of_the_contract_is_what_the_library_overrides():
    library = find_library("repro")
    overridden = {
        (find(name_of_text(udf.name)).name, key.removeprefix("Autograd"))
        for those in library.operators.values()
        for udf in those
        for key in udf.dispatch_keys
    }
    for row in ROWS:
        for key, held in (("CPU", row.contract.cpu), ("CUDA", row.contract.cuda)):
            if held is Held.OWN:
                assert (row.name, key) in overridden, row.name
    for name, key in overridden:
        contract = find(name).contract
        # Other calls of the operator are inside by another way.
        assert (contract.cpu if key == "CPU" else contract.cuda) is not Held.NO, name
    assert {row.name for row in ROWS if row.contract.cpu is Held.FUNCTION} == {
        *library.function_names, "_foreach_pow",
    }  # fmt: skip


def name_of_text(overload):
    return overload.partition("::")[2].partition(".")[0]


def test_each_kernel_of_the_contract_has_a_scalar_loop():
    folder = Path(rows.__file__).parents[1] / "native" / "operator"
    text = "".join(path.read_text() for path in folder.glob("contract*.h"))
    loops = set(re.findall(r"ref_(\w+)\(", text))
    for row in ROWS:
        if Held.OWN in row.contract.cells and row.kind not in (Kind.MOVES, Kind.DRAWS):
            assert row.name in LOOPS or row.kind is Kind.MAPS, row.name
    assert set(LOOPS.values()) <= loops


def bits(t):
    return t.detach().contiguous().view(torch.int32).masked_fill(t.detach().isnan(), -1)


def rows_of(x, dims, n):
    """The rows over dimensions, which lie side by side."""
    kept = [d for d in range(x.dim()) if d not in {d % x.dim() for d in dims}]
    return x.permute(*kept, *sorted(d % x.dim() for d in dims)).reshape(-1, n).contiguous()


def by_loops(name, args):
    """A few operators by the scalar loops; None for calls that are not one of them."""
    x = args[0]
    if name in ("mm", "bmm", "mv", "dot"):
        a, b = args[:2]
        m = a if a.dim() > 1 else a[None]
        n = b if b.dim() > 1 else b[:, None]
        left, right = (t if t.dim() == 3 else t[None] for t in (m, n))
        found = [product(p, q) for p, q in zip(left, right, strict=True)]
        return torch.stack(found).reshape(torch.matmul(a, b).shape)
    if name in ("_softmax", "_log_softmax") and x.dim() and x.dtype is torch.float32:
        n = x.shape[args[1]]
        given = x.movedim(args[1], -1).reshape(-1, n).contiguous()
        out, work = torch.empty_like(given), torch.empty(n)
        if name == "_softmax":
            reference("softmax", len(given), n, given, function("exp"), out)
        else:
            functions = function("exp"), function("log")
            reference("log_softmax", len(given), n, given, *functions, work, out)
        return out.reshape(x.movedim(args[1], -1).shape).movedim(-1, args[1])
    if name in ("sum", "mean", "prod") and x.numel() and x.dtype is torch.float32:
        if len(args) > 3 or (len(args) > 1 and not isinstance(args[1], list)):
            return None
        dims = args[1] if len(args) > 1 and args[1] else list(range(x.dim()))
        n = math.prod(x.shape[d] for d in dims)
        given = rows_of(x, dims, n) if x.dim() else x.reshape(1, 1)
        found = torch.stack([tree_of(torch.mul if name == "prod" else torch.add, r) for r in given])
        return found / n if name == "mean" else found
    return None


def tree_of(join, terms):
    """Join terms as the contract adds: the largest power of two below, and the rest."""
    if len(terms) == 1:
        return terms[0]
    half = 1 << (len(terms) - 1).bit_length() - 1
    return join(tree_of(join, terms[:half]), tree_of(join, terms[half:]))


_FMA = ctypes.CDLL(None).fmaf
_FMA.restype, _FMA.argtypes = ctypes.c_float, [ctypes.c_float] * 3


def product(a, b):
    """Products in chunks of 64, whose sums are added as sums are."""
    found = torch.zeros(a.shape[0], b.shape[1])
    for i, left in enumerate(a.tolist()):
        for j, right in enumerate(b.T.tolist()):
            chunks = []
            for start in range(0, len(left), 64):
                total = 0.0
                for p, q in zip(left[start : start + 64], right[start : start + 64], strict=True):
                    total = _FMA(p, q, total)
                chunks.append(torch.tensor(total))
            found[i, j] = tree_of(torch.add, chunks) if chunks else 0.0
    return found


class UnderContract:
    """Compares calls that are inside with single elements, or with scalar loops."""

    def __init__(self, limit=QUICK):
        self.limit = limit
        self.count = collections.Counter()
        self.compared = set()
        self.lies = {}

    def __call__(self, func, args, kwargs, call):
        result = call()
        row, name = find(name_of(func)), str(func.name())
        if row is None or row.contract.cpu not in _INSIDE or self.count[name] > self.limit:
            return result
        wrote = any(a.alias_info for a in func._schema.arguments)
        plain = isinstance(result, torch.Tensor) and result.dtype is torch.float32
        small = plain and 0 < result.numel() < 5000 and result.layout is torch.strided
        if wrote or not small or reason(func, (args, kwargs), result) is not None:
            return result
        wanted = self.wanted(func, row, args, kwargs, result)
        if wanted is not None:
            self.count[name] += 1
            self.compared.add(row.name)
            expected, got = wanted
            if not torch.equal(bits(expected), bits(got)):
                self.lies[row.name] = name
        return result

    def wanted(self, func, row, args, kwargs, result):
        """What a call should give, and what it gives there; None if nobody knows."""
        if row.kind in ONE_BY_ONE and row.factors is None:
            return self.single(func, args, kwargs, result)
        if kwargs:
            return None
        expected = by_loops(row.name, args)
        return None if expected is None else (expected.reshape(result.shape), result)

    @staticmethod
    def single(func, args, kwargs, result):
        """A few elements, each of which a call of its own computes."""
        given = tensors((args, kwargs))
        alike = all(t.numel() and t.dtype is torch.float32 for t in given)
        try:
            alike &= torch.broadcast_shapes(*(t.shape for t in given)) == result.shape
        except RuntimeError:
            return None
        said = arguments_of(func, args, kwargs)
        mean = any(a.name == "reduction" for a in func._schema.arguments)
        alike &= not said.get("reduction", int(mean)) and "dim" not in said
        if not alike or not given or given[0].layout is not torch.strided:
            return None
        places = sorted({0, result.numel() // 2, result.numel() - 1})
        found = []
        for at in places:
            one = tree.tree_map(
                lambda v: v.detach().expand(result.shape).reshape(-1)[at:at + 1].clone()  # noqa: B023
                if isinstance(v, torch.Tensor) else v,
                (args, kwargs),
            )  # fmt: skip
            found.append(func(*one[0], **one[1]).reshape(1))
        return torch.cat(found), result.detach().reshape(-1)[places]


@pytest.fixture(scope="module")
def compared():
    found = UnderContract()
    with patched("repro"):
        everything(found, QUICK)
    return found


def test_what_is_inside_has_the_bits_of_the_scalar_reference(compared):
    assert not compared.lies
    inside = {row.name for row in ROWS if row.contract.cpu in _INSIDE}
    # The rest: torch's own kernels that a test tries, and those that have scalar loops.
    assert inside - compared.compared - set(LOOPS) - set(CALLS) - OF_ONES <= set()
    assert {"mm", "bmm", "sum", "mean", "_softmax", "add", "exp", "gelu"} <= compared.compared


#: Inside, and of single numbers in another way: ``tests/reproduce`` compares them.
OF_ONES = {"_foreach_pow", "linspace"}


@pytest.mark.slow
def test_all_samples_of_the_database_have_the_bits_of_the_scalar_reference():
    found = UnderContract(limit=25)
    with patched("repro"):
        everything(found, None)
    assert not found.lies


def test_a_row_that_says_inside_of_what_depends_on_the_place_is_found(monkeypatch):
    lie = dataclasses.replace(rows.BY_NAME["huber_loss_backward"], contract=TRIED)
    monkeypatch.setitem(rows.BY_NAME, "huber_loss_backward", lie)
    found = UnderContract()
    outside._row.cache_clear()
    with patched("repro"), watching(found):
        for seed in range(3):
            given = (random(99, seed=seed + s) for s in range(3))
            aten.huber_loss_backward(*given, 0, 0.7)
    outside._row.cache_clear()
    assert set(found.lies) == {"huber_loss_backward"}


def test_a_kernel_with_another_order_is_found():
    found = UnderContract()
    x = random(40, 300)
    with watching(found):  # stock
        torch.sum(x, 1)
        torch.mm(x, x.mT)
    assert set(found.lies) == {"sum", "mm"}
