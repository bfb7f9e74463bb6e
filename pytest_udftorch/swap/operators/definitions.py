# SPDX-License-Identifier: Apache-2.0
"""Which transcendental functions the definition of an operator evaluates, and how often.

torch itself defines most operators by simpler ones: its table of decompositions, which export and
torch.compile use. :func:`evaluations` follows them down to operators that are functions (exp) or
algebraic (add), on tensors without data, and counts. The operators without a decomposition are
listed here. Nothing here looks at what sessions override.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import watching
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.operators import decompositions as formulas

#: Functions that an implementation may use for each other, as log and log1p.
FAMILIES: Final[tuple[tuple[str, ...], ...]] = (
    ("exp", "exp2", "expm1"),
    ("log", "log2", "log10", "log1p"),
    ("sin", "cos"),
    ("erf", "erfc"),
    *((n,) for n in FUNCTIONS if n in (
        "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "pow",
        "atan2", "hypot",
    )),
)  # fmt: skip

#: Exponents for which ATen's pow evaluates no function.
_WITHOUT_POW: Final = frozenset((0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0))

#: Operator -> what one element of its result evaluates, where torch has no decomposition into
#: functions, or one that hides them. Special functions stand for the function that their method
#: in ATen rests on; normal variates for Box and Muller's method.
_LEAVES: Final[dict[str, tuple[str, ...]]] = {
    **{name: (name,) for name in FUNCTIONS if name != "pow"},
    "sigmoid": ("exp",),
    "special_erfcx": ("exp",),
    "erfinv": ("erf",),
    "lgamma": ("log",),
    "digamma": ("log",),
    "i0": ("exp",),
    "bessel_i0": ("exp",),
    "special_i1": ("exp",),
    "bessel_i1": ("exp",),
    "special_ndtri": ("log",),
    "ndtri": ("log",),
    "normal": ("log", "cos"),
    "normal_": ("log", "cos"),
    "randn": ("log", "cos"),
    "randn_like": ("log", "cos"),
    "log_normal_": ("log", "cos", "exp"),
    "exponential_": ("log",),
    "geometric_": ("log",),
    "cauchy_": ("tan",),
    "logcumsumexp": ("exp", "log1p"),
    "_logcumsumexp": ("exp", "log1p"),
    "polar": ("sin", "cos"),
    "zeta": ("pow",),
    "igamma": ("exp",),
    "igammac": ("exp",),
    "erf_inv": ("erf",),
    "erfcx": ("exp",),
    "bessel_j0": ("sin", "cos"),
    "bessel_j1": ("sin", "cos"),
    "spherical_bessel_j0": ("sin",),
    "special_bessel_y0": ("log", "sin", "cos"),
    "special_bessel_y1": ("log", "sin", "cos"),
    "special_modified_bessel_i0": ("exp",),
    "special_modified_bessel_i1": ("exp",),
    "special_modified_bessel_k0": ("exp", "log"),
    "special_modified_bessel_k1": ("exp", "log"),
    "special_scaled_modified_bessel_k0": ("exp", "log"),
    "special_scaled_modified_bessel_k1": ("exp", "log"),
    "hamming_window": ("cos",),
    "kaiser_window": ("exp",),
    "_masked_softmax": ("exp",),
}

#: Simplest operators of torch that are functions without a definition. Every other one of the
#: namespace ``prims`` that is no leaf is algebraic.
_PRIMS_WITHOUT_DEFINITION: Final = frozenset(("cbrt", "fft_c2c", "fft_c2r", "fft_r2c"))

#: Operators without a decomposition that evaluate no function: they move, compare, select, add,
#: multiply, divide, take roots, or draw uniform numbers.
_ALGEBRAIC: Final = frozenset(
    [
        "mm", "addmm", "bmm", "baddbmm", "dot", "mv", "addmv", "convolution",
        "convolution_backward", "convolution_overrideable", "mkldnn_convolution", "_convolution",
        "linear", "mkldnn_linear", "_native_batch_norm_legit", "native_batch_norm",
        "native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward",
        "native_group_norm", "native_group_norm_backward", "cudnn_batch_norm",
        "cudnn_batch_norm_backward", "_batch_norm_with_update", "batch_norm_backward",
        "_fused_rms_norm", "_fused_rms_norm_backward", "embedding_dense_backward",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
        "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d", "mean",
        "sum", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "sort",
        "topk", "cumsum", "cumprod", "median", "kthvalue", "unique_dim", "_unique2", "nonzero",
        "masked_select", "index", "index_put", "index_put_", "_index_put_impl_", "scatter",
        "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "gather",
        "index_select", "index_add", "index_add_", "take", "embedding", "embedding_renorm_",
        "_embedding_bag", "bincount",
        "histc", "searchsorted", "bucketize", "grid_sampler_2d", "copy_", "clone", "_to_copy",
        "empty", "empty_like", "empty_strided", "zeros", "ones", "full", "full_like",
        "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full", "new_empty",
        "new_empty_strided", "arange", "scalar_tensor", "_record_function_enter_new",
        "_record_function_exit", "lift_fresh", "lift_fresh_copy", "set_", "resize_",
        "_local_scalar_dense", "item", "equal", "is_same_size", "isfinite", "isnan", "isinf",
        "copy", "__and__", "__or__", "__xor__", "logical_not", "rand", "rand_like", "bernoulli",
        "bernoulli_", "uniform_", "uniform", "randint", "randperm", "multinomial", "random_",
        "native_dropout", "native_dropout_backward", "sqrt", "rsqrt", "reciprocal",
        "_foreach_sqrt", "_foreach_add", "_foreach_add_", "_foreach_mul", "_foreach_mul_",
        "_foreach_div", "_foreach_div_", "_foreach_addcmul_", "_foreach_addcdiv_",
        "_foreach_lerp_", "_foreach_neg", "_foreach_sqrt_", "_foreach_copy_",
        "_foreach_sub", "_foreach_sub_", "_foreach_maximum_", "_foreach_reciprocal_",
        "_foreach_zero_", "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_",
        "_amp_foreach_non_finite_check_and_unscale_", "record_stream",
        "_efficientzerotensor", "_nested_tensor_from_mask", "_unsafe_view", "unfold_backward",
        "col2im", "im2col", "upsample_bilinear2d", "upsample_nearest2d", "_upsample_bicubic2d_aa",
        "upsample_bicubic2d", "roll", "flip", "as_strided", "as_strided_", "_grouped_mm",
        "grouped_mm_fallback", "grouped_mm_fallback_backward",  # of transformers
        "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss",
        "_weight_norm_interface_backward", "angle", "rrelu_with_noise",
        "rrelu_with_noise_backward",
    ]
)  # fmt: skip

#: Some decompositions call each other.
_DEEPEST: Final = 12

Counts = collections.Counter[str]


def _tensors(value: Any) -> list[Any]:
    import torch

    return [t for t in compat.pytree().tree_leaves(value) if isinstance(t, torch.Tensor)]


def _scores(*args: Any, **_: Any) -> Counts:
    """Return what attention's backward pass evaluates: the weights anew from the scores."""
    query, key = args[1], args[2]
    return Counts(exp=math.prod(query.shape[:-1]) * key.shape[-2])


def _scores_and_sums(*args: Any, **_: Any) -> Counts:
    """Return what fused attention on CUDA evaluates: its weights and the sums' logarithms."""
    query, key = args[:2]
    rows = math.prod(query.shape[:-1])
    return Counts(exp=rows * key.shape[-2], log=rows)


def _alignments(*args: Any, **_: Any) -> Counts:
    """Return what ctc_loss evaluates: a log-sum-exp of three for each step and state."""
    states = _states(args[0], args[1])
    return Counts(exp=3 * states, log=states)


def _alignments_backward(*args: Any, **_: Any) -> Counts:
    """Return what its gradient evaluates: the same backwards, sums by class, and probabilities.

    On a GPU the sum of a class is that of its shares, as in PyTorch's own kernel for the labels of
    large batches; elsewhere it is a log-sum-exp.
    """
    states = _states(args[1], args[2])
    if args[1].is_cuda:
        return Counts(exp=4 * states + args[1].numel(), log=states)
    return Counts(exp=5 * states + 2 * args[1].numel(), log=2 * states)


def _states(log_probabilities: Any, targets: Any) -> int:
    """Return steps times states, a blank around each label, of the whole batch."""
    steps, *batch = log_probabilities.shape[:-1]
    lines = math.prod(batch)
    labels = targets.numel() if targets.dim() == 1 else lines * targets.shape[1]
    return int(steps * (2 * labels + lines))


def _recurrent(*args: Any, **_: Any) -> Counts:
    x, hidden, mode = args[0], args[5], args[9]
    cells = math.prod(x.shape[:-1]) * hidden.shape[-1]
    gates = {2: (3, 2), 3: (2, 1)}.get(int(mode), (0, 1))
    return Counts(exp=gates[0] * cells, tanh=gates[1] * cells)


def _recurrent_backward(*args: Any, **_: Any) -> Counts:
    """Return what its gradient evaluates: the tanh of the cells, which is not kept."""
    x, hidden, mode = args[0], args[5], args[14]
    return Counts(tanh=math.prod(x.shape[:-1]) * hidden.shape[-1]) if int(mode) == 2 else Counts()


def _distances(*args: Any, **_: Any) -> Counts:
    """Return what cdist and pdist evaluate: a power of each difference."""
    p = float(next(a for a in args if isinstance(a, int | float)))
    if p in (0.0, 1.0, 2.0, math.inf):
        return Counts()
    points = [t for t in args if hasattr(t, "shape")]
    size = points[0].shape[-1]
    pairs = math.prod(points[0].shape[:-1]) * (points[1].shape[-2] if len(points) > 1 else 1)
    return Counts(pow=pairs * (size + 1))


def _drawn(size: Any, seed: Any, mode: str, **_: Any) -> Counts:
    """Return what Inductor's random numbers evaluate: normal ones Box and Muller's method."""
    count = math.prod(size)
    return Counts(log=count, cos=count) if mode == "randn" else Counts()


def _norms(tensors: Any, p: Any = 2, *_: Any, **__: Any) -> Counts:
    """Return what the norms of a list evaluate: a power of each element, and one of each sum."""
    if float(p) in (0.0, 1.0, 2.0, math.inf, -math.inf):
        return Counts()
    return Counts(pow=sum(t.numel() + 1 for t in tensors))


def _powers(base: Any, exponent: Any, *_: Any, **__: Any) -> Counts:
    """Return what powers of lists evaluate."""
    numbers = (int, float)
    size = base if isinstance(base, list | tuple) else exponent
    each = exponent if isinstance(exponent, list | tuple) else [exponent] * len(size)
    counted = (
        t.numel()
        for t, by in zip(size, each, strict=True)
        if not (isinstance(by, numbers) and float(by) in _WITHOUT_POW)
    )
    return Counts(pow=sum(counted))


def _heads(query: Any, heads: int) -> int:
    """Return the number of scores of attention of a sequence to itself."""
    batch, length = query.shape[:2]
    return int(batch * heads * length * length)


def _encoder_layer(*args: Any, **_: Any) -> Counts:
    """Return what a layer of ``nn.TransformerEncoder`` evaluates as one operator."""
    tokens = math.prod(args[0].shape[:2])
    widened = args[14].shape[0]  # the weight of the first linear layer
    return Counts(exp=_heads(args[0], args[2]), erf=tokens * widened if args[7] else 0)


def _self_attention(*args: Any, **_: Any) -> Counts:
    """Return what ``nn.MultiheadAttention`` evaluates as one operator."""
    return Counts(exp=_heads(args[0], args[4]))


def _log_ndtr(x: Any) -> Counts:
    """Return what log_ndtr evaluates; erfcx of what torch gives it needs no function."""
    return Counts(dict.fromkeys(("log", "log1p", "erfc"), x.numel()))


def _polygamma(order: int, x: Any) -> Counts:
    """Return what polygamma evaluates: the reflection of trigamma; then Hurwitz's zeta function."""
    named = {0: ("log",), 1: ("sin",)}.get(order, ("exp", "pow"))
    return Counts(dict.fromkeys(named, x.numel()))


_DEFINED: Final[Mapping[str, Callable[..., Counts]]] = {
    "_scaled_dot_product_flash_attention_for_cpu_backward": _scores,
    **{
        f"_scaled_dot_product_{form}_attention{end}": counted
        for form in ("flash", "efficient", "cudnn")
        for end, counted in (("", _scores_and_sums), ("_backward", _scores))
    },
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
    "_ctc_loss": _alignments,
    "_ctc_loss_backward": _alignments_backward,
    "_cdist_forward": _distances,
    "_pdist_forward": _distances,
    "inductor_random": _drawn,
    "polygamma": _polygamma,
    "special_log_ndtr": _log_ndtr,
    "_foreach_norm": _norms,
    "_foreach_pow": _powers,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "_native_multi_head_attention": _self_attention,
}


def name_of(operator: Any) -> str:
    """Return the name of an overload's operator without its namespace: ``gelu``."""
    return str(operator.name()).partition("::")[2].partition(".")[0]


def mixes(operator: Any) -> bool:
    """Tell whether the elements of an operator's result are sums over others."""
    return name_of(operator) in formulas.MIXING


def signature(operator: Any, values: Any) -> tuple[Any, ...]:
    """Return what calls with the same number of evaluations have in common."""
    import torch

    leaves, structure = compat.pytree().tree_flatten(values)
    shown = tuple(
        (tuple(v.shape), v.stride(), str(v.dtype)) if isinstance(v, torch.Tensor) else repr(v)
        for v in leaves
    )
    return (str(operator.name()), str(structure), shown)


def is_view(operator: Any) -> bool:
    """Tell whether an overload returns views of its arguments, and so computes nothing."""
    schema = compat.overload_schema(operator)
    returned = [r.alias_info for r in schema.returns]
    return bool(returned) and all(a is not None and not a.is_write for a in returned)


class _Follower:
    """Counts the functions in the decompositions of the operators that it sees."""

    def __init__(self) -> None:
        import torch

        self.counts = Counts()
        self.unknown: list[str] = []
        self.depth = 0
        self.mode = watching(self.call)
        self._torch = torch

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = name_of(func)
        if name.endswith("_") and name not in _LEAVES and name not in _ALGEBRAIC:
            name = name[:-1]
        if name in _LEAVES or name == "pow":
            result = func(*args, **kwargs)
            self._leaf(name, func, args, result)
            return result
        if name in _DEFINED:
            self.counts += _DEFINED[name](*args, **kwargs)
            return func(*args, **kwargs)
        if name in _ALGEBRAIC or is_view(func):
            return func(*args, **kwargs)
        table = compat.decompositions()
        if self.depth < _DEEPEST:
            self.depth += 1
            try:
                with self.mode:
                    # Operators that torch computes by others on every device have no entry.
                    result = table.get(func, func.decompose)(*args, **kwargs)
            finally:
                self.depth -= 1
            if result is not NotImplemented:
                return result
        algebraic = str(func.name()).startswith("prims::") and name not in _PRIMS_WITHOUT_DEFINITION
        if not algebraic and func not in table:
            self.unknown.append(str(func.name()))
        return func(*args, **kwargs)

    def _leaf(self, name: str, func: Any, args: Any, result: Any) -> None:
        first = next(iter(_tensors(result)), None)
        if first is None or not (first.is_floating_point() or first.is_complex()):
            return
        if name == "pow":
            exponent = args[1]
            if isinstance(exponent, int | float) and float(exponent) in _WITHOUT_POW:
                return
            self.counts["pow"] += first.numel()
            return
        for function in _LEAVES[name]:
            self.counts[function] += first.numel()


def _base_of_foreach(operator: Any) -> Any:
    """Return the overload for one tensor of an operator on lists (``_foreach_exp``), or None."""
    import torch

    name = name_of(operator)
    if not name.startswith("_foreach_") or name in _ALGEBRAIC:
        return None
    base = getattr(torch.ops.aten, name.removeprefix("_foreach_").removesuffix("_"), None)
    return getattr(base, "default", None)


def evaluations(operator: Any, args: Any, kwargs: Any) -> tuple[Counts, list[str]]:
    """Return function -> how often a call evaluates it, and operators whose definition is unknown.

    Args:
        operator: an overload of ``torch.ops``.
        args: its arguments; tensors give their shape and dtype alone.
        kwargs: likewise.
    """
    import torch

    base = _base_of_foreach(operator)
    if base is not None:
        total, missing = Counts(), list[str]()
        for tensor in args[0]:
            counts, unknown = evaluations(base, (tensor,), {})
            total, missing = total + counts, missing + unknown
        return total, missing

    def bare(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    tree = compat.pytree()
    with compat.no_modes(), torch.no_grad():
        try:
            bare_args, bare_kwargs = tree.tree_map(bare, (args, _on_meta(kwargs)))
            return _followed(operator, bare_args, bare_kwargs)
        except Exception:
            # Some decompositions read the data.
            copied = tree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, args)
            with torch.random.fork_rng(devices=[]):
                try:
                    return _followed(operator, copied, kwargs)
                except Exception as error:
                    return Counts(), [f"{operator.name()} ({type(error).__name__})"]


def _on_meta(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for tensors without data: a generator belongs to a device."""
    return {k: "meta" if k == "device" else v for k, v in kwargs.items() if k != "generator"}


def _followed(operator: Any, args: Any, kwargs: Any) -> tuple[Counts, list[str]]:
    follower = _Follower()
    with follower.mode:
        operator(*args, **kwargs)
    return +follower.counts, follower.unknown


def families(counts: Counts) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield each family of functions that a call evaluates, and how often."""
    for family in FAMILIES:
        times = sum(counts[name] for name in family)
        if times:
            yield family, times


def defined_result(operator: Any, args: Any, kwargs: Any) -> Any:
    """Compute an operator by torch's decomposition in float32, or return None if it has none.

    Args:
        operator: an overload.
        args: its arguments, on the CPU.
        kwargs: likewise.
    """
    import torch

    base = _base_of_foreach(operator)
    if base is not None:
        return [defined_result(base, (t,), {}) for t in args[0]]
    name = name_of(operator)
    table = compat.decompositions()

    def wide(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # Sessions have functions of float32: those of other dtypes would not change. A copy, since
        # operators write into their arguments.
        return value.clone().float() if value.is_floating_point() else value.clone()

    args, kwargs = compat.pytree().tree_map(wide, (args, kwargs))
    if any(t.is_complex() for t in _tensors((args, kwargs))):
        return None
    if name == "sigmoid":  # a function of its own to torch
        return 1.0 / (1.0 + torch.exp(-args[0]))
    if name in FUNCTIONS or name.removesuffix("_") in FUNCTIONS:
        return operator(*args, **kwargs)
    if name in formulas.DEFINED:
        return formulas.DEFINED[name](*args, **kwargs)
    if operator not in table or name in _LEAVES:
        return None
    result = table[operator](*args, **kwargs)
    return None if result is NotImplemented else result
