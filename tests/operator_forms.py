# SPDX-License-Identifier: Apache-2.0
"""The forms in which an operator of torch's own test database can be called, and what each gives.

Importing this imports the database, which imports Inductor and makes sessions slower to open.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import grad, jvp, vmap

from pytest_udftorch.swap.cpu import attention, composites, narrow, pointwise, recurrent, variates
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.operators.rows import ROWS
from pytest_udftorch.swap.operators.table import LOG_SIGMOID
from tests.operator_samples import op_db, tree, watching

#: Samples of each operator, variant and dtype in a quick walk, and those of errors.
FEW = 3


@dataclass(frozen=True)
class Outcome:
    """What a call gave.

    Attributes:
        seen: of each tensor its shape, strides, dtype and gradient's function, or what was raised.
        tensors: the tensors.
        drawn: whether it drew random numbers.
    """

    seen: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...] = ()
    drawn: bool = False


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__ if isinstance(value, float) else repr(value)
    node = value.grad_fn.name() if value.grad_fn is not None else ""
    if value.layout is not torch.strided or value.is_nested:
        return tuple(value.shape), value.layout, value.dtype, node
    return tuple(value.shape), _steps(value), value.dtype, node


def _steps(value: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that say where an element lies: those of one element say nothing."""
    if not value.numel():
        return ()
    return tuple(s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1)


def outcome(call: Callable[[], Any]) -> Outcome:
    """Return what a call gives or raises; the generator begins at one seed."""
    # Past torch.manual_seed, which formats the stack of calls for each kind of device.
    torch.default_generator.manual_seed(7)
    before = torch.get_rng_state()
    try:
        found = call()
    except Exception as error:
        return Outcome((type(error).__name__, str(error)))
    leaves = tree.tree_leaves(found)
    made = tuple(t for t in leaves if isinstance(t, torch.Tensor))
    drawn = not torch.equal(before, torch.get_rng_state())
    return Outcome(tuple(map(_described, leaves)), made, drawn)


def _copied(sample: Any, *, requires_grad: bool = False) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the arguments of a sample as tensors of their own, with its strides."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        fresh = value.detach()
        if value.layout is torch.strided:
            fresh = (
                torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=value.device
                ).copy_(fresh)
                if value.numel() and 0 not in value.stride()
                else fresh.clone()
            )
        return fresh.requires_grad_(requires_grad and value.requires_grad)

    return tree.tree_map(copy, (sample.input, tuple(sample.args), dict(sample.kwargs)))


def _slope(like: torch.Tensor) -> torch.Tensor:
    """Return different numbers, so that the gradient of what is normalized does not vanish."""
    numbers = torch.arange(like.numel(), device=like.device) % 7 - 2
    return (numbers * 0.375).view(like.shape).to(like.dtype)


def _differentiable(found: Any) -> list[torch.Tensor]:
    return [
        t for t in tree.tree_leaves(found)
        if isinstance(t, torch.Tensor) and t.requires_grad and t.layout is torch.strided
    ]  # fmt: skip


def reverse(op: Any, sample: Any) -> Any:
    """Return the results of a call, and the gradients of its tensors."""
    first, args, kwargs = _copied(sample, requires_grad=True)
    found = op(first, *args, **kwargs)
    leaves = _differentiable((first, args, kwargs))
    made = _differentiable(found)
    if not made or not leaves:
        return found
    gradients = torch.autograd.grad(made, leaves, [_slope(t) for t in made], allow_unused=True)
    return found, gradients


def _scalar(found: Any) -> torch.Tensor:
    """Return a curved function of results, whose gradient depends on them."""
    made = [
        t for t in tree.tree_leaves(found)
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]  # fmt: skip
    return sum(((t * t * _slope(t)).sum() for t in made), torch.zeros(()))


def forward_over_reverse(op: Any, sample: Any) -> Any:
    """Return a gradient, and how it changes in one direction."""
    first, args, kwargs = _copied(sample)

    def gradient(x: Any) -> Any:
        return grad(lambda x: _scalar(op(x, *args, **kwargs)))(x)

    return jvp(gradient, (first,), (_slope(first),))


def mapped(op: Any, sample: Any) -> Any:
    """Return what a call gives for two inputs at once."""
    first, args, kwargs = _copied(sample)
    pair = torch.stack([first, first])
    return vmap(lambda x: op(x, *args, **kwargs), randomness="different")(pair)


def _layouts(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a tensor as it lies in memory otherwise."""
    plain, graded = x.detach(), x.requires_grad
    if x.dim() > 1:
        yield "transposed", plain.mT.contiguous().mT.requires_grad_(graded)
        yield "turned", plain.movedim(0, -1).contiguous().movedim(-1, 0).requires_grad_(graded)
        yield "expanded", plain[:1].expand(x.shape).requires_grad_(graded)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.dim() in formats:
        last = plain.contiguous(memory_format=formats[x.dim()])
        yield "channels last", last.requires_grad_(graded)


def _wrong(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield arguments of which one is another: most of them torch refuses.

    Args:
        values: (input, arguments, keywords).
    """
    leaves, rebuilt = tree.tree_flatten(values)
    for at, value in enumerate(leaves):
        others: list[tuple[str, Any]] = []
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            others = [("7", 7), ("-9", -9), ("0", 0)]
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            others = [("one dimension more", value[None])]
            if value.dim():
                others.append(("no elements", value[..., :0]))
                others.append(("one place less", value[..., :-1]))
            if value.dim() and len(value):
                others.append(("one dimension less", value[0]))
            others.append(("of double precision", value.double()))
            others.append(("of integers", value.long()))
        for what, other in others:
            changed = [*leaves[:at], other, *leaves[at + 1 :]]
            yield f"argument {at} {what}", rebuilt.unflatten(changed)


def _outs(like: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that a result can be asked to go to."""
    yield "out", torch.empty_like(like)
    yield "out, empty", like.new_empty(0)
    if like.dim():
        yield "out, too large", like.new_empty([n + 1 for n in like.shape])
    yield "out, with gaps", like.new_empty((*like.shape, 2))[..., 0]
    yield "out, of integers", torch.empty(like.shape, dtype=torch.int64)
    yield "out, in double precision", torch.empty(like.shape, dtype=torch.float64)


def _is_strided(sample: Any) -> bool:
    """Tell whether a sample is about a tensor with strides and dimensions."""
    given = (t for t in tree.tree_leaves((sample.input, sample.args, sample.kwargs)))
    plain = all(t.layout is torch.strided for t in given if isinstance(t, torch.Tensor))
    return plain and isinstance(sample.input, torch.Tensor) and sample.input.dim() > 0


def forms(op: Any, sample: Any) -> Iterator[tuple[str, Outcome]]:
    """Call an operator in each form that the database says it has."""
    first, args, kwargs = _copied(sample)
    plain = outcome(lambda: op(first, *args, **kwargs))
    yield "plain", plain
    floats = isinstance(first, torch.Tensor) and first.is_floating_point()
    if op.supports_autograd and floats:
        yield "reverse", outcome(lambda: reverse(op, sample))
    if _is_strided(sample):
        yield "not contiguous", outcome(lambda: reverse(op, sample.noncontiguous()))
        for name, laid in _layouts(sample.input):
            turned = type(sample)(laid, args=sample.args, kwargs=sample.kwargs)
            yield name, outcome(lambda turned=turned: reverse(op, turned))  # type: ignore[misc]
    if op.inplace_variant is not None and isinstance(first, torch.Tensor):
        yield "in place", outcome(lambda: op.inplace_variant(_copied(sample)[0], *args, **kwargs))
    if op.supports_out and _is_strided(sample) and len(plain.tensors) == 1:
        for name, out in _outs(plain.tensors[0]):
            yield name, outcome(lambda out=out: op(first, *args, **kwargs, out=out))  # type: ignore[misc]
    if not floats:
        return
    yield "vmap", outcome(lambda: mapped(op, sample))
    if op.supports_fwgrad_bwgrad:
        yield "forward over reverse", outcome(lambda: forward_over_reverse(op, sample))


#: Operators for torch's own use, which trust their callers with the sizes, and one that reads past
#: the end of a right side with a dimension more (torch 2.14).
_UNCHECKED = ("native_", "_native_", "torch.ops.aten.", "linalg.lstsq")


def _crashes(op: Any, first: Any, args: Any, kwargs: Any) -> bool:
    """Tell whether torch reads outside memory: of terms in no bag, in float64 (torch 2.15)."""
    offsets = kwargs.get("offsets")
    bags = op.name == "nn.functional.embedding_bag" and first.dtype == torch.float64
    return bags and isinstance(offsets, torch.Tensor) and not offsets.numel()


def mistakes(op: Any, sample: Any) -> Iterator[tuple[str, Outcome]]:
    """Call an operator with one argument that does not fit the others, or is odd."""
    if not _is_strided(sample) or op.name.startswith(_UNCHECKED):
        return
    for name, given in _wrong(_copied(sample)):
        if _crashes(op, *given):
            continue

        def call(given: Any = given) -> Any:
            first, args, kwargs = given
            return op(first, *args, **kwargs)

        found = outcome(call)
        # What torch has no words for is a fault of its own.
        if "INTERNAL ASSERT" not in str(found.seen):
            yield name, found


def errors(op: Any) -> Iterator[tuple[str, Outcome]]:
    """Call an operator with the arguments that the database says torch refuses."""
    if op.error_inputs_func is None:
        return
    # Past ``error_inputs``, which formats it for each error.
    for number, error in enumerate(op.error_inputs_func(op, "cpu")):
        sample = error.sample_input
        yield (
            f"error {number}",
            outcome(lambda: op(sample.input, *sample.args, **sample.kwargs)),  # noqa: B023
        )


def samples(op: Any, dtype: torch.dtype, limit: int | None) -> list[Any]:
    """Return samples of an operator; floats ask for gradients if it has them."""
    if not op.supports_dtype(dtype, "cpu"):
        return []
    torch.manual_seed(0)
    graded = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = op.sample_inputs_func(op, "cpu", dtype, requires_grad=graded)
        return list(itertools.islice(made, limit))


def overridden() -> frozenset[str]:
    """Return the overloads on the CPU that any of the libraries here overrides."""
    pointwise_ones = [op for row in ROWS for op in row.cpu]
    made = [*pointwise_ones, *composites.OPERATORS, *narrow.OPERATORS]
    names = {n for op in made for n in pointwise.overloads(op)}
    names |= {*LOG_SIGMOID.overloads[:2], *variates.OVERLOADS}
    names |= {attention.FORWARD, attention.BACKWARD, recurrent.FORWARD, recurrent.BACKWARD}
    udfs = (udf for those in find_library("repro").operators.values() for udf in those)
    own = {udf.name for udf in udfs if "CPU" in udf.dispatch_keys}
    return frozenset(own | {f"aten::{name}" for name in names})


def calling(overloads: frozenset[str]) -> list[tuple[Any, bool]]:
    """Return the operators of the database that call one of the overloads, both ways.

    Beside each stands whether it draws random numbers.
    """
    found = []
    for op in op_db:
        if op.name.startswith("jiterator"):
            continue
        called: set[Any] = set()

        def seen(func: Any, args: Any, kwargs: Any, call: Any, called: Any = called) -> Any:
            called.add(func)
            return call()

        made = samples(op, torch.float32, 2)
        with watching(seen), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in made:
                with suppress(Exception):
                    reverse(op, sample)
        if overloads.intersection(f.name() for f in called):
            found.append((op, any(torch.Tag.nondeterministic_seeded in f.tags for f in called)))
    return found


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


#: How far numbers of a dtype may lie apart, of the largest ones.
_NEAR = {
    torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-2, torch.float16: 8e-3,
    torch.complex64: 2e-4, torch.complex128: 1e-9, torch.complex32: 8e-3,
}  # fmt: skip

#: Where both are far from the exact numbers, ours may be so many times as far.
_AS_FAR = 8.0


#: What cancels leaves the rounding of terms of this size, or a larger one.
_ONE = 1e-2


def _errors(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return how far two tensors are apart, relative to the numbers and to the largest one."""
    wide = torch.complex128 if one.is_complex() else torch.float64
    a, b = one.detach().to(wide).nan_to_num(), other.detach().to(wide).nan_to_num()
    size = b[b.abs() < 1e30].abs()
    scale = size.max().item() if size.numel() else 0.0
    return (a - b).abs() / (b.abs() + scale + _ONE)


def far(ours: torch.Tensor, theirs: torch.Tensor, near: float) -> str:
    """Return how two tensors of one form differ beyond rounding, or ""."""
    if ours.layout is not torch.strided or ours.is_nested or ours.is_quantized or not ours.numel():
        return ""
    if not ours.is_floating_point() and not ours.is_complex():
        return "" if torch.equal(ours, theirs) else "other numbers"
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return "NaN elsewhere"
    worst = _errors(ours, theirs).max().item()
    return "" if worst <= near else f"{worst:.1e} apart"


def differences(
    ours: Outcome, theirs: Outcome, dtype: torch.dtype | None, *, curved: bool = False
) -> str:
    """Return how an outcome is not like stock's, or "".

    Args:
        ours: that under a session.
        theirs: that of stock.
        dtype: what was computed with; None if the numbers may be others.
        curved: whether it is a second derivative, which is rounded more often.
    """
    if ours.seen != theirs.seen:
        return f"{ours.seen} and not {theirs.seen}"
    if dtype is None or theirs.drawn:
        return ""
    near = _NEAR.get(dtype, 0.0) * (10 if curved else 1)
    pairs = zip(ours.tensors, theirs.tensors, strict=True)
    return ", ".join(filter(None, (far(one, other, near) for one, other in pairs)))


def is_no_farther(ours: Outcome, theirs: Outcome, op: Any, sample: Any, form: str) -> bool:
    """Tell whether stock is not nearer to what a form gives in double precision."""

    def doubled(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not t.is_floating_point():
            return t
        return t.detach().double().requires_grad_(t.requires_grad)

    exact = dict(forms(op, sample.transform(doubled)))[form]
    found = (exact.tensors, ours.tensors, theirs.tensors)
    if len(set(map(len, found))) > 1:
        return False
    for truth, one, other in zip(*found, strict=True):
        if not one.is_floating_point():
            continue
        bound = _AS_FAR * _errors(other, truth).max() + torch.finfo(one.dtype).eps
        if not one.numel() or _errors(one, truth).max() > bound:
            return False
    return True
