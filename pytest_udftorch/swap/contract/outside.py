# SPDX-License-Identifier: Apache-2.0
"""Which operators of a run are outside of docs/reproduce/contract.md, so that machines may differ.

An operator is inside if its kernel is the contract's, if it only moves or compares numbers, if it
rounds each element once, or if tests hold torch's kernel to the same bits at every CPU level.
Everything else is outside, also where nothing is known against it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import Call, watching
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.errors import OutsideContractError
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.overrides.dispatcher import thread as override_thread
from pytest_udftorch.swap.overrides.python_override import stock

LIBRARY: Final = "repro"

#: Operators that move, choose or compare numbers, by the name without overload.
MOVES: Final = frozenset(
    {
        "_assert_async", "_conj", "_copy_from", "_foreach_zero", "_local_scalar_dense",
        "_reshape_alias", "_reshape_copy", "_to_copy", "_unsafe_index",
        "_unsafe_masked_index", "_unsafe_view", "abs", "adaptive_max_pool2d",
        "adaptive_max_pool3d", "alias", "alias_copy", "amax", "amin", "aminmax",
        "as_strided", "as_strided_copy", "as_strided_scatter", "cat", "ceil", "clamp",
        "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy", "copysign", "cummax",
        "cummin", "detach", "diagonal_scatter", "embedding", "empty", "empty_like",
        "empty_permuted", "empty_strided", "expand_copy", "fill", "flip", "floor", "fmax",
        "fmin", "frexp", "full", "full_like", "gather", "hardtanh", "hardtanh_backward",
        "heaviside", "im2col", "index", "index_copy", "index_fill", "index_select",
        "kthvalue", "lift", "lift_fresh", "lift_fresh_copy", "masked_fill",
        "masked_scatter", "masked_select", "max", "max_pool2d_with_indices",
        "max_pool3d_with_indices", "maximum", "median", "min", "minimum", "mode",
        "nan_to_num", "narrow_copy", "neg", "new_empty", "new_empty_strided", "new_full",
        "new_ones", "new_zeros", "ones", "ones_like", "permute_copy", "pixel_shuffle",
        "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "relu", "repeat",
        "replication_pad1d", "replication_pad2d", "resize", "roll", "rot90", "round",
        "scalar_tensor", "scatter", "select_backward", "select_copy", "select_scatter",
        "set", "sgn", "sign", "slice_backward", "slice_copy", "slice_scatter", "sort",
        "split_copy", "split_with_sizes_copy", "squeeze", "squeeze_copy", "stack", "t",
        "t_copy", "take", "threshold", "threshold_backward", "topk", "transpose",
        "transpose_copy", "tril", "triu", "trunc", "unfold_copy", "unsafe_split",
        "unsafe_split_with_sizes", "unsqueeze", "unsqueeze_copy", "upsample_nearest1d",
        "upsample_nearest2d", "view_copy", "where", "zero", "zeros", "zeros_like",
    }
)  # fmt: skip

_SIXTEEN: Final = frozenset({"bfloat16", "float16"})

#: Operators whose every element is rounded once by IEEE 754.
ROUNDED: Final = frozenset({"add", "div", "mul", "reciprocal", "sub"})

#: Operators whose kernels are torch's, and give the same bits at AVX2 and AVX-512 and with any
#: number of threads: ``tests/reproduce/test_contract_outside.py`` tries each.
TRIED: Final = frozenset(
    {
        "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "_prelu_kernel",
        "adaptive_max_pool2d_backward", "addcdiv", "addcmul", "avg_pool2d",
        "avg_pool2d_backward", "celu", "digamma", "elu", "elu_backward", "erfinv", "fmod",
        "gelu", "gelu_backward", "glu", "glu_backward", "hardsigmoid",
        "hardsigmoid_backward", "hardswish", "hardswish_backward", "huber_loss_backward",
        "leaky_relu", "leaky_relu_backward", "lerp", "lgamma", "linspace",
        "log_sigmoid_backward", "log_sigmoid_forward", "logaddexp", "logit",
        "max_pool2d_with_indices_backward", "mish", "mish_backward", "mse_loss_backward",
        "nll_loss2d_backward", "nll_loss_backward", "remainder", "rsqrt", "rsub", "sigmoid",
        "sigmoid_backward", "silu", "silu_backward", "sinc", "soft_margin_loss", "softplus",
        "softplus_backward", "softshrink_backward", "tanh_backward", "xlogy",
    }
)  # fmt: skip

#: Of the operators whose kernels are torch's on the CPU, those that give other bits on GPUs. The
#: others give the same: ``tests/gpu/test_contract_outside_gpu.py`` tries each.
NOT_ON_GPUS: Final = frozenset({"digamma", "glu_backward", "hardsigmoid", "hardswish", "lgamma"})

#: The same in 16 bits, besides those.
NOT_SIXTEEN_ON_GPUS: Final = frozenset(
    {
        "_adaptive_avg_pool2d_backward", "_prelu_kernel", "adaptive_max_pool2d_backward",
        "avg_pool2d_backward", "huber_loss_backward", "log_sigmoid_backward", "logit",
        "max_pool2d_with_indices_backward", "nll_loss2d_backward", "nll_loss_backward", "rsub",
        "sigmoid_backward", "smooth_l1_loss_backward", "tanh_backward", "xlogy",
    }
)  # fmt: skip

#: In the contract for the CPU alone; torch's kernel for GPUs gives the same bits in float32.
_ALIKE_ON_GPUS: Final = frozenset({"smooth_l1_loss_backward"})

#: Overloads of these that Inductor would compute by formulas of its own, rounded otherwise.
UNCOMPILED: Final = tuple(
    f"aten::{name}"
    for name in (
        "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
        "_native_batch_norm_legit_functional", "_prelu_kernel", "addcdiv",
        "addcmul", "avg_pool2d", "avg_pool2d_backward", "celu", "elu", "elu_backward", "gelu",
        "gelu_backward", "glu", "glu_backward", "hardsigmoid", "hardsigmoid_backward", "hardswish",
        "hardswish_backward", "leaky_relu", "leaky_relu_backward", "lerp.Scalar", "lerp.Tensor",
        "log_sigmoid_backward", "log_sigmoid_forward", "logaddexp",
        "max_pool2d_with_indices_backward", "mish", "mish_backward", "mse_loss_backward",
        "nll_loss_backward", "rsqrt", "sigmoid", "sigmoid_backward", "silu", "silu_backward",
        "softplus", "softplus_backward", "tanh_backward",
        # Of lists of tensors; the kernels of these call those of single ones.
        "_foreach_add.List", "_foreach_add.Tensor", "_foreach_addcdiv.Scalar",
        "_foreach_addcdiv.ScalarList", "_foreach_addcdiv.Tensor", "_foreach_addcmul.Scalar",
        "_foreach_addcmul.ScalarList", "_foreach_addcmul.Tensor", "_foreach_lerp.List",
        "_foreach_lerp.Scalar", "_foreach_lerp.ScalarList", "_foreach_sub.List",
    )
)  # fmt: skip

#: Overloads of single elements that Inductor computes, but for calls with a number beside 16 bits.
WITH_NUMBERS: Final = tuple(
    f"aten::{name}" for name in (
        "add.Scalar", "add.Tensor", "div.Scalar", "div.Tensor", "mul.Scalar", "mul.Tensor",
        "sub.Scalar", "sub.Tensor",
    )
)  # fmt: skip

#: Operators that torch computes by others, which the contract has.
COMPOSED: Final = frozenset(
    {
        "_normal_functional", "_safe_softmax", "bernoulli", "index_put", "native_dropout",
        "native_dropout_backward", "norm", "normal", "rand", "rand_like", "randn",
        "randn_like", "randperm",
    }
)  # fmt: skip

#: Operators whose kernel in the contract writes to a given result, so all overloads call it.
WRITING: Final = frozenset({"sqrt"})


def has_contract(registered: Iterable[Any]) -> bool:
    """Tell whether one of the overrides in the dispatcher is a kernel of the contract."""
    functions = (getattr(o, "function", None) for o in registered)
    # A function that was made by exec() in a bare namespace has None for its module.
    modules = (getattr(f, "__module__", None) or "" for f in functions)
    return any(m.startswith("pytest_udftorch.swap.contract.") for m in modules)


def holds(uncomputed: Iterable[str]) -> bool:
    """Tell whether compiled code has to keep to the contract, by the operators that it calls."""
    return bool(UNCOMPILED) and frozenset(UNCOMPILED).issubset(uncomputed)


class Kind(Enum):
    """What is known of an operator."""

    MOVES = auto()
    ROUNDED = auto()
    CONTRACT = auto()
    UNKNOWN = auto()


@dataclass(repr=False)
class Outside(Result):
    """What a run called that is outside of the contract.

    Attributes:
        operators: the overload (``aten::grid_sampler_2d``) -> why, and how many calls.
    """

    operators: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    strict: bool = False

    def note(self, operator: str, why: str) -> None:
        """Take a call.

        Raises:
            OutsideContractError: outside calls are refused.
        """
        self.operators.setdefault(operator, why)
        self.calls[operator] = self.calls.get(operator, 0) + 1
        if self.strict:
            raise OutsideContractError(
                f"{operator} is outside of the contract of {LIBRARY}: {why}. Another machine may "
                "give other bits. Replace it by operators of docs/reproduce/contract.md, or leave "
                "out strict=True (--udf-strict) to have such operators listed instead."
            )

    def _shown(self) -> Shown:
        title = f"{len(self.operators)} operators are outside of the contract of {LIBRARY}"
        rows = [(name, f"{self.calls[name]:,}", why) for name, why in self.operators.items()]
        return Shown(title, ("operator", "calls", "why"), rows)

    def document(self) -> dict[str, Any]:
        """Return the operators with their calls as plain data."""
        return {n: {"calls": self.calls[n], "why": why} for n, why in self.operators.items()}

    def text(self) -> str:
        """Return a line for each operator; nothing if none is outside."""
        return "\n".join(
            f"{name}, {self.calls[name]} calls: {why}" for name, why in self.operators.items()
        )


class _Watching(threading.local):
    now: Outside | None = None


_watching: Final = _Watching()


def declined(*args: Any, **kwargs: Any) -> Any:
    """Call the stock kernel for what the contract does not have; errors are those of torch."""
    found = stock(*args, **kwargs)
    watch = _watching.now
    if watch is not None and any(t.numel() for t in _inexact(found)):
        watch.note(
            override_thread.frames[-1].override.spec.operator,
            "the contract has no order for these arguments, so the stock kernel computed it",
        )
    return found


@contextmanager
def within_contract(*, strict: bool = False) -> Iterator[Outside]:
    """List or refuse the operators of a block that are outside of the contract of ``repro``.

    >>> with patched("repro"), within_contract(strict=True):  # doctest: +SKIP
    ...     train()

    It follows this thread, and backward passes that it calls, operator by operator, which costs a
    call some ten microseconds.

    Args:
        strict: refuse the first such operator, instead of listing them. Its result is computed
            before that.

    Yields:
        what was outside; its ``operators`` fill while the block runs.

    Raises:
        OutsideContractError: with ``strict``, in the block, at the call.
    """
    found = Outside(strict=strict)
    before, _watching.now = _watching.now, found
    try:
        with watching(_judging(found)):
            yield found
    finally:
        _watching.now = before


def _judging(found: Outside) -> Call:
    """Return what judges each operator after its call."""

    def call(func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        why = reason(func, (args, kwargs), result)
        if why is not None:
            found.note(str(func.name()), why)
        return result

    return call


#: Of ROUNDED and TRIED, those whose 16-bit kernels depend on the number of threads: behind the last
#: whole vector of a thread they do not round alpha, or the root. The first three do so with alpha.
WITH_ALPHA: Final = frozenset({"add", "sub", "rsub"})
NOT_SIXTEEN: Final = frozenset({"rsqrt"})


@functools.cache
def _of_sixteen() -> frozenset[str]:
    """Return the library's operators that have a form in 16 bits, by the names of torch's."""
    found = find_library(LIBRARY).operators.values()
    return frozenset(
        udf.name.partition("::")[2].partition(".")[0].strip("_")
        for those in found
        for udf in those
        if "bfloat16" in udf.dtypes
    )


def _narrow_why(func: Any, given: Any) -> str | None:
    """Return why a call with numbers of 16 bits is outside of the contract, by its operator."""
    name = _name(func)
    operators, functions = _contract()
    if name in WITH_ALPHA and _alpha(func, given) != 1:
        return "in 16 bits torch rounds alpha in some places of a vector, and not in others"
    lacking = operators - functions - ROUNDED - _plain(TRIED) - _of_sixteen()
    if name in NOT_SIXTEEN or name in lacking:
        return "it has numbers of 16 bits, in which the contract does not have it"
    return None


@functools.cache
def _keys(overload: str) -> frozenset[str]:
    """Return the dispatch keys under which the library has an overload; none if it has it not."""
    found = find_library(LIBRARY).operators.values()
    return frozenset(
        key for those in found for udf in those if udf.name == overload for key in udf.dispatch_keys
    )


def _away_why(func: Any, devices: Any, floats: Any) -> str | None:
    """Return why a call elsewhere than on the CPU is outside, by its operator; or nothing."""
    if devices != {"cuda"}:
        return f"it ran on {min(devices)}, and the contract is about CPUs and NVIDIA's GPUs"
    name, operators = _name(func), _contract()[0]
    narrow = any(str(t.dtype).removeprefix("torch.") in _SIXTEEN for t in floats)
    if name in _plain(NOT_ON_GPUS) or (narrow and name in _plain(NOT_SIXTEEN_ON_GPUS)):
        return "torch's kernel for GPUs gives other bits than that for the CPU"
    keys = _keys(str(func.name()))
    if narrow and "::_foreach_" in func.name():
        return "it has lists of tensors of 16 bits on a GPU, where torch's kernels compute"
    if name in operators and keys and "CUDA" not in keys and name not in _ALIKE_ON_GPUS:
        return "the contract has it for the CPU alone"
    return None


def _alpha(func: Any, given: Any) -> Any:
    """Return the factor of a call, which is 1 where it names none."""
    args, kwargs = given
    names = [a.name for a in compat.overload_schema(func).arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}.get("alpha", 1)


@functools.cache
def _contract() -> tuple[frozenset[str], frozenset[str]]:
    """Return the operators and the functions of the library, by the names of torch's operators."""
    library = find_library(LIBRARY)
    operators = [n for n in library.names if n not in library.function_names]
    return (
        frozenset(n.partition("::")[2].partition(".")[0].strip("_") for n in operators),
        frozenset(library.function_names),
    )


def _inexact(values: Any) -> list[Any]:
    """Return the tensors in what an operator takes or gives whose numbers are rounded."""
    import torch

    found = [v for v in compat.pytree().tree_leaves(values) if isinstance(v, torch.Tensor)]
    return [t for t in found if t.is_floating_point() or t.is_complex()]


def _name(func: Any) -> str:
    """Return the name without namespace, overload, and what says that it writes or takes lists."""
    name = str(func.name()).partition("::")[2].partition(".")[0].strip("_")
    return name.removeprefix("foreach_")


def _plain(names: frozenset[str]) -> frozenset[str]:
    return frozenset(n.strip("_") for n in names)


@functools.cache
def _kind(func: Any) -> Kind:
    """Tell what an overload is, by its name alone."""
    name = _name(func)
    operators, functions = _contract()
    returned = [r.alias_info for r in compat.overload_schema(func).returns]
    view = bool(returned) and all(a is not None and not a.is_write for a in returned)
    if view or (name in _plain(MOVES) and "reduce" not in str(func.name())):
        return Kind.MOVES
    if name in ROUNDED:
        return Kind.ROUNDED
    if name in functions | _plain(TRIED | COMPOSED | WRITING):
        return Kind.CONTRACT
    if name in operators:
        # The kernel of an overload with out= is torch's unless the library names the overload.
        arguments = compat.overload_schema(func).arguments
        out = any(a.kwarg_only and a.alias_info and a.alias_info.is_write for a in arguments)
        if not out or func.name() in find_library(LIBRARY).names:
            return Kind.CONTRACT
    return Kind.UNKNOWN


def reason(func: Any, given: Any, result: Any) -> str | None:
    """Return why a call is outside of the contract; nothing for one that is inside.

    Args:
        func: the overload.
        given: its arguments, after the call.
        result: what it returned.
    """
    schema = compat.overload_schema(func)
    wrote = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    made = _inexact((given, result) if wrote else result)
    if not any(t.numel() for t in made):
        return None  # integers and truth values are exact
    kind = _kind(func)
    if kind is Kind.MOVES:
        return None
    if kind is Kind.UNKNOWN:
        return "the contract has no such operator, and no test holds torch's kernel to its bits"
    floats = [*_inexact(given), *made]
    devices = {t.device.type for t in floats} - {"cpu"}
    if devices and (why := _away_why(func, devices, floats)):
        return why
    dtypes = {str(t.dtype).removeprefix("torch.") for t in floats} - {"float32"}
    if dtypes & _SIXTEEN:
        if why := _narrow_why(func, given):
            return why
        dtypes -= _SIXTEEN
    if kind is Kind.ROUNDED:
        dtypes = {d for d in dtypes if d.startswith("complex")}
    return f"it has {min(dtypes)} numbers, and the contract is about float32" if dtypes else None
