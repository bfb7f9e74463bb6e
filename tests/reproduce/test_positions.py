# SPDX-License-Identifier: Apache-2.0
"""The same input gives the same bits at every position of a tensor under corem, not under std.

The kind of defect of pytorch/pytorch#48641 and #196999: a vector body and a scalar tail that
use different functions. Every function that corem has is found in its ``udf.toml``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import build_library, find_library, patched
from pytest_udftorch.swap.library.symbols import FUNCTIONS, golden_points
from pytest_udftorch.swap.reach.catalogue import Operator, groups
from pytest_udftorch.swap.reach.operators import OPERATORS
from pytest_udftorch.swap.reach.table import REASONS

COREM = find_library("corem").function_names
LENGTHS = range(1, 66)
INFINITY = float("inf")
#: Beside ordinary inputs: those where a vector form may take another path than a scalar one.
SPECIAL = (0.0, -0.0, INFINITY, -INFINITY, float("nan"), 1e-45, -1e-40, 88.8, -103.5, 3e38)

INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Encodings; all NaNs count as one."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor)
    return tensor.detach().contiguous().view(INTEGERS[tensor.dtype])


def rounded(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def hard_cases(function: str) -> list[tuple[float, ...]]:
    path = find_library("corem").functions[function, "float32"].hard_cases
    if path is None:
        return []
    words = [line.partition("#")[0].split() for line in path.read_text().splitlines()]
    found = [[int(w, 16) for w in row] for row in words if row][:8]
    return [struct.unpack(f"{len(e)}f", struct.pack(f"{len(e)}I", *e)) for e in found]


def arguments(function: str) -> list[tuple[float, ...]]:
    """Input tuples: ordinary, special, hard to round."""
    f = FUNCTIONS[function]
    ordinary = [rounded(v) for v in golden_points(8 * f.arity, *f.domain)]
    plain = list(zip(*[iter(ordinary)] * f.arity, strict=True))
    special = [(rounded(v), *((1.5,) * (f.arity - 1))) for v in SPECIAL]
    return plain + special + hard_cases(function)


@pytest.fixture
def swapped(request):
    """corem's ``function``, bound; the scalar form as a Python function of floats."""
    function = request.param
    with patched("corem", (function,)):
        yield getattr(torch, function), build_library("corem").scalar_function(function), function


every_function = pytest.mark.parametrize("swapped", COREM, indirect=True)


def expected(scalar: Callable[..., float], values: tuple[float, ...]) -> torch.Tensor:
    """The UDF's result for one input tuple, called past torch."""
    return bits(torch.tensor([scalar(*values)], dtype=torch.float32))


@every_function
def test_every_length_and_position(swapped):
    operator, scalar, function = swapped
    for values in arguments(function):
        want = expected(scalar, values)
        # Compared together: that takes longer than the operator.
        results = [operator(*(torch.full((n,), v) for v in values)) for n in LENGTHS]
        right = (bits(torch.cat(results)) == want).split(list(LENGTHS))
        wrong = [n for n, at in zip(LENGTHS, right, strict=True) if not at.all()]
        assert not wrong, (values, wrong, [results[n - 1].tolist() for n in wrong], want.tolist())


@every_function
def test_one_live_element_among_others(swapped):
    """Neighbours in the same vector, some of them hard to round, do not touch an element."""
    operator, scalar, function = swapped
    all_arguments = arguments(function)
    garbage = [torch.tensor(column) for column in zip(*all_arguments, strict=True)]
    garbage = [g.repeat(1 + 65 // len(g)) for g in garbage]
    for live in all_arguments[::5]:
        want = expected(scalar, live)
        for n in LENGTHS:
            # Row p of each tensor has the live element at position p.
            places = [g[:n].repeat(n, 1) for g in garbage]
            for rows, value in zip(places, live, strict=True):
                rows.fill_diagonal_(value)
            found = [operator(*at) for at in zip(*places, strict=True)]
            right = bits(torch.stack(found).diagonal()) == want
            assert bool(right.all()), (live, n, right.logical_not().nonzero().flatten().tolist())


def layouts(n: int, value: float) -> dict[str, torch.Tensor]:
    """Tensors of n equal elements, laid out in many ways."""
    found = {f"offset {k}": torch.full((n + k,), value)[k:] for k in (1, 2, 3, 7, 15)}
    for step in (2, 3, 5, 16):
        found[f"stride {step}"] = torch.full((step * n,), value)[::step]
    found["expanded"] = torch.full((1,), value).expand(n)
    found["column"] = torch.full((n, 3), value)[:, 1]
    found["rows"] = torch.full((3, n + 5), value)[:, 2 : 2 + n]
    found["transposed"] = torch.full((n, 3), value).t()
    found["channels last"] = torch.full((2, 3, 1, n), value).contiguous(
        memory_format=torch.channels_last
    )
    found["0-dim"] = torch.full((), value)
    return found


@every_function
def test_every_layout(swapped):
    operator, scalar, function = swapped
    for values in arguments(function)[::4]:
        want = expected(scalar, values)
        for n in (1, 7, 8, 9, 15, 16, 17, 31, 33, 47, 65):
            columns = [layouts(n, v) for v in values]
            for name in columns[0]:
                got = bits(operator(*(c[name] for c in columns)))
                assert bool((got == want).all()), (values, name, n)


@every_function
def test_out_and_in_place(swapped):
    operator, scalar, function = swapped
    for values in arguments(function)[::4]:
        want = expected(scalar, values)
        for n in LENGTHS:
            rows = [torch.full((n,), v) for v in values]
            buffer = torch.zeros(2 * n)[::2]
            operator(*rows, out=buffer)
            assert bool((bits(buffer) == want).all()), (values, n)
            getattr(rows[0], f"{function}_")(*rows[1:])
            assert bool((bits(rows[0]) == want).all()), (values, n)


REDUCED = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


@pytest.mark.parametrize("dtype", REDUCED, ids=REDUCED.values())
@every_function
def test_reduced_precision_goes_through_float32(swapped, dtype):
    operator, scalar, function = swapped
    if f"torch.{function}" in {name for reason in REASONS for name in reason.operators}:
        pytest.skip(f"torch.{function} is not reached in {dtype}: see docs/results/reach.md")
    for values in arguments(function)[::2]:
        near = tuple(float(torch.tensor(v, dtype=dtype)) for v in values)
        want = bits(torch.tensor([scalar(*near)], dtype=torch.float32).to(dtype))
        for n in (1, 8, 15, 16, 17, 31, 32, 33, 65):
            got = bits(operator(*(torch.full((n,), v, dtype=dtype) for v in near)))
            assert bool((got == want).all()), (near, n, got.tolist(), want.tolist())


@every_function
def test_large_tensors_do_not_depend_on_the_threads(swapped):
    """Longer than the grain at which ATen splits work, and not a multiple of anything."""
    operator, scalar, function = swapped
    count = 3 * 32768 + 1237
    f = FUNCTIONS[function]
    rows = [torch.tensor(golden_points(count, *f.domain)) for _ in range(f.arity)]
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(bits(operator(*rows)))
    finally:
        torch.set_num_threads(before)
    assert bool((results[0] == results[1]).all())
    assert bool((results[0] == results[2]).all())
    for i in range(0, count, 997):
        values = tuple(float(row[i]) for row in rows)
        assert results[0][i] == expected(scalar, values)[0], (values, i)


# Operators made of such functions ----------------------------------------------------

EXPLAINED = {name for reason in REASONS for name in reason.operators}


def built_on(have: tuple[str, ...]) -> list[Operator]:
    """The operators of the reach table whose every function is in ``have``."""
    found = []
    for op in OPERATORS:
        needed = groups(op.needs) + groups(op.needs_backward or "")
        if (
            needed
            and all(group & set(have) for group in needed)
            and not op.random
            and not op.name.startswith(("torch.complex", "nn."))
            and op.name not in EXPLAINED
            and "attention" not in op.name
        ):
            found.append(op)
    return found


def result_and_gradient(op: Operator, x: torch.Tensor, dim: int | None) -> list[torch.Tensor]:
    if op.needs_backward is None:
        return [op.call(x, *(() if dim is None else (dim,)))]
    x = x.detach().requires_grad_()
    y = op.call(x, *(() if dim is None else (dim,)))
    (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, 0.75))
    return [y.detach(), gradient]


def equal_along(tensors: list[torch.Tensor], dim: int) -> bool:
    encodings = [bits(t) for t in tensors]
    return all(bool((e == e.narrow(dim, 0, 1)).all()) for e in encodings)


@pytest.mark.parametrize("op", built_on(COREM), ids=lambda op: op.name)
def test_operators_of_swapped_functions(op):
    with patched("corem"):
        for n in LENGTHS:
            if op.dim is None:
                for value in golden_points(6, *op.domain):
                    found = result_and_gradient(op, torch.full((n,), value), None)
                    assert equal_along(found, 0), (value, n, [f.tolist() for f in found])
                continue
            row = torch.tensor(golden_points(10, *op.domain))
            if op.dim == "first":  # equal columns, which the vector code runs along
                x, dim, along = row[:, None].repeat(1, n), 0, -1
            elif op.dim == "middle":
                x, dim, along = row[None, :, None].repeat(2, 1, n), 1, -1
            else:  # equal rows
                x, dim, along = row.repeat(n, 1), 1, 0
            assert equal_along(result_and_gradient(op, x, dim), along), n


# The same under the stock functions --------------------------------------------------


def softmax_of_columns(value: torch.Tensor) -> torch.Tensor:
    """Softmax over dim 0 of columns [0, value, value / 2]: element 1 of each."""
    return F.softmax(torch.stack((torch.zeros_like(value), value, value / 2)), 0)[1]


#: Function -> operators, with the interval to search, in which libtorch uses one
#: implementation for whole vectors and another for the tail. Stock log, sin and cos have
#: none: VML, or SLEEF with a padded tail, serves every position.
CARRIERS: dict[str, dict[str, tuple[Callable[[torch.Tensor], Any], tuple[float, float]]]] = {
    "exp": {
        "sigmoid": (torch.sigmoid, (-5.0, 5.0)),
        "silu": (F.silu, (-5.0, 5.0)),
        "softmax": (softmax_of_columns, (-5.0, 0.0)),
    },
    "expm1": {
        "elu": (F.elu, (-5.0, 0.0)),
        "selu": (F.selu, (-5.0, 0.0)),
        "celu": (F.celu, (-5.0, 0.0)),
    },
    "exp2": {"exp2": (torch.exp2, (-20.0, 20.0))},
    "tanh": {"gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), (-3.0, 3.0))},
    "atanh": {"atanh": (torch.atanh, (-0.99, 0.99))},
}
SAMPLES = 4000
#: Two 16-lane blocks and a tail of three.
LENGTH = 35


def depends_on_position(operator: Callable[[torch.Tensor], Any], value: float) -> bool:
    return not equal_along([operator(torch.full((LENGTH,), value))], 0)


def first_defect(operator: Callable[[torch.Tensor], Any], domain: tuple[float, float]) -> Any:
    return next(
        (v for v in golden_points(SAMPLES, *domain) if depends_on_position(operator, v)), None
    )


@pytest.mark.parametrize("function", [f for f in CARRIERS if f in COREM])
def test_stock_results_depend_on_the_position(function):
    shown = {}
    with patched("std"):
        for name, (operator, domain) in CARRIERS[function].items():
            value = first_defect(operator, domain)
            if value is not None:
                result = operator(torch.full((LENGTH,), value))
                shown[name] = (value, sorted({float(r).hex() for r in result}))
    assert shown, (
        f"{', '.join(CARRIERS[function])}: this libtorch gave equal bits at every position for "
        f"{SAMPLES} inputs each, so it shows no defect that corem's {function} would mend "
        f"(CPU capability {torch.backends.cpu.get_cpu_capability()})."
    )
    with patched("corem", (function,)):
        for name, (value, results) in shown.items():
            operator = CARRIERS[function][name][0]
            assert len(results) > 1
            assert not depends_on_position(operator, value), (name, value)


def test_the_position_check_sees_a_library_that_depends_on_the_position(tmp_path):
    """The negative control: a scalar form that is one unit off, in the tail only."""
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "tail"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "e"\n'
    )
    (tmp_path / "e.c").write_text("float e(float x) { return 1.0f + x; }\n")
    assert not depends_on_position(lambda x: 1.0 + x, 0.5)
    with patched(tmp_path):
        assert not depends_on_position(torch.sigmoid, 0.5)
    # Only the vectors are swapped: bind, then give the scalar slots back.
    from pytest_udftorch.swap.session.binder import binder

    bound = binder()
    with patched(tmp_path):
        scalars = [s for s in bound.slots if s.symbol == "expf"]
        ours = bound.native.read(scalars)
        stock = [bound.native.resolve(s) for s in scalars]
        bound.native.exchange(scalars, ours, stock)
        try:
            assert depends_on_position(torch.sigmoid, 0.5)
        finally:
            bound.native.exchange(scalars, stock, ours)
