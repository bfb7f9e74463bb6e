# SPDX-License-Identifier: Apache-2.0
"""Overloads that write in place, or into a tensor that they are given, have the contract's bits."""

from __future__ import annotations

import runpy
from inspect import signature

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.base import compat
from pytest_udftorch.reproduce import within_contract
from pytest_udftorch.swap.library.description import find_library

aten = torch.ops.aten


def made(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype("f"))


A, B, C = made(33, 300), made(300, 41, seed=1), made(33, 41, seed=2)
SCALES = {"beta": 0.3, "alpha": 0.7}

#: Overload that returns a tensor, its arguments and keywords; those that write, if it has them.
CASES = [
    (aten.mm.default, (A, B), {}, None, aten.mm.out),
    (aten.bmm.default, (A[None], B[None]), {}, None, aten.bmm.out),
    (aten.addmm.default, (C, A, B), SCALES, aten.addmm_.default, aten.addmm.out),
    (aten.baddbmm.default, (C[None], A[None], B[None]), SCALES, aten.baddbmm_.default,
     aten.baddbmm.out),
    (aten.addmv.default, (C[:, 0], A, B[:, 0]), SCALES, aten.addmv_.default, aten.addmv.out),
    (aten.cumsum.default, (A, 1), {}, aten.cumsum_.default, aten.cumsum.out),
    (aten.sum.dim_IntList, (A, [1]), {}, None, aten.sum.IntList_out),
    (aten.mean.dim, (A, [0], True), {}, None, aten.mean.out),
    (aten.linalg_vector_norm.default, (A, 2, [1]), {}, None, aten.linalg_vector_norm.out),
]  # fmt: skip


def all_forms(case, dtype=torch.float32):
    """Return what the forms of an operator give."""
    plain, args, more, inplace, out = case
    args = tuple(a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args)
    found = [plain(*args, **more)]
    if inplace is not None:
        found.append(inplace(args[0].clone(), *args[1:], **more))
    given = torch.empty(0, dtype=dtype)
    returned = out(*args, **more, out=given)
    assert returned is given
    return [*found, given]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c[0]))
def test_every_form_has_the_bits_of_the_one_that_returns(case, dtype):
    with patched("repro"), within_contract(strict=True):
        first, *others = all_forms(case, dtype)
    assert others
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [1, 2])
def test_norms_that_torch_writes_into_a_tensor_of_its_own_are_inside(order, dtype):
    """``aten::norm`` and distances of pairs call the overload that writes."""
    x, y = A.to(dtype), A.flip(0).to(dtype)

    def norms():
        apart = x - y + 1e-6
        want = torch.linalg.vector_norm(apart, order, 1)
        return [
            torch.equal(found, want)
            for found in (
                F.pairwise_distance(x, y, p=order), aten.norm.ScalarOpt_dim(apart, order, [1])
            )
        ]  # fmt: skip

    with patched("repro"), within_contract(strict=True):
        assert norms() == [True, True]


def test_stock_has_other_bits():
    with patched("repro"):
        ours = torch.mm(A, B)
    assert not torch.equal(torch.mm(A, B, out=torch.empty(33, 41)), ours)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(A, B, out=torch.empty(33, 41, dtype=torch.float64)),
        lambda: made(2, 33, 41).addmm_(A, B),
        lambda: made(1, 41).addmm_(A, B),
        lambda: torch.mm(A, A, out=torch.empty(0)),
        lambda: torch.sum(A, 5, out=torch.empty(0)),
    ],
)
def test_what_stock_refuses_is_refused_in_its_words(call):
    said = []
    for library in ("std", "repro"):
        with patched(library), pytest.raises((RuntimeError, IndexError)) as error:
            call()
        said.append((type(error.value), str(error.value).splitlines()[0]))
    assert said[0] == said[1]


def test_every_overload_in_place_of_what_the_library_overrides_is_overridden():
    """An overload in place of an operator of the contract would be stock, and nobody would see."""
    library = find_library("repro")
    udfs = [udf for those in library.operators.values() for udf in those]
    names = {udf.name for udf in udfs}
    functions = runpy.run_path(str(library.folder / "operators.py"))
    # One function with `out` stands for every form; of the others torch composes what is in place.
    known = {"aten::pow", "aten::lerp", "aten::div"}
    known |= {u.name for u in udfs if "out" in signature(functions[u.function]).parameters}
    known_to_torch = set(compat.operator_names())
    missing = []
    for name in sorted(names):
        base = name.partition(".")[0]
        one = f"{base}_"
        if base.endswith("_") or base in known or "_foreach" in base:
            continue
        if one not in names and one in known_to_torch and compat.has_kernel(one, "CPU"):
            missing.append(one)
    assert not missing
