# SPDX-License-Identifier: Apache-2.0
"""Calls of ATen's operators: those that the samples of torch's own test database lead to.

Importing this imports the database, which imports Inductor and makes sessions slower to open.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("expecttest")  # the database asks for it
from torch.testing._internal.common_methods_invocations import op_db

# The database forbids other tests of this process to set flags of torch.backends. That module is
# hidden behind an object, but not from its functions.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

tree = torch.utils._pytree

#: What they return was written by nobody.
_UNWRITTEN = (
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
)  # fmt: skip

#: The operators whose results can be compared.
EVERY = [op for op in op_db if op.name not in _UNWRITTEN and not op.name.startswith("jiterator")]

#: Samples of each operator of the database, and calls of each overload, in a quick walk.
QUICK = 4

Seen = Callable[[Any, Any, Any, Callable[[], Any]], Any]


def tensors(values: Any) -> list[torch.Tensor]:
    return [t for t in tree.tree_leaves(values) if isinstance(t, torch.Tensor)]


def chosen(op: Any, dtype: torch.dtype, limit: int = 2, graded: bool = False) -> list[Any]:
    """Return some samples with tensors of several elements: the first, and others from between."""
    made = [
        sample
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=graded), 40)
        if any(t.numel() > 1 for t in tensors([sample.input, sample.args]))
    ]
    return [(s.input, s.args, s.kwargs) for s in made[:: max(1, len(made) // limit)][:limit]]


def moved(values: Any, device: str) -> Any:
    """Return copies of tensors on a device, and where a device is named, that one."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().to(device).requires_grad_(value.requires_grad)
        place = isinstance(value, str | torch.device) and str(value) == "cpu"
        return device if place else value

    return tree.tree_map(move, values)


def encodings(values: Any) -> list[Any]:
    """Return what tells results apart: shapes, dtypes and encodings, with one for all NaNs."""
    found = []
    for value in tensors(values):
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        plain = dense.resolve_conj().resolve_neg().cpu()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        if plain.is_floating_point():
            integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[plain.element_size()]
            plain = plain.contiguous().view(integers).masked_fill(plain.isnan(), -1)
        found.append((value.shape, value.dtype, plain.contiguous().numpy().tobytes()))
    return found


@contextmanager
def watching(seen: Seen) -> Iterator[None]:
    """Hand each call of an operator to ``seen``: the overload, its arguments, and what calls it."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = kwargs or {}
            if "zerotensor" in func.name() or any(t._is_zerotensor() for t in tensors(args)):
                return func(*args, **given)  # it has no memory
            return seen(func, args, given, lambda: func(*args, **given))

    with Watch():
        yield


def walk(seen: Seen, device: str = "cpu", limit: int | None = QUICK, names: Any = None) -> None:
    """Call the operators of the database, forwards, backwards, in place and with ``out=``.

    Args:
        seen: is handed each call that they make.
        device: where they are called.
        limit: samples of each; None for all.
        names: the operators; by default all.
    """
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            known = op.name in names if names else not op.name.startswith("jiterator")
            if not known or not op.supports_dtype(torch.float32, device):
                continue
            graded = op.supports_autograd
            # Past ``sample_inputs``, which formats its caller's stack for each sample.
            samples = op.sample_inputs_func(op, device, torch.float32, requires_grad=graded)
            for sample in itertools.islice(samples, limit):
                # What torch refuses, or has no gradient of, is no call.
                try:
                    _call(op, sample, seen)
                except (RuntimeError, NotImplementedError, ValueError, TypeError):
                    continue


def _call(op: Any, sample: Any, seen: Seen) -> None:
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    with watching(seen):
        found = op.op(*args, **kwargs)
        made = [t for t in tensors(found) if t.requires_grad and t.is_floating_point()]
        if made:
            torch.autograd.backward(made, [torch.rand_like(t) - 0.3 for t in made])
    with watching(seen), torch.no_grad():
        if op.supports_out and isinstance(found, torch.Tensor):
            op.op(*args, **kwargs, out=torch.empty_like(found))
        if op.inplace_variant is not None and not op.is_factory_function:
            op.inplace_variant(sample.input.detach().clone(), *sample.args, **kwargs)
