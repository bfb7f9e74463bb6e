# SPDX-License-Identifier: Apache-2.0
"""Which transcendental functions the definition of an operator evaluates, and how often.

torch itself defines most operators by simpler ones: its table of decompositions, which export and
torch.compile use. :func:`evaluations` follows them down to operators that are functions (exp) or
algebraic (add), on tensors without data, and counts. Rows name the operators without a
decomposition. Nothing here looks at what sessions override.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import watching
from pytest_udftorch.base.tensor_contents import is_plain, kind, sizes
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.operators.decompositions import DEFINITIONS
from pytest_udftorch.swap.operators.overload import is_view, name_of
from pytest_udftorch.swap.operators.row import Row
from pytest_udftorch.swap.operators.rows import find
from pytest_udftorch.swap.operators.scalars import MULTIPLIED_OUT

#: Functions that an implementation may use for each other, as log and log1p.
FAMILIES: Final[tuple[tuple[str, ...], ...]] = tuple(
    sorted(
        (
            tuple(f.name for f in FUNCTIONS.values() if (f.family or f.name) == name)
            for name in FUNCTIONS
            if not FUNCTIONS[name].family
        ),
        key=lambda family: len(family) == 1,
    )
)

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
        if not (isinstance(by, numbers) and float(by) in MULTIPLIED_OUT)
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


def _chosen(weights: Any, count: int, replacement: bool = False, **_: Any) -> Counts:
    """Return what ``multinomial`` evaluates: exponential variates, where it draws once or keeps."""
    return Counts(log=weights.numel()) if not replacement or count == 1 else Counts()


#: What a row names to count the functions of a call.
_COUNTED: Final[Mapping[str, Callable[..., Counts]]] = {
    "scores": _scores,
    "scores_and_sums": _scores_and_sums,
    "recurrent": _recurrent,
    "recurrent_backward": _recurrent_backward,
    "alignments": _alignments,
    "alignments_backward": _alignments_backward,
    "distances": _distances,
    "drawn": _drawn,
    "polygamma": _polygamma,
    "log_ndtr": _log_ndtr,
    "norms": _norms,
    "powers": _powers,
    "encoder_layer": _encoder_layer,
    "self_attention": _self_attention,
    "chosen": _chosen,
}


def mixes(operator: Any) -> bool:
    """Tell whether the elements of an operator's result are sums over others."""
    row = find(name_of(operator))
    return row is not None and row.mixes


def signature(operator: Any, values: Any) -> tuple[Any, ...]:
    """Return what calls with the same number of evaluations have in common."""
    import torch

    leaves, structure = compat.pytree().tree_flatten(values)

    def shown(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        what = kind(value)
        return sizes(value), () if what else value.stride(), str(value.dtype), what

    return (str(operator.name()), str(structure), tuple(map(shown, leaves)))


def is_algebraic(operator: Any) -> bool:
    """Tell whether an operator is known to evaluate no function.

    It moves, compares, selects, adds, multiplies, divides, takes roots, or draws uniform numbers.
    """
    row = find(name_of(operator))
    return row is not None and not row.functions and not row.undefined


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
        row = find(name)
        if row is not None and (row.leaf or row.name == "pow"):
            result = func(*args, **kwargs)
            self._leaf(row, args, result)
            return result
        if row is not None and row.counted:
            self.counts += _COUNTED[row.counted](*args, **kwargs)
            return func(*args, **kwargs)
        if is_algebraic(func) or is_view(func):
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
        # Every other one of torch's simplest operators is algebraic.
        algebraic = str(func.name()).startswith("prims::") and row is None
        if not algebraic and func not in table:
            self.unknown.append(str(func.name()))
        return func(*args, **kwargs)

    def _leaf(self, row: Row, args: Any, result: Any) -> None:
        first = next(iter(_tensors(result)), None)
        if first is None or not (first.is_floating_point() or first.is_complex()):
            return
        if row.name == "pow":
            exponent = args[1]
            if isinstance(exponent, int | float) and float(exponent) in MULTIPLIED_OUT:
                return
        for function in row.functions:
            self.counts[function] += first.numel()


def _base_of_foreach(operator: Any) -> Any:
    """Return the overload for one tensor of an operator on lists (``_foreach_exp``), or None."""
    import torch

    name = name_of(operator)
    if not name.startswith("_foreach_") or is_algebraic(operator):
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
        if not is_plain(value):  # the operator may do something else there
            raise TypeError(kind(value))
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
    row = find(name)
    if row is not None and row.definition:
        return DEFINITIONS[row.definition](*args, **kwargs)
    if operator not in table or (row is not None and row.leaf):
        return None
    result = table[operator](*args, **kwargs)
    return None if result is NotImplemented else result
