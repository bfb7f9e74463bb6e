# SPDX-License-Identifier: Apache-2.0
"""Activations that are one function each: what a session computes, and where it does not."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from parameters import mostly_slow
from torch.nn import functional as F

from pytest_udftorch import errors, find_library, patched
from pytest_udftorch.prove import assert_bitwise_same, assert_correctly_rounded
from pytest_udftorch.prove.exact.formats import FORMATS, canonical
from pytest_udftorch.prove.exact.rounding import mpfr_rounded
from pytest_udftorch.swap.cpu.composites import operator
from pytest_udftorch.swap.cpu.corrections import amended
from pytest_udftorch.swap.cpu.operators import cpu_operators
from pytest_udftorch.swap.library.symbols import COMPOSITES

NAMES = tuple(COMPOSITES)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    rng = np.random.default_rng(7)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e-45, 2**-24, -(2.0**-24), -104.0]
    parts = [rng.uniform(-25, 25, 1500), 2.0 ** rng.uniform(-149, 127, 300), special]
    return torch.tensor(np.concatenate(parts), dtype=torch.float32)


def outputs(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: operator(torch, name)(x) for name in NAMES}


def test_every_composite_is_correctly_rounded_and_stock_is_back_afterwards(x):
    before = outputs(x)
    with patched("corem", composites=True) as session:
        assert session.composites == NAMES
        assert all(session.reached[name] for name in NAMES)
        inside = outputs(x)
    for name, got in inside.items():
        assert_correctly_rounded(got, x, function=name)
    with patched("corem"):
        formulas = outputs(x)
    different = [
        n for n in NAMES if not torch.equal(inside[n].nan_to_num(), formulas[n].nan_to_num())
    ]
    assert set(NAMES) - set(different) <= {"elu", "rsqrt"}
    for name, got in outputs(x).items():
        assert_bitwise_same(got, before[name], any_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_one_wrong_bit_is_seen(name, x):
    with patched("canary", functions=("exp",), composites=True):
        got = operator(torch, name)(x)
    with pytest.raises(AssertionError, match="not correctly rounded"):
        assert_correctly_rounded(got, x, function=name)


def test_overloads_strides_and_gradients_have_the_composite(x):
    grid = x[:1200].reshape(30, 40)
    with patched("corem", functions=("exp",), composites=True):
        want = torch.sigmoid(grid)
        out = torch.empty(40, 30).t()
        assert torch.equal(torch.sigmoid(grid, out=out), want)
        assert torch.equal(grid.clone().sigmoid_(), want)
        assert torch.equal(torch.sigmoid(grid.t()), want.t())
        assert torch.equal(torch.sigmoid(grid[:, ::3]), want[:, ::3])
        assert torch.equal(torch.vmap(torch.sigmoid)(grid), want)
        assert torch.equal(F.logsigmoid(grid.t()), F.logsigmoid(grid).t())
        leaf = grid.clone().requires_grad_()
        torch.sigmoid(leaf).sum().backward()
        assert torch.equal(leaf.grad, (1 - want) * want)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert F.gelu(grid.bfloat16()).dtype == torch.bfloat16


def test_scalars_of_no_composite_keep_the_formula(x):
    calls = (
        lambda: F.softplus(x, beta=2),
        lambda: F.softplus(x, threshold=10),
        lambda: F.elu(x, alpha=0.5),
        lambda: torch.sigmoid(x.double()),
        lambda: torch.sigmoid(torch.arange(5)),
    )
    with patched("corem"):
        want = [call() for call in calls]
    with patched("corem", composites=True):
        for call, result in zip(calls, want, strict=True):
            assert_bitwise_same(call().double().numpy(), result.double().numpy(), any_nan=True)
        with pytest.raises(RuntimeError, match="approximate argument must be either none or tanh"):
            F.gelu(x, approximate="other")


def test_sessions_nest_and_std_is_stock_for_all(x):
    stock = torch.sigmoid(x)
    with patched("corem", composites=True):
        right = torch.sigmoid(x)
        with patched("canary", functions=("exp",), composites=True):
            wrong = torch.sigmoid(x)
        assert not torch.equal(wrong.nan_to_num(), right.nan_to_num())
        with patched("std"):
            assert_bitwise_same(torch.sigmoid(x), stock, any_nan=True)
        assert_bitwise_same(torch.sigmoid(x), right, any_nan=True)


def test_a_library_without_composites_is_refused(tmp_path):
    library = tmp_path / "one"
    library.mkdir()
    head = '[library]\nname = "one"\nversion = "1"\n'
    function = '[functions.exp.float32]\nsource = "e.c"\nscalar = "e"\n'
    (library / "udf.toml").write_text(head + function)
    (library / "e.c").write_text("float e(float x) { return x; }\n")
    with pytest.raises(errors.LibraryError, match="'one' has no composites"):
        patched(library, composites=True)
    other = tmp_path / "two"
    other.mkdir()
    (other / "udf.toml").write_text(head.replace("one", "two") + function)
    (other / "e.c").write_text("float e(float x) { return x; }\n")
    (library / "udf.toml").write_text(head + 'composites = "../two"\n' + function)
    with pytest.raises(errors.LibraryError, match="which has 'exp'"):
        patched(library, composites=True)
    with pytest.raises(errors.SessionStateError, match="neither True nor False"):
        patched("corem", composites=1)
    patched("std", composites=True)  # stock for all


def test_an_operator_with_a_udf_of_its_own_keeps_it(x):
    from pytest_udftorch import operator_udf

    @operator_udf("aten::sigmoid.out")
    def halves(self, *, out):
        return out.fill_(0.5)

    with patched("corem", functions=("exp",), composites=True), patched(halves):
        assert torch.equal(torch.sigmoid(x, out=torch.empty_like(x)), torch.full_like(x, 0.5))
        assert_correctly_rounded(torch.sigmoid(x), x, function="sigmoid")


def test_compiled_code_calls_the_composites(x):
    torch.compiler.reset()

    def model(v: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(v) * 1.0

    with patched("corem", functions=("exp",), composites=True):
        assert_bitwise_same(torch.compile(model)(x), torch.sigmoid(x), any_nan=True)


def test_profiles_count_composites(x):
    with patched("corem", functions=("exp",), composites=True, profile=True) as session:
        torch.sigmoid(x)
        F.silu(x)
    counted = {row.name: row.elements for row in session.profile.rows("function")}
    assert counted == {"sigmoid": x.numel(), "silu": x.numel()}


def test_libraries_state_their_claims():
    library = find_library("corem")
    assert library.composites is not None
    whole = find_library(library.composites)
    assert whole.function_names == NAMES
    assert {f.max_ulp for f in whole.functions.values()} == {0.5}
    pairs = itertools.product(NAMES, ("float32",))
    assert set(whole.functions) == set(pairs)


def test_the_example_of_the_page_runs(capsys):
    page = Path(__file__).parents[2] / "docs" / "swap" / "composites.md"
    (script,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    exec(compile(script, str(page), "exec"), {})
    out = capsys.readouterr().out
    assert "('sigmoid', 'silu', 'softplus', " in out
    assert "{'aten::sigmoid CPU': 2}" in out


BITS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def sixteen(name: str, dtype: str) -> np.ndarray:
    """Return the results of an operator for all encodings; NaNs canonical."""
    x = torch.from_numpy(BITS.view(np.int16)).view(getattr(torch, dtype))
    got = operator(torch, name)(x).view(torch.int16).numpy().view(np.uint16)
    return canonical(got, FORMATS[dtype])


# The others are the slow ones to judge, and marked so.
QUICK = ("gelu_erf",)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", mostly_slow(NAMES, QUICK))
def test_every_result_in_sixteen_bits_is_correctly_rounded(name, dtype):
    with patched("corem", functions=("exp",), composites=True):
        got = sixteen(name, dtype)
    np.testing.assert_array_equal(got, mpfr_rounded(name, [BITS], FORMATS[dtype]))


def test_without_the_table_some_results_in_sixteen_bits_are_wrong(monkeypatch):
    with patched("corem", functions=("exp",), composites=True):
        right = sixteen("silu", "bfloat16")
    monkeypatch.setattr("pytest_udftorch.swap.cpu.loops.amended", lambda *_: (None, None, None))
    cpu_operators.forget()  # kernels keep their tables
    with patched("corem", functions=("exp",), composites=True):
        assert np.count_nonzero(sixteen("silu", "bfloat16") != right) == 128
    cpu_operators.forget()


#: Functions of corem whose float32 result, rounded to half, is wrong for some inputs.
NARROW = sorted(json.loads(find_library("corem").sixteen.read_text())["float16"])


@pytest.mark.parametrize("name", mostly_slow(NARROW, ["tan"]))
def test_functions_in_half_are_correctly_rounded(name):
    def results():
        x = torch.from_numpy(BITS.view(np.int16)).view(torch.float16)
        operator, out = getattr(torch, name), torch.empty(0, dtype=torch.float16)
        written, over = x.clone(), x.reshape(256, 256).t().clone()
        operator(x, out=out)
        getattr(written, name + "_")()
        strided = operator(over).t().reshape(-1)
        found = (operator(x), out, written, strided)
        codes = [t.view(torch.int16).numpy().view(np.uint16) for t in found]
        return [canonical(c, FORMATS["float16"]) for c in codes]

    want = mpfr_rounded(name, [BITS], FORMATS["float16"])
    with patched("corem", functions=(name, "exp")):
        for got in results():
            np.testing.assert_array_equal(got, want)
        # The negative control: the same function in float32, rounded again.
        x = torch.from_numpy(BITS.view(np.int16)).view(torch.float16)
        twice = getattr(torch, name)(x.float()).half().view(torch.int16).numpy().view(np.uint16)
        assert 1 <= np.count_nonzero(canonical(twice, FORMATS["float16"]) != want) <= 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be used"),
        ('{"float16": {"silu": {"at": "00020001", "result": "00010001"}}}', "unsorted"),
        ('{"float16": {"silu": {"at": "0001", "result": ""}}}', "its rows differ"),
        ('{"float16": {"silu": {"at": "xyzw", "result": "0001"}}}', "does not look like"),
    ],
)
def test_a_damaged_table_is_an_error(text, said, tmp_path):
    whole = find_library(find_library("corem").composites)
    (tmp_path / "sixteen.json").write_text(text)
    broken = dataclasses.replace(whole, sixteen=tmp_path / "sixteen.json")
    with pytest.raises(errors.LibraryError, match=said):
        amended(broken, "silu")
