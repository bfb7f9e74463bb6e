# SPDX-License-Identifier: Apache-2.0
"""Operators of docs/reproduce/contract.md in bfloat16 and half: float32 between two conversions.

What an operator takes is widened to float32, which is exact. It computes in float32, in the order
of the contract, and each result is rounded once, to nearest and to even. So a sum or a product
accumulates in float32, and nothing depends on the CPU's own instructions for 16 bits.

The factors of a product in bfloat16 stay what they are: it is an exact sum of integers
(docs/reproduce/contract_exact.md), whose result in float32 is rounded like others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from pytest_udftorch.swap.contract.kernels import above
from pytest_udftorch.swap.contract.outside import declined

NAMES: Final = ("torch.bfloat16", "torch.float16")

#: Functions that take parameters or masks of float32 beside an input in 16 bits.
_MIXED: Final = frozenset(
    {
        "attention", "attention_backward", "batch_norm", "batch_norm_alone", "batch_norm_backward",
        "batch_norm_in_evaluation",
        "group_norm", "group_norm_backward", "layer_norm", "layer_norm_backward",
        "weight_norm_backward",
    }
)  # fmt: skip

#: Functions that compute in float32 and write whatever they are given.
_WRITE_ANY: Final = frozenset(
    {"bernoulli_float_", "bernoulli_tensor_", "exponential_", "normal_", "uniform_"}
)

#: Gradients of what a GPU computes in float32 of half; their last argument is the dtype of these.
_OF_WIDENED: Final = frozenset({"log_softmax_backward", "softmax_backward"})

#: Factors of exact products and what is added to these, by their places; they stay in bfloat16.
_FACTORS: Final[Mapping[str, tuple[int, ...]]] = {
    "addmm": (0, 1, 2), "addmv": (0, 1, 2), "attention": (0, 1, 2),
    "attention_backward": (0, 1, 2, 3), "baddbmm": (0, 1, 2), "bmm": (0, 1), "dot": (0, 1),
    "mm": (0, 1), "mv": (0, 1),
}  # fmt: skip

#: Arguments of a function that it writes, by their places.
_WRITTEN: Final[Mapping[str, tuple[int, ...]]] = {
    "batch_norm": (3, 4), "index_add_": (0,), "index_put_": (0,), "pow_scalar_": (0,),
    "scatter_add_": (0,),
}  # fmt: skip

#: Keyword under which a function is given its result.
_OUT: Final = {"smooth_l1_loss_backward_": "grad_input", "sqrt": "out"}


def held(number: float, dtype: Any) -> float:
    """Return a number as a dtype of 16 bits holds it; other dtypes leave it as it is."""
    import torch

    return float(torch.tensor(number, dtype=dtype)) if str(dtype) in NAMES else number


def _parameters(of: tuple[Any, ...], narrow: Any) -> Any:
    """Return the dtype of statistics beside parameters: float32 if one of them is."""
    import torch

    wide = any(v is not None and v.dtype is torch.float32 for v in of)
    return torch.float32 if wide else narrow


def _like(tensor: Any, otherwise: Any) -> Any:
    return otherwise if tensor is None else tensor.dtype


def _dtypes(name: str, args: tuple[Any, ...], narrow: Any) -> tuple[Any, ...]:
    """Return the dtypes of the results, which are stock's; empty where all are ``narrow``."""
    import torch

    match name:
        case "attention" | "weight_norm":
            return narrow, torch.float32
        case "layer_norm":
            return narrow, *(_parameters(args[2:4], narrow),) * 2
        case "group_norm" | "batch_norm_alone":
            return narrow, *(_parameters(args[1:3], narrow),) * 2
        case "batch_norm" | "batch_norm_in_evaluation":
            return narrow, *(_parameters(args[1:5], narrow),) * 2
        case "layer_norm_backward":
            return narrow, *(_like(args[5], narrow),) * 2
        case "group_norm_backward":
            return narrow, *(_like(args[4], narrow),) * 2
        case "batch_norm_backward":
            return narrow, *(_like(args[2], _parameters(args[3:7], narrow)),) * 2
    return ()


def _widened(value: Any, narrow: Any) -> Any:
    if getattr(value, "dtype", None) is narrow:
        return value.float()
    return value


def _rounded(found: Any, dtypes: tuple[Any, ...], narrow: Any) -> Any:
    if isinstance(found, tuple):
        wanted = dtypes or (narrow,) * len(found)
        return tuple(_rounded(f, (), d) for f, d in zip(found, wanted, strict=True))
    # Truth values, numbers of rows and results that are asked for in another dtype stay.
    return found.to(narrow) if str(getattr(found, "dtype", "")) == "torch.float32" else found


def sixteen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of the contract for float32 its form in 16 bits.

    Args:
        function: a function of an operator; its tensors in float32 go to it unchanged.

    Returns:
        the function, which takes bfloat16 and half too. Calls that mix dtypes in a way that the
        operator does not know go to the stock kernel.
    """
    import torch

    name, narrow = function.__name__, (torch.bfloat16, torch.float16)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        for v in (*args, *kwargs.values()):
            if getattr(v, "dtype", None) in narrow:
                break
        else:
            found = function(*args, **kwargs)
            return found.to(args[3]) if name in _OF_WIDENED else found
        dtypes = {
            v.dtype
            for v in (*args, *kwargs.values())
            if hasattr(v, "dtype") and v.dtype.is_floating_point
        }
        narrowed = [d for d in dtypes if str(d) in NAMES]
        if name in _WRITE_ANY:
            return function(*args, **kwargs)
        asked = kwargs.get("dtype") or narrowed[0]
        mixed = len(dtypes) > 1 and name not in _MIXED
        if len(narrowed) > 1 or mixed or str(asked) not in (str(narrowed[0]), "torch.float32"):
            return declined(*args, **kwargs)
        return _between(function, args, kwargs, narrowed[0])

    run.__dict__["above"] = above
    return run


def widened(name: str) -> Callable[..., Any]:
    """Return the form in 16 bits of an operator whose kernels for these round elsewhere.

    Args:
        name: ATen's, with the overload behind a dot if it has one.

    Returns:
        a function that calls the operator in float32 and rounds its result once.
    """
    import torch

    operator: Any = functools.reduce(getattr, name.split("."), torch.ops.aten)

    def run(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    run.__name__ = name.partition(".")[0]
    return sixteen(run)


#: Norms whose statistics torch keeps in float32 on GPUs. They are rounded as those on CPUs are.
_WIDE_STATISTICS: Final = frozenset({"batch_norm", "batch_norm_alone", "batch_norm_in_evaluation"})


def _between(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], narrow: Any
) -> Any:
    """Call a function of float32 on widened tensors; round what it returns and what it writes."""
    import torch

    name = function.__name__
    factors = _FACTORS.get(name, ()) if narrow is torch.bfloat16 else ()
    if not all(args[at].dtype is narrow for at in factors):
        factors = ()
    wide = [a if at in factors else _widened(a, narrow) for at, a in enumerate(args)]
    named = {key: _widened(a, narrow) for key, a in kwargs.items()}
    asked = named.pop("dtype", None)
    if asked is torch.float32 or "dtype" in kwargs:
        named["dtype"] = None if asked is narrow else asked
    try:
        found = function(*wide, **named)
    except (IndexError, RuntimeError):
        return declined(*args, **kwargs)  # which has the words for these dtypes
    if (out := _OUT.get(name)) is not None:
        written = kwargs[out]
        if written is not named[out]:
            written.resize_(found.shape).copy_(found)
        return written
    for at in _WRITTEN.get(name, ()):
        if args[at] is not wide[at]:
            args[at].copy_(wide[at])
    if name in _WRITTEN and name != "batch_norm":
        return args[0]
    # On a GPU a softmax of half can be asked for in float32.
    as_wide = asked is torch.float32 or (name in ("softmax", "log_softmax") and args[2])
    if as_wide:
        return found
    rounded = _rounded(found, _dtypes(name, args, narrow), narrow)
    if name in _WIDE_STATISTICS and args[0].is_cuda:
        y, *statistics = rounded
        return y, *(s.float() for s in statistics)
    return rounded
