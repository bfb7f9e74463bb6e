"""The operators and memory layouts that the reach table looks at.

An operator says which elementary functions its definition needs; the reach table then
finds out by swapping whether libtorch evaluates them through symbols. All tensors live on
the CPU. torch is imported when :func:`operators` is called.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pytest_udftorch.library.symbols import FUNCTIONS

Dim = Literal["last", "middle", "first"]

TENSOR_DTYPES: Final = ("float32", "float64", "bfloat16", "float16")

#: Layouts an operator without ``dim`` is run with; those of ``BACKWARD`` also backward.
#: 67 elements are four 16-lane blocks and an odd tail.
SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "contiguous": (67,),
    "strided": (67,),
    "sliced": (7, 37),
    "transposed": (7, 37),
    "channels_last": (2, 5, 3, 7),
    "out=": (67,),
    "in place": (67,),
    "0-dim": (),
    "empty": (0,),
}
BACKWARD: Final = ("contiguous", "strided", "sliced", "transposed", "channels_last")

#: Shapes of the operators that mix a row, by the dimension they mix; the inner 37 elements
#: of the last two are two 16-lane blocks and an odd tail.
_ROWS: Final[dict[Dim, tuple[int, ...]]] = {
    "last": (3, 67),
    "middle": (2, 7, 37),
    "first": (7, 37),
}


@dataclass(frozen=True)
class Operator:
    """One operator of torch.

    Attributes:
        name: as it is shown.
        call: tensor (and, for an operator with ``dim``, the dimension's index) -> tensor.
        needs: elementary functions of its definition: ``"exp log1p|log"`` needs exp, and
            one of log1p and log. Empty if the operator needs none.
        needs_backward: the same for the derivative; None if there is none to run.
        domain: interval the inputs are drawn from, within which every element of the
            result depends on each function needed.
        dim: which dimension it mixes, or None for an operator that works element by
            element.
        inplace: its in-place form, or None.
        out: its ``out=`` form, called with the buffer second, or None.
        layouts: names of ``SHAPES`` it is run with.
        dtypes: those it is run with.
        random: it draws from torch's generator, which is seeded before each run.

    Where a function is needed on one side of a branch only (elu), the domain lies there.
    """

    name: str
    call: Callable[..., Any]
    needs: str
    needs_backward: str | None = None
    domain: tuple[float, float] = (-3.0, 3.0)
    dim: Dim | None = None
    inplace: Callable[..., Any] | None = None
    out: Callable[..., Any] | None = None
    layouts: tuple[str, ...] = tuple(SHAPES)
    dtypes: tuple[str, ...] = TENSOR_DTYPES
    random: bool = False

    def shape(self, layout: str) -> tuple[int, ...]:
        """Return the shape of the input in ``layout``."""
        if self.dim is None or layout == "channels_last":
            return SHAPES[layout]
        return (0, 4, 6) if layout == "empty" else _ROWS[self.dim]

    def dim_index(self, layout: str) -> int:
        """Return the index of the mixed dimension in ``layout``."""
        if self.dim is None:
            raise ValueError(f"{self.name} mixes no dimension")
        rank = len(self.shape(layout))
        return {"last": rank - 1, "middle": 1, "first": 0}[self.dim]


def groups(needs: str) -> tuple[frozenset[str], ...]:
    """Split ``"exp log1p|log"`` into its groups of alternatives."""
    return tuple(frozenset(word.split("|")) for word in needs.split())


def place(values: Any, layout: str) -> Any:
    """Return a tensor with the values of the contiguous tensor ``values`` in ``layout``."""
    import torch

    if layout == "strided":
        storage = torch.zeros(*values.shape[:-1], 2 * values.shape[-1], dtype=values.dtype)
        return storage[..., ::2].copy_(values)
    if layout == "sliced":
        width = values.shape[-1]
        storage = torch.zeros(*values.shape[:-1], width + 8, dtype=values.dtype)
        return storage[..., 3 : 3 + width].copy_(values)
    if layout == "transposed":
        order = list(reversed(range(values.dim())))
        return values.permute(order).contiguous().permute(order)
    if layout == "channels_last":
        return values.contiguous(memory_format=torch.channels_last)
    return values.clone()


def spread(count: int, low: float, high: float) -> list[float]:
    """Return ``count`` distinct values between ``low`` and ``high``, in no order."""
    # Multiples of the golden ratio, as in the session's canary: even, and no random state.
    return [low + (high - low) * ((i * 0.6180339887498949) % 1.0) for i in range(1, count + 1)]


# What torch.<name>'s derivative needs (tools/autograd/derivatives.yaml); the others need
# none, because they reuse the result or are algebraic.
_DERIVATIVES = {
    "exp": "",
    "exp2": "",
    "expm1": "",
    "log": "",
    "log2": "",
    "log10": "",
    "log1p": "",
    "sin": "cos",
    "cos": "sin",
    "tan": "",
    "sinh": "cosh",
    "cosh": "sinh",
    "tanh": "",
    "asin": "",
    "acos": "",
    "atan": "",
    "asinh": "",
    "acosh": "",
    "atanh": "",
    "erf": "exp",
    "erfc": "exp",
    "pow": "pow log",
    "atan2": "",
    "hypot": "",
}

# Narrower than the session's canaries: float16 must not overflow.
_DOMAINS = {"exp": (-5.0, 5.0), "exp2": (-5.0, 5.0), "expm1": (-5.0, 5.0)}


def _elementary() -> list[Operator]:
    """Return one operator for each function that a session can swap."""
    import torch

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
                _DERIVATIVES[function.name],
                (max(low, -8.0), min(high, 8.0)),
                inplace=inplace,
                out=out,
            )
        )
    return found


def _without_onednn(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(x: Any) -> Any:
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # flags() speaks about Intel GPUs
            with torch.backends.mkldnn.flags(enabled=False):
                return call(x)

    return wrapped


def _activations() -> list[Operator]:
    import torch
    import torch.nn.functional as F

    plain = tuple(name for name in SHAPES if name not in ("out=", "in place"))
    fixed = tuple(name for name in SHAPES if name != "out=")
    unit, negative = (0.1, 0.9), (-4.0, -0.1)
    return [
        Operator(
            "torch.sigmoid",
            torch.sigmoid,
            "exp",
            "",
            inplace=torch.sigmoid_,
            out=lambda x, buffer: torch.sigmoid(x, out=buffer),
        ),
        # On this side of 0 the derivative grows with sigmoid, so a probe cannot meet it again.
        Operator(
            "F.silu",
            F.silu,
            "exp",
            "exp",
            (-1.0, -0.1),
            layouts=fixed,
            inplace=lambda x: F.silu(x, inplace=True),
        ),
        Operator("F.elu", F.elu, "expm1", "exp|expm1", negative, layouts=fixed, inplace=F.elu_),
        Operator("F.selu", F.selu, "expm1", "exp|expm1", negative, layouts=fixed, inplace=F.selu_),
        Operator("F.celu", F.celu, "expm1", "exp|expm1", negative, layouts=fixed, inplace=F.celu_),
        Operator("F.softplus", F.softplus, "exp log1p", "exp", layouts=plain),
        Operator(
            "F.mish",
            F.mish,
            "exp log1p tanh",
            "exp log1p tanh",
            (-3.0, -0.1),
            layouts=fixed,
            inplace=lambda x: F.mish(x, inplace=True),
        ),
        Operator("F.logsigmoid", F.logsigmoid, "exp log1p|log", "", layouts=plain),
        Operator("F.gelu", F.gelu, "erf", "erf exp", (-3.0, -0.1), layouts=plain),
        Operator(
            "F.gelu, oneDNN off",
            _without_onednn(F.gelu),
            "erf",
            None,
            (-3.0, -0.1),
            layouts=("contiguous",),
        ),
        Operator(
            "F.gelu(tanh)",
            lambda x: F.gelu(x, approximate="tanh"),
            "tanh",
            "tanh",
            (-3.0, -0.1),
            layouts=plain,
        ),
        Operator(
            "F.glu",
            lambda x: F.glu(torch.stack((x, x)), 0),
            "exp",
            "exp",
            (-1.0, -0.1),
            layouts=plain,
        ),
        Operator("torch.logit", torch.logit, "log", "", unit, layouts=plain),
        Operator("torch.sinc", torch.sinc, "sin", "sin cos", (0.1, 3.0), layouts=plain),
        Operator("torch.special.entr", torch.special.entr, "log", "log", unit, layouts=plain),
        Operator(
            "torch.xlogy", lambda x: torch.xlogy(x, x), "log", "log", (0.2, 3.0), layouts=plain
        ),
        Operator(
            "torch.special.xlog1py",
            lambda x: torch.special.xlog1py(x, x),
            "log1p",
            "log1p",
            (0.2, 3.0),
            layouts=plain,
        ),
        Operator(
            "torch.logaddexp",
            lambda x: torch.logaddexp(x, 0.5 * x),
            "exp log1p",
            "exp",
            layouts=plain,
        ),
        Operator("torch.pow(x, 2.5)", lambda x: x**2.5, "pow", "pow", (0.2, 3.0), layouts=plain),
        Operator("torch.pow(2.5, x)", lambda x: 2.5**x, "pow", "log", layouts=plain),
        Operator("torch.pow(x, 3)", lambda x: x**3, "", "", layouts=plain),
        Operator("torch.rsqrt", torch.rsqrt, "", "", (0.2, 3.0), layouts=plain),
    ]


def _rows() -> list[Operator]:
    """Return the operators that mix the elements of a row."""
    import torch
    import torch.nn.functional as F

    layouts = ("contiguous", "strided", "sliced", "transposed", "channels_last")
    dims: tuple[Dim, ...] = ("last", "middle", "first")
    found = []
    for dim in dims:
        found += [
            Operator(
                f"F.softmax({dim})",
                lambda x, d: F.softmax(x, d),
                "exp",
                "",
                dim=dim,
                layouts=(*layouts, "empty"),
            ),
            Operator(
                f"F.log_softmax({dim})",
                lambda x, d: F.log_softmax(x, d),
                "exp log",
                "exp",
                dim=dim,
                layouts=(*layouts, "empty"),
            ),
            Operator(
                f"torch.logsumexp({dim})",
                lambda x, d: torch.logsumexp(x, d),
                "exp log",
                "exp",
                dim=dim,
                layouts=layouts,
            ),
        ]
    for dim in dims[:2]:
        found.append(
            Operator(
                f"F.cross_entropy({dim})",
                lambda x, d: F.cross_entropy(x.movedim(d, 1), _targets(x, d), reduction="none"),
                "exp log",
                "exp",
                dim=dim,
                layouts=layouts,
            )
        )
    found.append(
        Operator(
            "torch.logcumsumexp(last)",
            lambda x, d: torch.logcumsumexp(x, d),
            "exp log1p",
            dim="last",
            layouts=("contiguous", "strided"),
        )
    )
    for name, backend in (("flash", "FLASH_ATTENTION"), ("math", "MATH")):
        found.append(
            Operator(
                f"F.scaled_dot_product_attention({name})",
                lambda x, d, backend=backend: _attention(x, backend),
                "exp",
                {"flash": "exp", "math": ""}[name],
                dim="last",
                layouts=("contiguous",),
            )
        )
    return found


def _targets(x: Any, dim: int) -> Any:
    import torch

    return torch.zeros([n for i, n in enumerate(x.shape) if i != dim], dtype=torch.long)


def _attention(scores: Any, backend: str) -> Any:
    """Attend with the given scores, of shape (heads, keys): returns (heads, queries * size)."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads, keys = scores.shape
    size, queries = 8, 4
    unit = torch.zeros(size, dtype=scores.dtype)
    unit[0] = 1.0
    key = scores[None, ..., None] * unit
    query = unit.expand(1, heads, queries, size).contiguous()
    value = torch.tensor(spread(heads * keys * size, 0.5, 1.5), dtype=scores.dtype)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        found = torch.nn.functional.scaled_dot_product_attention(
            query, key, value.reshape(1, heads, keys, size), scale=1.0
        )
    return found.reshape(heads, queries * size)


def _losses_and_others() -> list[Operator]:
    import torch
    import torch.nn.functional as F

    lay = ("contiguous", "strided")
    unit = (0.1, 0.9)
    real = ("float32", "float64")

    def half(x: Any) -> Any:
        return torch.full_like(x, 0.25)

    def recurrent(kind: str, x: Any) -> Any:
        # Each element is a batch item of its own; the weights are constants.
        module = getattr(torch.nn, kind)(1, 1, dtype=x.dtype)
        for weight in module.parameters():
            torch.nn.init.constant_(weight, 0.5)
        return module(x[:, None] if kind.endswith("Cell") else x[None, :, None])

    return [
        Operator(
            "F.binary_cross_entropy",
            lambda x: F.binary_cross_entropy(x, half(x), reduction="none"),
            "log log|log1p",
            "",
            unit,
            layouts=lay,
        ),
        Operator(
            "F.binary_cross_entropy_with_logits",
            lambda x: F.binary_cross_entropy_with_logits(x, half(x), reduction="none"),
            "exp log1p|log",
            "exp",
            layouts=lay,
        ),
        Operator(
            "F.kl_div",
            lambda x: F.kl_div(x, half(x), reduction="none"),
            "log",
            "",
            layouts=lay,
        ),
        Operator(
            "F.poisson_nll_loss",
            lambda x: F.poisson_nll_loss(x, half(x), reduction="none"),
            "exp",
            "",
            layouts=lay,
        ),
        Operator("nn.LSTMCell", lambda x: recurrent("LSTMCell", x)[0], "exp tanh", layouts=lay),
        Operator("nn.GRUCell", lambda x: recurrent("GRUCell", x), "exp tanh", layouts=lay),
        Operator("nn.LSTM", lambda x: recurrent("LSTM", x)[0], "exp tanh", "", layouts=lay),
        Operator("nn.GRU", lambda x: recurrent("GRU", x)[0], "exp tanh", "", layouts=lay),
        Operator("torch.erfinv", torch.erfinv, "log", "exp", (-0.99, -0.75), layouts=lay),
        Operator("torch.special.ndtr", torch.special.ndtr, "erf|erfc", "exp", layouts=lay),
        Operator("torch.special.i0", torch.special.i0, "exp", None, layouts=lay),
        Operator("torch.special.i0e", torch.special.i0e, "", None, layouts=lay),
        Operator("torch.lgamma", torch.lgamma, "log", None, (10.0, 20.0), layouts=lay),
        Operator("torch.digamma", torch.digamma, "log", None, (11.0, 20.0), layouts=lay),
        Operator(
            "torch.complex(x, x).exp()",
            lambda x: torch.view_as_real(torch.exp(torch.complex(x, 0.5 * x))),
            "exp sin cos",
            None,
            (0.2, 1.2),
            layouts=("contiguous",),
            dtypes=real,
        ),
        Operator(
            "torch.complex(x, x).log()",
            lambda x: torch.view_as_real(torch.log(torch.complex(x, 0.5 * x))),
            "log atan2",
            None,
            (1.5, 3.0),
            layouts=("contiguous",),
            dtypes=real,
        ),
        Operator(
            "torch.complex(x, x).abs()",
            lambda x: torch.complex(x, 0.5 * x).abs(),
            "hypot",
            None,
            (0.2, 3.0),
            layouts=("contiguous",),
            dtypes=real,
        ),
        Operator(
            "torch.complex(x, x).angle()",
            lambda x: torch.complex(x, 0.5 * x).angle(),
            "atan2",
            None,
            (0.2, 3.0),
            layouts=("contiguous",),
            dtypes=real,
        ),
        Operator(
            "torch.polar",
            lambda x: torch.view_as_real(torch.polar(x, x)),
            "sin cos",
            None,
            (0.2, 1.2),
            layouts=("contiguous",),
            dtypes=real,
        ),
        Operator(
            "Tensor.normal_",
            lambda x: torch.empty_like(x).normal_(),
            "log|log1p cos sin",
            None,
            layouts=("contiguous", "0-dim"),
            random=True,
        ),
        Operator(
            "Tensor.exponential_",
            lambda x: torch.empty_like(x).exponential_(),
            "log|log1p",
            None,
            layouts=("contiguous", "0-dim"),
            random=True,
        ),
    ]


def operators() -> list[Operator]:
    """Return every operator of the reach table."""
    return [*_elementary(), *_activations(), *_rows(), *_losses_and_others()]
