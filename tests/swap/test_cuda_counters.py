# SPDX-License-Identifier: Apache-2.0
"""What kernels of eager CUDA count, as far as it can be seen without a GPU."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch.errors import ProfileFileError
from pytest_udftorch.swap.cuda import counters as cuda_counters
from pytest_udftorch.swap.cuda.counters import CounterRow, Counters, counters
from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.operators import calls, table
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.profile import Profile
from pytest_udftorch.swap.records.totals import add_cells
from pytest_udftorch.swap.session.session import patched
from pytest_udftorch.watch.profile import report

pytest.importorskip("triton")

INF = float("inf")


def truth(values: np.ndarray) -> dict[str, float]:
    """Extremes and special values of float32 numbers, by their encodings."""
    size = values.view(np.uint32) & 0x7FFFFFFF
    numbers = values[~np.isnan(values)].astype(np.float64)
    return {
        "min": numbers.min() if len(numbers) else INF,
        "max": numbers.max() if len(numbers) else -INF,
        "zero": int((size == 0).sum()),
        "subnormal": int(((size > 0) & (size < 1 << 23)).sum()),
        "pos_inf": int((values == INF).sum()),
        "neg_inf": int((values == -INF).sum()),
        "nan": int(np.isnan(values).sum()),
    }


def histogram(values: np.ndarray) -> np.ndarray:
    x = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    counts = np.zeros((2, layout.HIST_BINS), np.uint64)
    bins = np.frexp(np.abs(x))[1] - 1 + layout.HIST_OFFSET
    np.add.at(counts, (np.signbit(x).astype(int), bins), 1)
    return counts


def numbers(count: int, kind: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = (random.standard_normal(count) * 40).astype(np.float32)
    if kind == "hostile":
        special = [0.0, -0.0, INF, -INF, np.nan, 1e-42, -3e-40, 1e-45, 2.0**-126, 3.4e38, -3.4e38]
        x[random.permutation(count)[: len(special)]] = special[:count]
    if kind == "any encoding":
        x = random.integers(0, 1 << 32, count, np.uint32).view(np.float32)
    if kind == "nan":
        x[:] = np.nan
    return x


#: Kind, elements, elements of a program, programs of which one enters the histograms.
CASES = [
    ("plain", 700, 512, 1),
    ("hostile", 1000, 1024, 1),
    ("hostile", 100, 32, 1),
    ("hostile", 1, 16, 1),
    ("any encoding", 2000, 512, 2),
    ("nan", 20, 16, 1),
]


@pytest.fixture(scope="module")
def slots(tmp_path_factory):
    """The slots that the kernels' code filled, and what it was given."""
    folder = tmp_path_factory.mktemp("counting")
    given = {}
    for i, (kind, count, block, stride) in enumerate([*CASES, *CASES]):
        x, z = numbers(count, kind), numbers(count, kind, 1)
        with np.errstate(all="ignore"):
            y = np.power(np.abs(x), z) if i >= len(CASES) else np.exp(x)
        given |= {f"x{i}": x, f"y{i}": y, f"settings{i}": np.array([block, stride])}
        if i >= len(CASES):
            given[f"z{i}"] = z
    np.savez(folder / "cases.npz", **given)
    probe = Path(__file__).parent / "counting_probe.py"
    subprocess.run(
        [sys.executable, str(probe), str(folder / "cases.npz"), str(folder / "slots.npz")],
        check=True,
    )
    with np.load(folder / "slots.npz") as found:
        return given, dict(found)


def row(kernel: str = "softplus", functions: str = "log1p", **given) -> CounterRow:
    return CounterRow(0, kernel, frozenset(functions.split()), 0, 1, 0, 0, None, **given)


@pytest.mark.parametrize("number", range(2 * len(CASES)))
def test_the_code_in_kernels_counts_what_is_there(slots, number):
    given, found = slots
    x, y = given[f"x{number}"], given[f"y{number}"]
    inputs = np.concatenate([x, given[f"z{number}"]]) if number >= len(CASES) else x
    block, stride = given[f"settings{number}"]
    cells, operators = row().records(found[f"slots{number}"], clock=1000)
    (cell,) = cells
    assert operators["calls"].tolist() == [2]
    assert (cell["calls"], cell["elements"]) == (2, 2 * len(x))
    for side, values in (("in", inputs), ("out", y)):
        want = truth(values)
        for name in ("min", "max"):
            assert cell[f"{side}_{name}"] == want[name]
        for name in layout.SPECIALS:
            assert cell[f"{side}_{name}"] == 2 * want[name], name
    # Whole programs enter the histograms, the first one always.
    sampled = np.arange(len(x)) // block % stride == 0
    assert cell["hist_elements"] == 2 * sampled.sum()
    parts = [x, given[f"z{number}"]] if number >= len(CASES) else [x]
    wanted = sum(histogram(part[sampled]) for part in parts)
    assert np.array_equal(cell["hist_in"], 2 * wanted)
    assert np.array_equal(cell["hist_out"], 2 * histogram(y[sampled]))
    blocks = [slice(at, at + block) for at in range(0, len(x), block)]
    for name, kinds in (("nan", ["nan"]), ("inf", ["pos_inf", "neg_inf"]),
                        ("subnormal", ["subnormal"])):  # fmt: skip
        made = any(
            sum(truth(y[b])[k] for k in kinds)
            and not sum(truth(part[b])[k] for part in parts for k in kinds)
            for b in blocks
        )
        assert cell[f"made_{name}_ns"] == (1123 if made else 0), name


def test_an_element_more_is_noticed(slots):
    """The comparison above can fail."""
    given, found = slots
    words = found["slots1"].copy()
    words[1, cuda_counters.IN + 2] += 1
    (cell,), _ = row().records(words, clock=0)
    assert cell["in_zero"] != 2 * truth(given["x1"])["zero"]


def test_every_float_comes_back_from_its_place_in_the_order():
    random = np.random.default_rng(0)
    bits = np.concatenate(
        [random.integers(0, 1 << 32, 5000, np.uint32),
         np.array([0, 1, 1 << 31, (1 << 31) + 1, 0x7F800000, 0xFF800000, 0x007FFFFF], np.uint32)]
    )  # fmt: skip
    values = bits.view(np.float32)
    bits, values = bits[~np.isnan(values)], values[~np.isnan(values)]
    keys = bits.view(np.int32) ^ ((bits.view(np.int32) >> 31) & 0x7FFFFFFF)
    for key, value in zip(keys.tolist(), values.astype(np.float64).tolist(), strict=True):
        got = cuda_counters._value(key)
        assert (got, np.signbit(got)) == (value, np.signbit(value))
    order = np.argsort(keys, kind="stable")
    assert (np.diff(values[order].astype(np.float64)) >= 0).all()


#: What each formula and each kernel over rows calls, slot by slot: the function, how often on
#: each element, and whether on each line instead.
CALLS = {
    **{name: [(name, 1, False)] for name in FUNCTIONS},
    "sigmoid": [("exp", 1, False)],
    "silu": [("exp", 1, False)],
    "reciprocal": [],
    "elu": [("expm1", 1, False)],
    "elu_of_ones": [("expm1", 1, False)],
    "celu": [("expm1", 1, False)],
    "gelu_erf": [("erf", 1, False)],
    "gelu_tanh": [("tanh", 1, False)],
    "softplus": [("exp", 1, False), ("log1p", 1, False)],
    "softplus_of_one": [("exp", 1, False), ("log1p", 1, False)],
    "mish": [("exp", 1, False), ("log1p", 1, False), ("tanh", 1, False)],
    "logsigmoid": [("exp", 1, False), ("log1p", 1, False)],
    "silu_backward": [("exp", 1, False)],
    "elu_backward_input": [("exp", 1, False)],
    "elu_backward_result": [],
    "gelu_backward_erf": [("erf", 1, False), ("exp", 1, False)],
    "gelu_backward_tanh": [("tanh", 1, False)],
    "softplus_backward": [("exp", 1, False)],
    "mish_backward": [("exp", 2, False), ("log1p", 1, False), ("tanh", 1, False)],
    "logsigmoid_backward": [("exp", 1, False)],
    "logit": [("log", 1, False)],
    "logit_clamped": [("log", 1, False)],
    "sinc": [("sin", 1, False)],
    "logaddexp": [("exp", 1, False), ("log1p", 1, False)],
    "logaddexp2": [("exp2", 1, False), ("log1p", 1, False)],
    "xlogy": [("log", 1, False)],
    "xlog1py": [("log1p", 1, False)],
    "glu": [("exp", 1, False)],
    "glu_backward_value": [("exp", 1, False)],
    "glu_backward_gate": [("exp", 1, False)],
    "binary_cross_entropy": [("log", 1, False), ("log1p", 1, False)],
    "attention_forward": [("exp", 1, False), ("log", 1, True)],
    "attention_queries": [("exp", 1, False)],
    "attention_keys": [("exp", 1, False)],
    "softmax_rows": [("exp", 1, False)],
    "log_softmax_rows": [("exp", 1, False), ("log", 1, True)],
    "softmax_tiles": [("exp", 2, False)],
    "log_softmax_tiles": [("exp", 1, False), ("log", 1, True)],
    "log_softmax_backward_rows": [("exp", 1, False)],
    "log_softmax_backward_tiles": [("exp", 1, False)],
    "alignments": [("exp", 3, False), ("log", 1, False)],
    "alignments_backward": [("exp", 4, False), ("log", 1, False)],
    "cauchy_variates": [("tan", 1, False)],
    "digamma": [("tan", 1, False), ("log", 1, False)],
    "erfinv": [("log1p", 1, False), ("erfc", 2, False), ("exp", 2, False), ("erf", 1, False)],
    "exp_times": [("exp", 1, False)],
    "exponential_variates": [("log", 1, False)],
    "geometric_variates": [("log", 1, False)],
    "gru_cell": [("exp", 2, False), ("tanh", 1, False)],
    "lgamma": [("log1p", 1, False), ("log", 2, False), ("sin", 1, False)],
    "log_normal_variates": [
        ("log", 1, False),
        ("cos", 1, False),
        ("sin", 1, False),
        ("exp", 2, False),
    ],
    "lstm_cell": [("exp", 3, False), ("tanh", 2, False)],
    "normal_variates": [("log", 1, False), ("cos", 1, False), ("sin", 1, False)],
    "special_entr": [("log", 1, False)],
    "special_erfcx": [("exp", 1, False)],
    "special_log_ndtr": [("erfc", 1, False), ("log", 1, False), ("log1p", 1, False)],
    "special_ndtri": [("log", 3, False), ("erfc", 2, False), ("exp", 2, False), ("erf", 1, False)],
    "trigamma": [("sin", 1, False)],
}


@pytest.mark.parametrize("kernel", CALLS)
def test_a_row_knows_the_functions_of_its_kernel(kernel):
    found = [(c.function, c.times, c.per_line) for c in calls.calls(kernel)]
    assert found == CALLS[kernel]


def test_every_formula_and_kernel_of_an_operator_has_a_row_and_is_compiled():
    from pytest_udftorch.swap.cuda import alignment_kernels, cells, flash, philox
    from pytest_udftorch.swap.cuda import kernels as cuda_kernels

    used = {kernel for op in table.OPERATORS for kernel in op.kernels}
    assert used | {"reciprocal", "celu"} == set(CALLS)
    for formula in calls.FORMULAS:
        assert getattr(cuda_kernels, formula).fn.__code__ is calls.FORMULAS[formula].__code__
    for kernel in used - set(calls.FORMULAS):
        names = kernel, kernel.removeprefix("log_")
        modules = flash, cuda_kernels, cells, philox, alignment_kernels
        assert any(hasattr(module, name) for module in modules for name in names)


def test_kernels_over_rows_call_what_the_table_states():
    """One kernel is softmax and log_softmax; only the former has a second pass over exp."""
    from pytest_udftorch.swap.cuda import kernels as cuda_kernels

    tree = ast.parse(inspect.getsource(cuda_kernels))
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name.endswith(("_rows", "_tiles")):
            names = [n.func.id for n in ast.walk(function)
                     if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]  # fmt: skip
            exps = [call.times for call in calls.calls(function.name) if call.function == "exp"]
            assert [names.count("_exp")] == exps, function.name
            assert not {f"_{name}" for name in FUNCTIONS if name != "exp"} & set(names)


def test_an_operator_takes_only_formulas_that_it_names():
    scalars = {"softplus_backward": [(1, 20)], "softplus": [(), (2,)], "elu": [(), (2,)],
               "elu_backward": [(1, 1, 1, True), (1, 1, 1, False)],
               "logit": [(), (1e-3,)]}  # fmt: skip
    for op in table.POINTWISE:
        calls = [op.formula(*given)[0] for given in scalars.get(op.name, [()])]
        if op.name.startswith("gelu"):
            calls += [op.formula(approximate="tanh")[0]]
        assert set(calls) == set(op.kernels), op.name


@pytest.mark.parametrize(
    ("applied", "stock"),
    [
        (("sigmoid", 0, 0, 0), torch.sigmoid),
        (("reciprocal", 0, 0, 0), torch.reciprocal),
        (("softplus", 1.3, 5, 0), lambda x: F.softplus(x, 1.3, 5)),
        (("celu", 3, 1 / 3, 0), lambda x: F.celu(x, 3.0)),
        (("gelu_tanh", 0, 0, 0), lambda x: F.gelu(x, approximate="tanh")),
        (("logsigmoid", 0, 0, 0), F.logsigmoid),
    ],
)
def test_a_formula_evaluated_is_the_operator(applied, stock):
    class Ops:
        truediv, le, gt, fma = (
            torch.div,
            torch.le,
            torch.gt,
            staticmethod(lambda a, b, c: a * b + c),
        )

        def __getattr__(self, name):
            return getattr(torch, name)

    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    x = x[x != 0]
    got = calls.evaluate(applied, Ops(), lambda v: torch.tensor(v, dtype=torch.float64), x)
    torch.testing.assert_close(got, stock(x), rtol=1e-14, atol=1e-15)
    wrong = calls.evaluate(applied, Ops(), lambda v: torch.tensor(v * 1.01 + 0.01), x)
    assert not torch.allclose(wrong, stock(x), rtol=1e-14, atol=1e-15)


# Where a thread is ------------------------------------------------------------------------


def test_a_launch_knows_the_module_and_the_stage():
    cells = runtime().cells
    found = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            found.append(cells.place())
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            found.append(cells.place())
            return grad

    class Layer(torch.nn.Module):
        def forward(self, x):
            return Probe.apply(x)

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Layer())
    with patched("corem", functions=("exp",), profile=True):
        model(torch.ones(1, 3)).sum().backward()
        outside = cells.place()
    places = [(cells.string(place >> 2), layout.STAGES[place & 3]) for place in (*found, outside)]
    assert places == [("Sequential.1", "forward"), ("Sequential.1", "backward"), ("", "forward")]


# Rows without a GPU --------------------------------------------------------------------------


def test_without_a_gpu_there_is_nothing_to_read():
    fresh = Counters()
    assert fresh.row(0, "exp", frozenset({"exp"}), "exp") is None  # nobody began to count
    fresh.start(1)
    cells, operators = fresh.read()
    assert len(cells) == len(operators) == 0
    assert cells.dtype == layout.CELL
    assert operators.dtype == layout.OPERATOR
    assert not counters.active


def test_a_forked_process_begins_without_rows(monkeypatch):
    fresh = Counters()
    fresh._rows["a"] = row()
    monkeypatch.setattr(cuda_counters.os, "getpid", lambda: -1)
    assert len(fresh.read()[0]) == 0
    fresh.start(1)
    assert fresh._rows == {}
    assert fresh._pid == -1


def both_devices() -> Profile:
    """exp on both devices in one context, and its first infinity on the GPU."""
    strings = layout.StringTable()
    slot = cuda_counters.empty_slot(1)
    slot[:3] = 5, 500, 0
    slot[cuda_counters.IN : cuda_counters.IN + 2] = 0x3F800000, 0x42C80000  # 1, 100
    slot[cuda_counters.OUT : cuda_counters.OUT + 2] = 0x40000000, 0x7F800000
    slot[cuda_counters.OUT + 4] = 3
    slot[cuda_counters.MADE + 1] = 10
    operator, module = strings.id("aten::exp"), strings.id("layer")
    gpu = CounterRow(0, "exp", frozenset({"exp"}), operator, module << 2 | 1, 0, 0, None)
    cells, operators = gpu.records(slot[None], clock=1)
    mine, ours = cells.copy(), operators.copy()
    for rows in (mine, ours):
        rows["device"] = 0
        rows["calls"] = 2
    mine["elements"], mine["in_max"], mine["out_max"] = 7, 2.0, 8.0
    mine["out_pos_inf"] = mine["made_inf_ns"] = 0
    clocks = {"monotonic_ns": 0, "realtime_ns": 0}
    return Profile.from_arrays(
        strings, {"library": "corem", "clocks": clocks, "stride": 1},
        cells=np.concatenate([cells, mine, cells]),
        operators=np.concatenate([operators, ours, operators]),
    )  # fmt: skip


def test_rows_of_one_context_add_up_and_devices_do_not():
    profile = both_devices()
    found = {r.key["device"]: r for r in profile.rows("function", "device")}
    assert {d: (r.calls, r.operator_calls, r.elements) for d, r in found.items()} == {
        "cpu": (2, 2, 7),
        "cuda": (10, 10, 1000),
    }
    assert found["cuda"].limits("in") == (1.0, 100.0)
    assert found["cpu"].limits("out") == (2.0, 8.0)
    (whole,) = profile.rows("function")
    assert (whole.calls, whole.operator_calls, whole.elements) == (12, 12, 1007)
    assert len(add_cells(profile.cells)) == 2


def test_what_ran_on_a_gpu_says_so_in_every_view(tmp_path):
    profile = both_devices()
    for by, names in (("function", ("exp", "exp cuda")), ("layer", ("layer", "layer cuda")),
                      ("operator", ("aten::exp", "aten::exp cuda"))):  # fmt: skip
        first = [line.split("  ")[0].strip() for line in profile.table(by).splitlines()[2:]]
        for name in names:
            assert first.count(name) == 1, profile.table(by)
    assert [r.name for r in profile.layers()] == ["layer exp", "layer exp cuda"]
    cells = profile.document()["cells"]
    assert [c["device"] for c in cells] == ["cpu", "cuda"]
    assert profile.document()["operators"][1]["device"] == "cuda"
    assert list(profile.to_pandas()["device"]) == ["cpu", "cuda"]
    assert "exp cuda" in report.profiles_html([profile], title="devices")
    first = profile.first("inf")
    assert (first.device, first.time_ns) == ("cuda", 11)
    assert "(float32, cuda)" in str(first)
    profile.save(tmp_path / "both.bin")
    loaded = Profile.load(tmp_path / "both.bin")
    assert loaded.document()["cells"] == cells


def test_a_device_that_nobody_knows_is_damage(tmp_path):
    strings = layout.StringTable()
    cells = layout.empty_cells(1)
    cells["device"] = 2
    path = tmp_path / "profiled-x.bin"
    with record.ProfileWriter(path, strings, {"library": "corem"}) as writer:
        writer.cells(cells)
    with pytest.raises(ProfileFileError, match="device 2 is unknown"):
        record.read(path)


def test_the_cpu_is_the_device_of_what_libtorch_calls():
    with patched("corem", functions=("exp", "expm1"), profile=True) as session:
        F.elu(torch.ones(50))
        torch.exp(torch.ones(50))
    assert {r.key["device"] for r in session.profile.rows("device")} == {"cpu"}
