# SPDX-License-Identifier: Apache-2.0
"""The operators of torch's test database run under every watcher as in plain torch.

Forward, in reverse, forward over reverse, and under vmap; what plain torch refuses is left out.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from operator_samples import op_db, tensors
from watched import CONTROLS, WATCHERS, bits

#: A run of the suite takes so many operators, evenly spaced; ``slow`` takes all.
FEW = 24

#: Their results are whatever lies in memory, or differ from run to run.
WILD = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize",
    "as_strided_scatter",
)

#: What a watcher may be handed of one operator; each costs the same run again.
CHEAP = ("record", "record in Python", "nan", "sensitivity", "tolerance and blame", "contract")


def _first(found):
    """Return the sum of the real parts of what an operator gives, to be differentiated."""
    made = [t for t in tensors(found) if t.is_floating_point() or t.is_complex()]
    return sum((t.real if t.is_complex() else t).double().sum() for t in made)


def runs_of(op):
    """Yield transform -> what calls an operator on its first samples under it."""
    graded = op.supports_autograd
    dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.complex64
    if not op.supports_dtype(dtype, "cpu"):
        return
    samples = op.sample_inputs_func(op, "cpu", dtype, requires_grad=False)
    for sample in itertools.islice(samples, 2):
        args, kwargs = sample.args, sample.kwargs

        def call(x, args=args, kwargs=kwargs):
            return op.op(x, *args, **kwargs)

        x = sample.input
        yield lambda x=x, call=call: call(x)
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not graded:
            continue
        grad = torch.func.grad(lambda y, call=call: _first(call(y)))
        yield lambda x=x, grad=grad: grad(x)
        yield lambda x=x, grad=grad: torch.func.jvp(grad, (x,), (torch.ones_like(x),))
        yield lambda x=x, call=call: torch.func.vmap(call, randomness="same")(torch.stack([x, x]))


def result(run):
    """Return all bits of a run, or None if torch refuses it."""
    torch.manual_seed(0)
    try:
        return bits(run())
    except Exception:
        return None


def in_mode(run):
    """Return the bits of a run under a mode that does nothing.

    torch itself computes singular values and eigenvalues with their vectors then, which gives
    other last bits than without them.
    """
    torch.manual_seed(0)
    with CONTROLS["changes nothing"]():
        return bits(run())


def differing(op, watchers):
    """Return what an operator does otherwise under a watcher than in plain torch."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, run in enumerate(runs_of(op)):
            wanted = result(run)
            if wanted is None or result(run) != wanted:
                continue
            for name in watchers:
                torch.manual_seed(0)
                try:
                    with WATCHERS[name]():
                        got = run()
                    same = bits(got) == wanted or bits(got) == in_mode(run)
                except Exception as error:
                    same = f"{type(error).__name__}: {error}"[:300]
                if same is not True:
                    found.append((op.name, number, name, same))
    return found


EVERY = [op for op in op_db if op.name not in WILD and not op.name.startswith("jiterator")]


@pytest.mark.parametrize("op", EVERY[:: len(EVERY) // FEW], ids=lambda op: op.full_name)
def test_operators_run_under_watchers_as_in_plain_torch(op):
    assert differing(op, CHEAP) == []


@pytest.mark.slow
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.full_name)
def test_every_operator_runs_under_every_watcher_as_in_plain_torch(op):
    assert differing(op, WATCHERS) == []
