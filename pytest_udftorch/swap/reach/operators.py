# SPDX-License-Identifier: Apache-2.0
"""The operators of the reach table.

All tensors lie on the CPU. Importing this module imports torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_udftorch.swap.library.symbols import FUNCTIONS, golden_points
from pytest_udftorch.swap.reach.catalogue import BACKWARD, SHAPES, Dim, Operator

# Layouts, domains and dtypes of several operators.
_PLAIN: Final = tuple(name for name in SHAPES if name not in ("out=", "in place"))
_FIXED: Final = tuple(name for name in SHAPES if name != "out=")
_SHORT: Final = ("contiguous", "strided")
_ONE: Final = ("contiguous",)
_UNIT: Final = (0.1, 0.9)
_NEGATIVE: Final = (-4.0, -0.1)
_BELOW_0: Final = (-3.0, -0.1)
_ABOVE_0: Final = (0.2, 3.0)
_WIDE: Final = (-3.0, 3.0)
_REAL: Final = ("float32", "float64")
_MISH: Final = "exp log1p tanh"
_DIMS: Final[tuple[Dim, ...]] = ("last", "middle", "first")

# Narrower than the session's canaries: float16 must not overflow.
_DOMAINS = {"exp": (-5.0, 5.0), "exp2": (-5.0, 5.0), "expm1": (-5.0, 5.0)}


def _elementary() -> list[Operator]:
    """Return one operator for each function that a session can swap."""
    found = []
    for function in FUNCTIONS.values():
        plain = getattr(torch, function.name)
        second = function.arity == 2

        def call(x: Any, plain: Any = plain, second: bool = second) -> Any:
            return plain(x, x) if second else plain(x)

        def out(x: Any, buffer: Any, plain: Any = plain, second: bool = second) -> Any:
            return plain(x, x, out=buffer) if second else plain(x, out=buffer)

        def inplace(x: Any, name: str = f"{function.name}_", second: bool = second) -> Any:
            method = getattr(x, name)
            return method(x.clone()) if second else method()

        low, high = _DOMAINS.get(function.name, function.domain)
        found.append(
            Operator(
                f"torch.{function.name}",
                call,
                function.name,
                " ".join(function.derivative),
                (max(low, -8.0), min(high, 8.0)),
                inplace=inplace,
                out=out,
            )
        )
    return found


def _without_onednn(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(x: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # flags() warns about Intel GPUs
            with torch.backends.mkldnn.flags(enabled=False):
                return call(x)

    return wrapped


def _targets(x: Any, dim: int) -> Any:
    return torch.zeros([n for i, n in enumerate(x.shape) if i != dim], dtype=torch.long)


def _attention(scores: Any, backend: SDPBackend) -> Any:
    """Return attention by scores of shape (heads, keys), as (heads, queries * size)."""
    heads, keys = scores.shape
    size, queries = 8, 4
    unit = torch.zeros(size, dtype=scores.dtype)
    unit[0] = 1.0
    key = scores[None, ..., None] * unit
    query = unit.expand(1, heads, queries, size).contiguous()
    value = torch.tensor(golden_points(heads * keys * size, 0.5, 1.5), dtype=scores.dtype)
    with sdpa_kernel(backend):
        found = F.scaled_dot_product_attention(
            query, key, value.reshape(1, heads, keys, size), scale=1.0
        )
    return found.reshape(heads, queries * size)


def _recurrent(kind: str, x: Any) -> Any:
    # Each element is a batch item of its own; the weights are constants.
    module = getattr(torch.nn, kind)(1, 1, dtype=x.dtype)
    for weight in module.parameters():
        torch.nn.init.constant_(weight, 0.5)
    return module(x[:, None] if kind.endswith("Cell") else x[None, :, None])


_SIGMOID: Final = Operator(
    "torch.sigmoid",
    torch.sigmoid,
    "exp",
    "",
    inplace=torch.sigmoid_,
    out=lambda x, buffer: torch.sigmoid(x, out=buffer),
)

_IN_PLACE: Final = tuple(
    Operator(name, call, needs, needs_backward, domain, layouts=_FIXED, inplace=inplace)
    for name, call, inplace, needs, needs_backward, domain in (
        # Below 0 the derivative grows with sigmoid, so a changed sigmoid always changes it.
        ("F.silu", F.silu, partial(F.silu, inplace=True), "exp", "exp", (-1.0, -0.1)),
        ("F.elu", F.elu, F.elu_, "expm1", "exp|expm1", _NEGATIVE),
        ("F.selu", F.selu, F.selu_, "expm1", "exp|expm1", _NEGATIVE),
        ("F.celu", F.celu, F.celu_, "expm1", "exp|expm1", _NEGATIVE),
        ("F.mish", F.mish, partial(F.mish, inplace=True), _MISH, _MISH, _BELOW_0),
    )
)

_OTHERS: Final = tuple(
    Operator(name, call, needs, needs_backward, domain, layouts=_PLAIN)
    for name, call, needs, needs_backward, domain in (
        ("F.softplus", F.softplus, "exp log1p", "exp", _WIDE),
        ("F.logsigmoid", F.logsigmoid, "exp log1p|log", "", _WIDE),
        ("F.gelu", F.gelu, "erf", "erf exp", _BELOW_0),
        ("F.gelu(tanh)", partial(F.gelu, approximate="tanh"), "tanh", "tanh", _BELOW_0),
        ("F.glu", lambda x: F.glu(torch.stack((x, x)), 0), "exp", "exp", (-1.0, -0.1)),
        ("torch.logit", torch.logit, "log", "", _UNIT),
        ("torch.sinc", torch.sinc, "sin", "sin cos", (0.1, 3.0)),
        ("torch.special.entr", torch.special.entr, "log", "log", _UNIT),
        ("torch.xlogy", lambda x: torch.xlogy(x, x), "log", "log", _ABOVE_0),
        (
            "torch.special.xlog1py",
            lambda x: torch.special.xlog1py(x, x),
            "log1p",
            "log1p",
            _ABOVE_0,
        ),
        ("torch.logaddexp", lambda x: torch.logaddexp(x, 0.5 * x), "exp log1p", "exp", _WIDE),
        ("torch.pow(x, 2.5)", lambda x: x**2.5, "pow", "pow", _ABOVE_0),
        ("torch.pow(2.5, x)", lambda x: 2.5**x, "pow", "log", _WIDE),
        ("torch.pow(x, 3)", lambda x: x**3, "", "", _WIDE),
        ("torch.rsqrt", torch.rsqrt, "", "", _ABOVE_0),
    )
)

_WITHOUT_ONEDNN: Final = Operator(
    "F.gelu, oneDNN off", _without_onednn(F.gelu), "erf", None, _BELOW_0, layouts=_ONE
)


def _cross_entropy(x: Any, dim: int) -> Any:
    return F.cross_entropy(x.movedim(dim, 1), _targets(x, dim), reduction="none")


def _over(dims: tuple[Dim, ...], *rows: tuple[Any, ...]) -> list[Operator]:
    """Return operators that mix the elements of a row, for each dimension."""
    return [
        Operator(f"{name}({dim})", call, needs, needs_backward, dim=dim, layouts=layouts)
        for dim in dims
        for name, call, needs, needs_backward, layouts in rows
    ]


_ROWS: Final = (
    *_over(
        _DIMS,
        ("F.softmax", F.softmax, "exp", "", (*BACKWARD, "empty")),
        ("F.log_softmax", F.log_softmax, "exp log", "exp", (*BACKWARD, "empty")),
        ("torch.logsumexp", torch.logsumexp, "exp log", "exp", BACKWARD),
    ),
    *_over(_DIMS[:2], ("F.cross_entropy", _cross_entropy, "exp log", "exp", BACKWARD)),
    *_over(_DIMS[:1], ("torch.logcumsumexp", torch.logcumsumexp, "exp log1p", None, _SHORT)),
)

_ATTENTION: Final = tuple(
    Operator(
        f"F.scaled_dot_product_attention({name})",
        lambda x, dim, backend=backend: _attention(x, backend),
        "exp",
        needs_backward,
        dim="last",
        layouts=_ONE,
    )
    for name, backend, needs_backward in (
        ("flash", SDPBackend.FLASH_ATTENTION, "exp"),
        ("math", SDPBackend.MATH, ""),
    )
)

_LOSSES: Final = tuple(
    Operator(
        f"F.{loss.__name__}",
        lambda x, loss=loss: loss(x, torch.full_like(x, 0.25), reduction="none"),
        needs,
        needs_backward,
        domain,
        layouts=_SHORT,
    )
    for loss, needs, needs_backward, domain in (
        (F.binary_cross_entropy, "log log|log1p", "", _UNIT),
        (F.binary_cross_entropy_with_logits, "exp log1p|log", "exp", _WIDE),
        (F.kl_div, "log", "", _WIDE),
        (F.poisson_nll_loss, "exp", "", _WIDE),
    )
)

_RECURRENT: Final = (
    Operator("nn.LSTMCell", lambda x: _recurrent("LSTMCell", x)[0], "exp tanh", layouts=_SHORT),
    Operator("nn.GRUCell", lambda x: _recurrent("GRUCell", x), "exp tanh", layouts=_SHORT),
    Operator("nn.LSTM", lambda x: _recurrent("LSTM", x)[0], "exp tanh", "", layouts=_SHORT),
    Operator("nn.GRU", lambda x: _recurrent("GRU", x)[0], "exp tanh", "", layouts=_SHORT),
)

_SPECIAL: Final = (
    Operator("torch.erfinv", torch.erfinv, "log|log1p", "exp", (-0.48, -0.2), layouts=_SHORT),
    Operator("torch.special.ndtr", torch.special.ndtr, "erf|erfc", "exp", layouts=_SHORT),
    Operator("torch.special.i0", torch.special.i0, "exp", None, layouts=_SHORT),
    Operator("torch.special.i0e", torch.special.i0e, "", None, layouts=_SHORT),
    Operator("torch.lgamma", torch.lgamma, "log", None, (10.0, 20.0), layouts=_SHORT),
    Operator("torch.digamma", torch.digamma, "log", None, (11.0, 20.0), layouts=_SHORT),
)

_COMPLEX: Final = tuple(
    Operator(name, call, needs, None, domain, layouts=_ONE, dtypes=_REAL)
    for name, call, needs, domain in (
        (
            "torch.complex(x, x).exp()",
            lambda x: torch.view_as_real(torch.complex(x, 0.5 * x).exp()),
            "exp sin cos",
            (0.2, 1.2),
        ),
        (
            "torch.complex(x, x).log()",
            lambda x: torch.view_as_real(torch.complex(x, 0.5 * x).log()),
            "log atan2",
            (1.5, 3.0),
        ),
        ("torch.complex(x, x).abs()", lambda x: torch.complex(x, 0.5 * x).abs(), "hypot", _ABOVE_0),
        (
            "torch.complex(x, x).angle()",
            lambda x: torch.complex(x, 0.5 * x).angle(),
            "atan2",
            _ABOVE_0,
        ),
        ("torch.polar", lambda x: torch.view_as_real(torch.polar(x, x)), "sin cos", (0.2, 1.2)),
    )
)

_RANDOM: Final = tuple(
    Operator(
        f"Tensor.{name}",
        lambda x, name=name: getattr(torch.empty_like(x), name)(),
        needs,
        None,
        layouts=("contiguous", "0-dim"),
        random=True,
    )
    for name, needs in (("normal_", "log|log1p cos sin"), ("exponential_", "log|log1p"))
)

#: Every operator of the reach table.
OPERATORS: Final = (
    *_elementary(),
    _SIGMOID,
    *_IN_PLACE,
    *_OTHERS,
    _WITHOUT_ONEDNN,
    *_ROWS,
    *_ATTENTION,
    *_LOSSES,
    *_RECURRENT,
    *_SPECIAL,
    *_COMPLEX,
    *_RANDOM,
)
