# SPDX-License-Identifier: Apache-2.0
"""What a profiled session counts, against the same counts by NumPy, and what it leaves alone."""

import inspect
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_udftorch import patched
from pytest_udftorch.errors import (
    NativeError,
    ProfileError,
    SessionBusyError,
    SessionStateError,
)
from pytest_udftorch.swap.counting import collection as collect
from pytest_udftorch.swap.counting import forks, modules
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout as fields
from pytest_udftorch.swap.records.profile import Profile
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.toolchain.shared_library import build_library

SOURCE = """
#include <math.h>
float e(float x) { return expf(x); }
float m(float x) { return expm1f(x); }
float l(float x) { return logf(x); }
float p(float x, float y) { return powf(x, y); }
float s(float x) { return sinf(x); }
float c(float x) { return cosf(x); }
double ed(double x) { return exp(x); }
double ld(double x) { return log(x); }
"""
NAMES = {
    "exp.float32": "e",
    "expm1.float32": "m",
    "log.float32": "l",
    "pow.float32": "p",
    "sin.float32": "s",
    "cos.float32": "c",
    "exp.float64": "ed",
    "log.float64": "ld",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The C library's functions, in every form, as a UDF library."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "u.c").write_text(SOURCE)
    tables = "".join(
        f'[functions.{f}]\nsource = "u.c"\nscalar = "{name}"\n' for f, name in NAMES.items()
    )
    (folder / "udf.toml").write_text(f'[library]\nname = "plain"\nversion = "1"\n{tables}')
    return folder


@pytest.fixture(autouse=True)
def _as_before():
    """Threads, slots and nn.Module are after each test as they were before it."""
    bound = binder()
    watched = [*bound.slots, *bound.parallel_slots]
    slots = bound.native.read(watched)
    call, threads = nn.Module.__call__, torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert nn.Module.__call__ is call
    for slot, old, new in zip(watched, slots, bound.native.read(watched), strict=True):
        assert new == old or new == bound.native.resolve(slot), slot
    assert forks.active.collector is None


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def truth(values: torch.Tensor) -> dict[str, float]:
    """Extremes and special values of a tensor, by their encodings."""
    array = values.detach().contiguous().numpy().ravel()
    kind = {np.dtype("f4"): "u4", np.dtype("f8"): "u8"}[array.dtype]
    digits = np.finfo(array.dtype).nmant
    magnitude = array.view(kind) << 1 >> 1
    numbers = array[~np.isnan(array)].astype(np.float64)
    return {
        "min": numbers.min() if len(numbers) else np.inf,
        "max": numbers.max() if len(numbers) else -np.inf,
        "zero": int((magnitude == 0).sum()),
        "subnormal": int(((magnitude > 0) & (magnitude < 1 << digits)).sum()),
        "pos_inf": int((array == np.inf).sum()),
        "neg_inf": int((array == -np.inf).sum()),
        "nan": int(np.isnan(array).sum()),
    }


def seen(cell, side: str) -> dict[str, float]:
    return {name: cell[f"{side}_{name}"].item() for name in ("min", "max", *fields.SPECIALS)}


def whole(profile: Profile, function: str = "exp"):
    """Everything that a function did, as one cell."""
    (row,) = [r for r in profile.rows("function") if r.key["function"] == function]
    return row.cell


def hostile(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Values of every kind: special ones, subnormals, and those that overflow in exp."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dtype=dtype, generator=generator) * 40
    tiny = torch.finfo(dtype).smallest_normal
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, tiny / 8, -tiny / 4, tiny, 95.0, -95.0]
    special += [750.0, -742.0]
    at = torch.randperm(count, generator=generator)[: 3 * len(special)]
    x[at] = torch.tensor((special * 3)[: len(at)], dtype=dtype)
    return x


LAYOUTS = {
    "contiguous": lambda x: torch.exp(x),
    "in place": lambda x: x.exp_(),
    "strided": lambda x: torch.exp(torch.stack((x, x), -1)[..., 0]),
}


@pytest.mark.parametrize("library_name", ["plain", "std"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [1, 15, 16, 33, 1024, 5000, 70001])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_are_those_of_numpy(library, library_name, dtype, count, layout):
    """Array and scalar forms: every element once, in whatever form it came."""
    x = hostile(dtype, count)
    given = x.clone()
    with patched(library if library_name == "plain" else "std", ("exp",), profile=True) as s:
        y = LAYOUTS[layout](x)
    cell = whole(s.profile)
    assert cell["elements"] == count
    assert seen(cell, "in") == truth(given)
    assert seen(cell, "out") == truth(y)


@pytest.mark.parametrize("library_name", ["plain", "std"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_vector_forms_at_any_number_of_threads(library, library_name, threads):
    torch.set_num_threads(threads)
    x = hostile(torch.float32, 300_007, seed=threads)
    which = library if library_name == "plain" else "std"
    with patched(which, ("exp",), profile=True) as s:
        torch.sigmoid(x)
    cell = whole(s.profile)
    assert cell["elements"] == len(x)
    assert seen(cell, "in") == truth(-x)
    (row,) = s.profile.rows("operator")
    assert row.key["operator"] == "aten::sigmoid"
    assert row.operator_calls == 1
    forms = {r.key["form"] for r in s.profile.rows("form")}
    assert "scalar" in forms
    assert forms & {"v8", "v16"} or torch.backends.cpu.get_cpu_capability() == "DEFAULT"


def test_functions_of_two_arguments(library):
    x, y = torch.linspace(0.5, 3.0, 1003), torch.linspace(-2.0, 7.5, 1003)
    for which in (library, "std"):
        with patched(which, ("pow",), profile=True) as s:
            z = torch.pow(x, y)
        cell = whole(s.profile, "pow")
        assert cell["elements"] == 1003
        assert (cell["in_min"], cell["in_max"]) == (-2.0, 7.5)
        assert (cell["out_min"], cell["out_max"]) == (z.min().item(), z.max().item())


def test_joint_sine_and_cosine(library):
    angle = torch.linspace(-2.0, 3.0, 101)
    with patched(library, ("sin", "cos"), profile=True) as s:
        torch.polar(torch.ones(101), angle)
    assert whole(s.profile, "sin")["elements"] == whole(s.profile, "cos")["elements"] == 101


@pytest.mark.parametrize("length", [3, 10, 16, 50, 333])
@pytest.mark.parametrize("threads", [1, 2])
def test_padding_of_rows_is_not_counted(library, length, threads):
    """log_softmax fills the last vector of a row up; log would make -inf of the zeros."""
    torch.set_num_threads(threads)
    x = torch.randn(777, length, generator=torch.Generator().manual_seed(1)) * 10
    with patched(library, ("exp", "log"), profile=True) as s:
        y = torch.log_softmax(x, -1)
        torch.softmax(x, -1)
        torch.ops.aten._log_softmax_backward_data(x, y, -1, torch.float32)
    shifted = x - x.max(-1, keepdim=True).values
    rows = {
        (r.key["function"], r.key["operator"]): r for r in s.profile.rows("function", "operator")
    }
    for operator, given in (
        ("aten::_log_softmax", shifted),
        ("aten::_softmax", shifted),
        ("aten::_log_softmax_backward_data", y),
    ):
        cell = rows["exp", operator].cell
        assert cell["elements"] == x.numel()
        assert seen(cell, "in") == truth(given)
    log = rows["log", "aten::_log_softmax"].cell
    assert log["elements"] == len(x)
    assert log["in_min"] >= 1
    assert log["made_inf_ns"] == 0


def exponents(values: torch.Tensor) -> np.ndarray:
    """The histogram, by frexp."""
    array = values.detach().numpy().astype(np.float64).ravel()
    array = array[np.isfinite(array) & (array != 0)]
    found = np.zeros((2, fields.HIST_BINS), np.int64)
    where = np.frexp(np.abs(array))[1] - 1 + fields.HIST_OFFSET
    np.add.at(found, ((array < 0).astype(int), np.clip(where, 0, fields.HIST_BINS - 1)), 1)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("operator", [torch.exp, torch.sigmoid], ids=["array", "vector"])
def test_histograms_at_stride_1_hold_every_value(library, dtype, operator):
    x = hostile(dtype, 5003)
    with patched(library, ("exp",), profile=True, profile_stride=1) as s:
        operator(x)
    cell = whole(s.profile)
    given = x if operator is torch.exp else -x
    assert cell["hist_elements"] == cell["elements"] == 5003
    assert np.array_equal(cell["hist_in"], exponents(given))
    with torch.no_grad():
        stock = exponents(torch.exp(given))
    assert abs(cell["hist_out"].astype(int) - stock).sum() <= 4  # neighbours of powers of two


def test_histograms_are_sampled_evenly(library):
    x = torch.linspace(1.0, 3.0, 1 << 20)
    with patched(library, ("exp",), profile=True, profile_stride=16) as s:
        torch.exp(x)
    cell = whole(s.profile)
    assert 0.9 < cell["hist_elements"] / (len(x) / 16) < 1.1
    below = cell["hist_in"][0][fields.HIST_OFFSET] / cell["hist_elements"]
    assert abs(below - 0.5) < 0.01


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 33), nn.ELU(), nn.Linear(33, 20), nn.ELU())
        self.classifier = nn.Sequential(nn.Linear(20, 10), nn.LogSoftmax(dim=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x))


def train(steps: int, seed: int = 0, optimizer: type = torch.optim.SGD) -> tuple[bytes, nn.Module]:
    torch.manual_seed(seed)
    model = Small()
    tuned = optimizer(model.parameters(), 0.1)
    x, y = torch.randn(50, 8), torch.arange(50) % 10
    for _ in range(steps):
        tuned.zero_grad()
        F.nll_loss(model(x), y).backward()
        tuned.step()
    return b"".join(bits(p) for p in model.parameters()), model


def test_layers_stages_and_operators(library):
    with patched(library, ("exp", "expm1", "log"), profile=True) as s:
        train(3)
    rows = {
        (r.key["module"], r.key["stage"], r.key["operator"]): r
        for r in s.profile.rows("module", "stage", "operator")
    }
    assert {key: r.operator_calls for key, r in rows.items()} == {
        ("", "forward", "aten::normal_"): 1,  # of the inputs
        ("Small.features.1", "forward", "aten::elu"): 3,
        ("Small.features.3", "forward", "aten::elu"): 3,
        ("Small.features.1", "backward", "aten::elu_backward"): 3,
        ("Small.features.3", "backward", "aten::elu_backward"): 3,
        ("Small.classifier.1", "forward", "aten::_log_softmax"): 3,
        ("Small.classifier.1", "backward", "aten::_log_softmax_backward_data"): 3,
    }
    # Behind the last whole vectors elu takes the function where x <= 0 only.
    assert (
        3 * 1600 < rows["Small.features.1", "backward", "aten::elu_backward"].elements <= 3 * 1650
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_what_softmax_passes_is_counted_in_stock_functions(dtype, threads, causal):
    """Zeros and negative infinities, which generated code counts by itself."""
    torch.set_num_threads(threads)
    for length in (64, 61):
        x = torch.randn(40, length, length, dtype=dtype) * 5
        if causal:
            x = x + torch.full((length, length), -torch.inf, dtype=dtype).triu(1)
        for depth in ("counters", "events"):
            with patched("std", ("exp",), profile=depth) as s:
                torch.softmax(x, -1)
            shifted = x - x.max(-1, keepdim=True).values
            cell = whole(s.profile)
            assert cell["elements"] == x.numel()
            assert seen(cell, "in") == truth(shifted)
            out = truth(torch.exp(shifted))
            assert seen(cell, "out")["zero"] == out["zero"]
            assert (cell["out_min"], cell["out_max"]) == pytest.approx((out["min"], 1.0), rel=1e-6)
        (event,) = s.profile.events
        assert event["elements"] == x.numel()
        assert (event["in_min"], event["in_max"]) == (shifted.min().item(), 0.0)
        flags = fields.EVENT_FLAGS
        assert bool(event["flags"] >> flags.index("in_inf") & 1) == causal
        assert event["flags"] >> flags.index("in_zero") & 1


def test_an_argument_beyond_what_passes_is_looked_at(library):
    """Arguments of which exp's results are subnormal, zero or infinite, behind ordinary ones."""
    x = torch.linspace(-80.0, 80.0, 4096)
    with patched(library, ("exp",), profile=True):  # of which every result is looked at
        torch.ops.aten.elu_backward(x, 1.0, 1.0, 1.0, False, x)
    for value, kind in ((-100.0, "subnormal"), (-120.0, "zero"), (100.0, "pos_inf")):
        y = x.clone()
        y[1000] = y[2000] = value  # the second is no new extreme
        for order in (y, torch.cat((y, x)), torch.cat((x, y))):
            with patched("std", ("exp",), profile=True) as s:
                torch.ops.aten.elu_backward(order, 1.0, 1.0, 1.0, False, order)
            cell = whole(s.profile)
            assert cell[f"out_{kind}"] == 2
            assert (cell["in_min"], cell["in_max"]) == (order.min().item(), order.max().item())


def test_zeros_are_counted_from_the_first_one_on(library):
    """exp is looked at in another way once a zero has come up in its context."""
    none = -torch.rand(4096) - 0.5
    zeros = none.clone()
    zeros[100:2000:37], zeros[200:1000:5] = 0.0, -0.0
    both = zeros.clone()
    both[::11] = -torch.inf
    given = (none, zeros, none, both)
    with patched(library, profile=True) as s:
        for x in given:
            torch.ops.aten.elu_backward(x, 1.0, 1.0, 1.0, False, x)
    cell = whole(s.profile)
    assert cell["in_zero"] == sum(int((x == 0).sum()) for x in given)
    assert cell["in_neg_inf"] == cell["out_zero"] == int(torch.isinf(both).sum())


def test_an_operator_outside_of_the_list_is_recognised(library):
    """binary_cross_entropy calls log from a kernel of its own, which no stub leads to."""
    x, y = torch.rand(100, requires_grad=True), torch.rand(100)
    with patched(library, ("log", "exp"), profile=True) as s:
        for _ in range(5):
            F.binary_cross_entropy(x, y).backward()
        torch.exp(torch.ones(3))
    rows = {r.key["operator"]: r for r in s.profile.rows("operator")}
    assert set(rows) == {"aten::binary_cross_entropy", "aten::exp"}
    assert rows["aten::binary_cross_entropy"].elements == 5 * 100
    assert rows["aten::binary_cross_entropy"].operator_calls == 5
    assert rows["aten::exp"].operator_calls == 1


class Recomputed(nn.Module):
    """Runs a layer's forward pass a second time, inside the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.ELU(), nn.Sequential(nn.ELU(), nn.ELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.second, self.first(x), use_reentrant=False)


def test_backward_of_recomputed_layers(library):
    model, x = Recomputed(), torch.randn(64, requires_grad=True)
    with patched(library, ("exp", "expm1"), profile=True) as s:
        model(x).sum().backward()
    found = {
        (r.key["module"], r.key["stage"], r.key["operator"]): r.operator_calls
        for r in s.profile.rows("module", "stage", "operator")
    }
    assert found == {
        ("Recomputed.first", "forward", "aten::elu"): 1,
        ("Recomputed.second.0", "forward", "aten::elu"): 1,
        ("Recomputed.second.1", "forward", "aten::elu"): 1,
        ("Recomputed.second.0", "backward", "aten::elu"): 1,  # the second's argument
        ("Recomputed.second.0", "backward", "aten::elu_backward"): 1,
        ("Recomputed.second.1", "backward", "aten::elu_backward"): 1,
        ("Recomputed.first", "backward", "aten::elu_backward"): 1,
    }


def test_a_gradient_taken_inside_a_module_belongs_to_its_own_layer(library):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ELU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(self.inner(x).sum(), x)[0]

    with patched(library, ("exp",), profile=True) as s:
        Outer()(torch.randn(40, requires_grad=True))
    (row,) = s.profile.rows("module", "stage")
    assert (row.key["module"], row.key["stage"]) == ("Outer.inner", "backward")


def test_modules_are_named_only_while_a_session_watches_them(library, monkeypatch):
    asked = []
    find = modules.ModuleNames._find

    def counted(self, module, caller):
        asked.append(type(module).__name__)
        return find(self, module, caller)

    monkeypatch.setattr(modules.ModuleNames, "_find", counted)
    model = Small()
    with patched(library, ("exp",), profile=True):
        model(torch.ones(2, 8))
        model(torch.ones(2, 8))
    assert len(asked) == 9  # once each
    Small()(torch.ones(2, 8))
    assert len(asked) == 9


@pytest.mark.parametrize("depth", ["counters", "timed"])
def test_memory_does_not_grow_with_the_number_of_steps(library, depth):
    """What the runtime has allocated itself, and what it hands out."""
    with patched(library, ("exp", "expm1", "log"), profile=depth) as s:
        memory = binder().native.cells.memory
        train(3)
        few, cells = memory(), len(s.collector.cells())
        train(12)
        assert (memory(), len(s.collector.cells())) == (few, cells)
        torch.tanh(torch.ones(3))  # not watched
        assert memory() == few
        type(f"New{depth}", (nn.Sigmoid,), {})()(torch.ones(3))  # a context of its own
        assert memory() > few


class Powers(torch.optim.SGD):
    """An optimizer that uses a function."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(torch.exp(p.data), alpha=0.0)


def test_optimizer_is_a_stage_of_its_own(library):
    with patched(library, ("exp",), profile=True) as s:
        train(2, optimizer=Powers)
        torch.exp(torch.ones(3))
    stages = {r.key["stage"]: r for r in s.profile.rows("stage", "operator") if "exp" in r.name}
    assert stages["optimizer"].operator_calls == 2 * 6
    assert stages["forward"].elements == 3


@pytest.mark.parametrize("depth", ["counters", "timed", "events"])
@pytest.mark.parametrize("library_name", ["plain", "std"])
def test_results_are_the_same_bits(library, depth, library_name):
    which = library if library_name == "plain" else "std"
    with patched(which):
        stock, _ = train(3)
    with patched(which, profile=depth):
        watched, _ = train(3)
    assert watched == stock
    assert train(3, seed=1)[0] != stock  # a comparison that can fail


def test_the_first_layer_that_makes_an_infinity(library):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Identity())
    overflow = nn.Module()
    with patched(library, ("exp", "log"), profile=True) as s:
        model(torch.ones(2, 4))
        assert s.profile.first("inf") is None
        model[1](torch.full((2, 40), -200.0))
        torch.log(torch.zeros(20))
    line = inspect.currentframe().f_lineno - 2
    del overflow
    first = s.profile.first("inf")
    assert first is not None
    assert (first.module, first.function, first.operator) == (
        "Sequential.1",
        "exp",
        "aten::sigmoid",
    )
    text = "model[1](torch.full((2, 40), -200.0))"
    assert first.line.endswith(
        f"test_collection.py:{line}, in test_the_first_layer_that_makes_an_infinity: {text}"
    )
    assert str(first).endswith(f", at {first.line}")


def test_a_first_special_value_keeps_its_line_in_the_file(library, tmp_path):
    x = torch.full((8, 9), 200.0, requires_grad=True)
    with patched(library, ("exp", "log"), profile=True, profile_out=tmp_path) as s:
        torch.full((64,), -1.0).log()
        torch.full((1 << 17,), 1e30).exp()  # by several threads
        taken = s._collector.take("a test")
        torch.log(x - 200).sum().backward()
    for profile in (taken, s.profile, Profile.load(tmp_path)):
        assert profile.first("nan").line.endswith(": torch.full((64,), -1.0).log()")
        assert "torch.full((1 << 17,), 1e30).exp()" in profile.first("inf").line
    assert s.profile.lines == Profile.load(tmp_path).lines
    assert any(": torch.log(x - 200).sum()" in line for line in s.profile.lines.values())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_no_lines_of_its_parent(library):
    with patched(library, ("log",), profile=True) as s:
        torch.full((64,), -1.0).log()
        assert s._collector._counting.cells.first_lines()
        child = os.fork()
        if not child:
            os._exit(len(s._collector._counting.cells.first_lines()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_no_operator_made_takes_no_line(library):
    with patched(library, ("exp",), profile=True) as s:
        s.build.scalar_function("exp")(1e30)
        torch.full((8,), 1e30).exp()
    assert s.profile.first("inf").operator == ""
    assert s.profile.first("inf").line == ""
    assert len(s.profile.lines) == 1


def test_nan_that_is_made_is_told_from_nan_that_is_passed_on(library):
    with patched(library, ("log",), profile=True) as s:
        torch.log(torch.full((64,), torch.nan))
        assert s.profile.first("nan") is None
        torch.log(torch.full((64,), -1.0))
    assert s.profile.first("nan") is not None
    assert whole(s.profile, "log")["in_nan"] == 64
    assert whole(s.profile, "log")["out_nan"] == 128


def test_flushing_subnormals_changes_no_count(library):
    x = hostile(torch.float32, 4099)
    with patched(library, ("exp",), profile=True) as s:
        assert torch.set_flush_denormal(True)
        try:
            torch.sigmoid(x)
            torch.exp(x)
        finally:
            torch.set_flush_denormal(False)
    rows = {r.key["operator"]: r.cell for r in s.profile.rows("operator")}
    mine = truth(x)
    # Negation is an operation and flushes: sigmoid's exp is given zeros.
    flushed = {**mine, "zero": mine["zero"] + mine["subnormal"], "subnormal": 0}
    assert seen(rows["aten::exp"], "in") == mine
    got = seen(rows["aten::sigmoid"], "in")
    assert got["zero"] + got["subnormal"] == flushed["zero"]
    assert (got["min"], got["max"], got["nan"]) == (-mine["max"], -mine["min"], mine["nan"])


def test_two_threads_with_two_models(library):
    def work(seed: int) -> None:
        train(4, seed)

    with patched(library, ("expm1",), profile=True) as s:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert {r.key["operator"] for r in s.profile.rows("operator")} == {"aten::elu"}
    assert sum(r.operator_calls for r in s.profile.rows("operator")) == 2 * 4 * 2
    layers = {r.key["module"].removeprefix("Small.") for r in s.profile.rows("module")}
    assert layers == {"features.1", "features.3"}


class Exponentials(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.exp(torch.full((5,), float(index)))


def test_workers_of_a_data_loader(library):
    loader = torch.utils.data.DataLoader(
        Exponentials(), batch_size=3, num_workers=2, multiprocessing_context="fork"
    )
    with patched(library, ("exp",), profile=True) as s:
        assert len(list(loader)) == 4
        torch.exp(torch.full((7,), 20.0))
    cell = whole(s.profile)
    assert cell["elements"] == 12 * 5 + 7
    assert (cell["in_min"], cell["in_max"]) == (0.0, 20.0)
    assert len(s.profile.processes) == 3


class Killed(Exponentials):
    """Its worker is killed as soon as the folder holds what the first items counted."""

    def __getitem__(self, at):
        if at == 3:
            while not any(p.stat().st_size and record.read(p).cells for p in self.own()):
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(at)

    def own(self):
        return self.folder.glob(f"profiled-*{os.getpid()}*.bin")


def test_a_worker_that_is_killed_loses_no_count_it_had_written(
    library, tmp_path, monkeypatch, request
):
    monkeypatch.setattr(collect, "_SAVE_S", 0.02)
    data = Killed()
    data.folder = tmp_path
    # Numbers: a tensor would be fetched from the worker, which may be dead by then.
    loader = torch.utils.data.DataLoader(
        data, batch_size=1, num_workers=1, multiprocessing_context="fork", collate_fn=len
    )
    with patched(library, ("exp",), profile=True, profile_out=tmp_path) as s:
        iterator = iter(loader)
        # torch's handler would raise the error wherever the process is, also a second time.
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(signal.SIGCHLD, handler))
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            list(iterator)
        torch.exp(torch.ones(7))
    assert whole(s.profile)["elements"] in {7 + 5 * n for n in (1, 2, 3)}
    assert len(s.profile.processes) == 2


def test_a_forked_test_that_ends_at_once_keeps_what_was_taken(library):
    def test(collector):
        torch.exp(torch.ones(10))
        collector.take("test_it")
        torch.exp(torch.ones(5))
        collector.take("test_it (teardown)")
        os._exit(0)

    with patched(library, ("exp",), profile=True) as s:
        child = multiprocessing.get_context("fork").Process(target=test, args=(s.collector,))
        child.start()
        child.join()
    assert child.exitcode == 0
    assert whole(s.profile)["elements"] == 15


def test_a_forked_child_counts_from_zero(library):
    with patched(library, ("exp",), profile=True) as s:
        torch.exp(torch.ones(100))
        child = os.fork()
        if not child:
            code = 1
            try:
                torch.exp(torch.ones(10))
                code = int(s.collector.cells()["elements"].sum() != 10)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert whole(s.profile)["elements"] == 100


PROFILED_IN_A_CHILD = """
import os, sys
import torch
from pytest_udftorch import patched

with patched(sys.argv[1], ("exp",)):
    torch.exp(torch.ones(3))
child = os.fork()
if not child:
    with patched(sys.argv[1], ("exp",), profile=True) as s:
        torch.exp(torch.ones(10))
    os._exit(int(s.profile.rows("function")[0].elements != 10))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_profiles_where_the_parent_did_not(library):
    """The first profile of a process, after a fork that found the runtime loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROFILED_IN_A_CHILD, str(library)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_events_are_one_per_call_of_an_operator(library):
    torch.set_num_threads(2)
    x = torch.linspace(-3.0, 5.0, 200_003)
    with patched(library, ("exp",), profile="events") as s:
        for i in range(4):
            torch.sigmoid(x + i)
    events = s.profile.events
    assert len(events) == 4
    assert events["elements"].tolist() == [200_003] * 4
    for i, event in enumerate(events):
        given = -(x + i)
        assert (event["in_min"], event["in_max"]) == (given.min().item(), given.max().item())
        assert event["start_ns"] < event["end_ns"]
    assert (events["start_ns"][1:] >= events["end_ns"][:-1]).all()
    assert whole(s.profile)["elements"] == 4 * 200_003
    assert whole(s.profile)["in_max"] == 3.0


def test_events_that_find_no_room_are_counted(library, monkeypatch):
    monkeypatch.setattr(collect, "RING", 8)
    monkeypatch.setattr(collect, "_DRAIN_S", 3600.0)
    x = torch.ones(3)
    with patched(library, ("exp",), profile="events") as s:
        for _ in range(20):
            torch.exp(x)
    assert len(s.profile.events) == 8
    assert s.profile.notes == ("12 events were lost: the buffer overflowed.",)


def test_times_are_there_when_asked_for(library):
    x = torch.ones(100_000)
    with patched(library, ("exp",), profile="timed") as s:
        torch.sigmoid(x)
        torch.exp(x)
    for row in s.profile.rows("operator"):
        assert row.time_ns > 0
        assert row.operator_time_ns > 0
    with patched(library, ("exp",), profile=True) as s:
        torch.sigmoid(x)
    assert whole(s.profile)["time_ns"] == 0


def test_parts_add_up_to_the_whole(library, tmp_path):
    x = torch.ones(10)
    with patched(library, ("exp",), profile=True, profile_out=tmp_path) as s:
        torch.exp(x)
        first = s.collector.take("one")
        torch.exp(2 * x)
        second = s.collector.take("two")
        torch.exp(3 * x)
    assert [whole(p)["in_max"] for p in (first, second)] == [1.0, 2.0]
    assert whole(s.profile)["elements"] == 30
    assert whole(Profile.load(tmp_path))["elements"] == 30
    assert whole(Profile.load(tmp_path, scope="two"))["in_max"] == 2.0


@pytest.mark.parametrize("parts", [500, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("depth", ["counters", "events"])
def test_parts_are_taken_while_another_thread_counts(library, depth, parts):
    x, stop, done = torch.randn(64, 1024), threading.Event(), 0

    def work():
        nonlocal done
        while not stop.is_set():
            torch.softmax(x, 1)
            done += 1

    def elements(part: Profile) -> int:
        return sum(row.elements for row in part.rows("function"))

    thread = threading.Thread(target=work)
    counted = 0
    with patched(library, profile=depth) as session:
        torch.set_num_threads(1)
        thread.start()
        try:
            for _ in range(parts):
                counted += elements(session.collector.take(""))
        finally:
            stop.set()
            thread.join()
        counted += elements(session.collector.take(""))
    # What is counted between the reading of a part and the beginning of the next is in neither.
    assert 0 < counted <= done * x.numel()


def test_events_and_workers_reach_the_file(library, tmp_path):
    loader = torch.utils.data.DataLoader(
        Exponentials(), batch_size=3, num_workers=1, multiprocessing_context="fork"
    )
    with patched(library, ("exp",), profile="events", profile_out=tmp_path) as s:
        list(loader)
        torch.exp(torch.ones(4))
    found = Profile.load(tmp_path)
    assert whole(found)["elements"] == whole(s.profile)["elements"] == 64
    assert len(found.events) == 13


def test_a_compiled_model_is_attributed_as_a_whole(library):
    model = Small()
    whole_model = torch.compile(model, backend="aot_eager")
    with patched(library, ("exp", "expm1", "log"), profile=True) as s, torch.no_grad():
        compiled = whole_model(torch.ones(4, 8))
        plain = model(torch.ones(4, 8))
    assert bits(compiled) == bits(plain)
    layers = {r.key["module"]: r for r in s.profile.rows("module")}
    assert layers["Small"].operator_calls > 0
    assert {"Small.features.1", "Small.features.3", "Small.classifier.1"} < set(layers)


def test_watching_the_stock_functions_compiles_nothing_again():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    model = torch.compile(Small(), backend=counter)
    x = torch.ones(4, 8)
    with torch.no_grad():
        before = bits(model(x))
        with patched("std", ("expm1",), profile=True):
            model(x)
        assert bits(model(x)) == before
    assert counter.frame_count == 1


def test_one_profiled_session_at_a_time(library):
    with patched(library, ("exp",), profile=True) as outer:
        with (
            pytest.raises(SessionBusyError, match="open in this process"),
            patched("std", profile=True),
        ):
            pass
        with patched("std"):
            torch.exp(torch.ones(5))  # the stock function, which is not watched
        torch.exp(torch.ones(7))
    assert whole(outer.profile)["elements"] == 7


def test_nothing_called_is_nothing_counted(library):
    with patched(library, ("exp",), profile=True) as s:
        torch.ones(5).add_(1)
    assert len(s.profile.cells) == 0
    assert len(s.profile.operators) == 0


def test_everything_is_put_back_after_an_exception(library):
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    with patched(library, ("exp",), profile=True) as s:
        with pytest.raises(ZeroDivisionError):
            Bad()(torch.ones(1))
        torch.exp(torch.ones(3))
    (row,) = s.profile.rows("module")
    assert row.key["module"] == ""


def test_a_layer_has_one_name_however_many_models_are_alive(library):
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Identity(), nn.ELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.features(x)

    one, two, other = Small(), Small(), Other()
    with patched(library, ("expm1",), profile=True) as s:
        for model in (other, one, two, one):
            model(-torch.ones(2, 8))  # ELU takes expm1 of negative numbers
    layers = {r.key["layer"]: r.operator_calls for r in s.profile.rows("layer")}
    assert layers == {"Other.features.1": 1, "Small.features.1": 3, "Small.features.3": 3}


@pytest.mark.parametrize("bad", ["deep", "", 3])
def test_a_depth_that_does_not_exist(library, bad):
    with pytest.raises(ProfileError, match="counters"):
        patched(library, profile=bad)


def test_a_stride_that_does_not_exist(library):
    with pytest.raises(ProfileError, match="power of two"):
        patched(library, profile=True, profile_stride=3)
    with pytest.raises(ProfileError, match="profile=True"):
        patched(library, profile_stride=4)


def test_no_profile_where_none_was_asked_for(library):
    with patched(library, ("exp",)) as s, pytest.raises(SessionStateError, match="profile=True"):
        _ = s.profile


def test_an_observer_that_does_not_compile_says_why(library, tmp_path, monkeypatch):
    from pytest_udftorch.swap.counting import collection as collect
    from pytest_udftorch.swap.counting import observer
    from pytest_udftorch.swap.toolchain import torch_part

    broken = tmp_path / "observer.cpp"
    broken.write_text("#include <no/such/header.h>\n")
    stock = torch_part.native_file
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(collect, "load_observer", observer.load_observer.__wrapped__)
    monkeypatch.setattr(
        torch_part, "native_file", lambda name: broken if name == "observer.cpp" else stock(name)
    )
    with (
        pytest.raises(NativeError, match="no/such/header"),
        patched(library, ("exp",), profile=True),
    ):
        pass
    assert torch.equal(torch.exp(torch.zeros(3)), torch.ones(3))


def test_without_a_profile_the_build_is_the_ordinary_one(library):
    """Nothing of the instrumentation is in it, and it does not even know the runtime."""
    plain, watched = build_library(library), build_library(library, profiled=True)
    assert plain.build_id != watched.build_id
    assert b"udfprof" not in plain.path.read_bytes()
    assert b"udfprof" in watched.path.read_bytes()
    with patched(library) as s:
        assert s.build == plain


def test_records_have_the_layout_of_the_header(tmp_path):
    """The dtypes of records/layout.py against the compiler's view of udfprof.h."""
    from pytest_udftorch.swap.native.manifest import WATCHED
    from pytest_udftorch.swap.native.runtime import native_file

    pairs = {
        "cell_record": (
            fields.CELL,
            {"in_zero": "in.zero", "out_nan": "out.nan", "time_ns": "time"},
        ),
        "operator_record": (fields.OPERATOR, {"time_ns": "time"}),
        "event": (fields.EVENT, {"start_ns": "start", "end_ns": "end", "process": "pad"}),
    }
    renamed = {"operator": "operator_id", "module": "module_id"}
    lines = []
    for struct, (dtype, names) in pairs.items():
        lines.append(f'_Static_assert(sizeof(struct udfprof_{struct}) == {dtype.itemsize}, "");')
        for name in dtype.names:
            member = names.get(name, renamed.get(name, name))
            if name.startswith(("in_", "out_")) and name.split("_", 1)[1] in fields.SPECIALS:
                member = name.replace("_", ".", 1)
            offset = dtype.fields[name][1]
            lines.append(
                f'_Static_assert(offsetof(struct udfprof_{struct}, {member}) == {offset}, "");'
            )
    lines.append(f'_Static_assert(UDFPROF_SLOTS >= {len(WATCHED) * 10}, "");')
    lines.append(f'_Static_assert(UDFPROF_LOG == {WATCHED.index("log")}, "");')
    pass_source = Path(__file__).parents[2] / "llvm" / "pass" / "InstrumentWork.h"
    (words,) = re.findall(r"enum HotOffset : unsigned \{(.*?)\};", pass_source.read_text(), re.S)
    members = {
        "Left": "left",
        "Zeros": "zeros",
        "Infinities": "infinities",
        "InLow": "bound[0].low",
        "InHigh": "bound[0].high",
        "OutLow": "bound[1].low",
        "OutHigh": "bound[1].high",
        "Cell": "cell",
    }
    offsets = dict(re.findall(r"(\w+) = (\d+)", words))
    size = offsets.pop("HotSize")
    assert offsets.keys() == members.keys()
    lines.append(f'_Static_assert(sizeof(struct udfprof_hot) == {size}, "");')
    lines.append('_Static_assert(offsetof(struct udfprof_row, hot) == 0, "");')
    for word, offset in offsets.items():
        lines.append(
            f'_Static_assert(offsetof(struct udfprof_hot, {members[word]}) == {offset}, "");'
        )
    (words,) = re.findall(r"enum CellOffset : unsigned \{(.*?)\};", pass_source.read_text(), re.S)
    members = {"Due": "due", "Live": "live", "HotOf": "hot"}
    offsets = dict(re.findall(r"(\w+) = (\d+)", words))
    assert offsets.keys() == members.keys()
    for word, offset in offsets.items():
        lines.append(
            f'_Static_assert(offsetof(struct udfprof_cell, {members[word]}) == {offset}, "");'
        )
    due = dict(re.findall(r"Due(Sample|Time) = (\d+)", pass_source.read_text()))
    assert due.keys() == {"Sample", "Time"}
    for name, bit in due.items():
        lines.append(f'_Static_assert(UDFPROF_{name.upper()} == {bit}, "");')
    source = tmp_path / "layout.c"
    source.write_text('#include "udfprof.h"\n' + "\n".join(lines) + "\n")
    include = native_file("udfprof.h").parent
    from pytest_udftorch.swap.toolchain.compiler import find_compiler

    done = subprocess.run(
        [find_compiler().path, "-fsyntax-only", f"-I{include}", source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert fields.StringTable().as_dict() == dict(enumerate(WATCHED))


def test_a_spawned_process_opens_its_own_session(library, tmp_path):
    """Spawned workers inherit no session; one of their own works, beside one here, too."""
    script = (
        "import sys, torch\n"
        "from pytest_udftorch import patched\n"
        "with patched(sys.argv[1], ('exp',), profile=True, profile_out=sys.argv[2]) as s:\n"
        "    torch.exp(torch.ones(9))\n"
    )
    with patched(library, ("exp",), profile=True, profile_out=tmp_path):
        torch.exp(torch.ones(9))
        subprocess.run([sys.executable, "-c", script, str(library), str(tmp_path)], check=True)
    assert whole(Profile.load(tmp_path, add_runs=True))["elements"] == 18
