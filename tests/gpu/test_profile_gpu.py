# SPDX-License-Identifier: Apache-2.0
"""Profiles of eager CUDA operators: what the kernels count is what is in the tensors."""

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch.errors import SessionBusyError
from pytest_udftorch.swap.operators.table import BARE
from pytest_udftorch.swap.records import layout as fields
from pytest_udftorch.swap.session.session import patched

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

INF = float("inf")


def hostile(count: int, seed: int = 0) -> torch.Tensor:
    """Values of every kind on the GPU: special ones, subnormals, those that overflow in exp."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator) * 40
    special = [0.0, -0.0, INF, -INF, float("nan"), 1e-42, -3e-40, 1e-45, 2.0**-126, 95.0, -95.0]
    at = torch.randperm(count, generator=generator)[: 3 * len(special)]
    x[at] = torch.tensor((special * 3)[: len(at)])
    return x.cuda()


def truth(*tensors: torch.Tensor) -> dict[str, float]:
    """Extremes and special values of float32 tensors, by their encodings."""
    x = torch.cat([t.detach().float().reshape(-1).cpu() for t in tensors]).numpy()
    size = x.view(np.uint32) & 0x7FFFFFFF
    numbers = x[~np.isnan(x)]
    return {
        "min": float(numbers.min()) if len(numbers) else INF,
        "max": float(numbers.max()) if len(numbers) else -INF,
        "zero": int((size == 0).sum()),
        "subnormal": int(((size > 0) & (size < 1 << 23)).sum()),
        "pos_inf": int((x == INF).sum()),
        "neg_inf": int((x == -INF).sum()),
        "nan": int(np.isnan(x).sum()),
    }


def histogram(*tensors: torch.Tensor) -> np.ndarray:
    x = torch.cat([t.detach().float().reshape(-1).cpu() for t in tensors]).double().numpy()
    x = x[np.isfinite(x) & (x != 0)]
    bins = np.frexp(np.abs(x))[1] - 1 + fields.HIST_OFFSET
    counts = np.zeros((2, fields.HIST_BINS), np.uint64)
    np.add.at(counts, (np.signbit(x).astype(int), bins), 1)
    return counts


def seen(cell, side: str) -> dict[str, float]:
    return {name: cell[f"{side}_{name}"].item() for name in ("min", "max", *fields.SPECIALS)}


def on_cuda(profile, *key: str) -> dict[object, object]:
    """Rows of the GPU by the rest of their key."""
    rows = [r for r in profile.rows("device", *key) if r.key["device"] == "cuda"]
    found = {tuple(r.key[k] for k in key): r for r in rows}
    return {k[0] if len(k) == 1 else k: r for k, r in found.items()}


def only(profile):
    """Everything that the one function in a profile did."""
    (row,) = on_cuda(profile, "function").values()
    return row


def profiled(library="corem", **options):
    torch.cuda.init()
    return patched(library, profile=True, profile_stride=1, **options)


# Counts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 31, 512, 5000, 300_001])
def test_counts_are_those_of_the_tensors(count):
    x = hostile(count)
    with profiled() as s:
        y = torch.exp(x)
    row = only(s.profile)
    assert (row.key["device"], row.calls, row.elements) == ("cuda", 1, count)
    assert row.operator_calls == 1
    assert seen(row.cell, "in") == truth(x)
    assert seen(row.cell, "out") == truth(y)
    assert row.cell["hist_elements"] == count
    assert np.array_equal(row.cell["hist_in"], histogram(x))
    assert np.array_equal(row.cell["hist_out"], histogram(y))


@pytest.mark.parametrize("name", BARE)
def test_every_function_counts(name):
    x = hostile(3001)
    with profiled() as s:
        y = getattr(torch, name)(x)
    row = on_cuda(s.profile, "function", "operator", "form", "dtype")[
        name, f"aten::{name}", "array", "float32"
    ]
    assert seen(row.cell, "in") == truth(x)
    assert seen(row.cell, "out") == truth(y)
    assert np.array_equal(row.cell["hist_out"], histogram(y))


def test_an_oracle_that_differs_in_one_element_is_noticed():
    x = hostile(5000)
    with profiled() as s:
        y = torch.exp(x)
    row = only(s.profile)
    for at, value in ((3, float("nan")), (int((x == 0).nonzero()[0]), 1.0)):
        other = x.clone()
        other[at] = value
        assert seen(row.cell, "in") != truth(other)
    other = x.clone()
    other[3] = 1e4  # neither an extreme, beside infinities, nor special
    assert not np.array_equal(row.cell["hist_in"], histogram(other))
    other = y.clone()
    other[int(((y > 1) & (y < 2)).nonzero()[0])] *= 2
    assert not np.array_equal(row.cell["hist_out"], histogram(other))


@pytest.mark.parametrize("name", ["pow", "atan2", "hypot"])
def test_both_arguments_are_inputs(name):
    x, z = hostile(4001), hostile(4001, 1)
    with profiled() as s:
        y = getattr(torch, name)(x, z)
    row = only(s.profile)
    assert (row.calls, row.elements) == (1, 4001)
    assert seen(row.cell, "in") == truth(x, z)
    assert seen(row.cell, "out") == truth(y)
    assert np.array_equal(row.cell["hist_in"], histogram(x, z))


def test_launches_add_up():
    xs = [hostile(n, n) for n in (100, 2000, 1, 70_000)]
    with profiled() as s:
        ys = [torch.log(x) for x in xs]
        first = s.profile
        ys += torch._foreach_log(xs[:2])
    row = only(s.profile)
    assert row.calls == row.operator_calls == 6
    assert only(first).calls == 4
    assert row.elements == sum(len(y) for y in ys)
    assert seen(row.cell, "in") == truth(*xs, *xs[:2])
    assert seen(row.cell, "out") == truth(*ys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_count_what_the_function_sees_in_float32(dtype):
    x = hostile(3000).to(dtype)
    with profiled() as s:
        torch.exp(x)
        wide = torch.exp(x.float())
    rows = on_cuda(s.profile, "function")
    cell = rows["exp"].cell
    assert cell["elements"] == 6000
    assert seen(cell, "in") == truth(x, x)
    assert seen(cell, "out") == truth(wide, wide)


LAYOUTS = {
    "transposed": lambda x: torch.exp(x.view(50, 60).t()),
    "every other": lambda x: torch.exp(torch.stack((x, x), -1)[..., 0]),
    "in place": lambda x: x.exp_(),
    "out": lambda x: torch.exp(x, out=torch.empty_like(x)),
    "into itself": lambda x: torch.exp(x, out=x),
    "into gaps": lambda x: torch.exp(x, out=torch.empty(3000, 2, device="cuda")[:, 0]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_overloads_count_alike(layout):
    x = hostile(3000)
    kept = x.clone()
    with profiled() as s:
        y = LAYOUTS[layout](x)
    row = on_cuda(s.profile, "operator")["aten::exp"]
    assert (row.calls, row.operator_calls, row.elements) == (1, 1, 3000)
    assert seen(row.cell, "in") == truth(kept)
    assert seen(row.cell, "out") == truth(y)


def test_nothing_is_counted_of_empty_tensors_and_other_dtypes():
    with profiled() as s:
        torch.exp(torch.empty(0, device="cuda"))
        torch.softmax(torch.empty(0, 3, device="cuda"), -1)
        torch.exp(torch.ones(3, dtype=torch.float64, device="cuda"))
        assert not on_cuda(s.profile, "function")
        torch.exp(torch.ones(3, device="cuda"))
    assert only(s.profile).elements == 3


# Operators made of functions --------------------------------------------------------------


def test_operators_count_their_functions_and_not_others():
    x = hostile(4000)
    with profiled() as s:
        F.silu(x)
        F.mish(x)
        z = torch.exp(x)
    rows = on_cuda(s.profile, "operator", "function")
    assert set(rows) == {
        ("aten::silu", "exp"), ("aten::mish", "exp"), ("aten::mish", "log1p"),
        ("aten::mish", "tanh"), ("aten::exp", "exp"),
    }  # fmt: skip
    assert seen(rows["aten::silu", "exp"].cell, "in") == truth(-x)
    assert seen(rows["aten::mish", "exp"].cell, "in") == truth(x)
    assert seen(rows["aten::mish", "log1p"].cell, "in") == truth(z)
    with profiled(functions=("exp",)) as s:
        F.mish(x)
    assert set(on_cuda(s.profile, "operator", "function")) == {("aten::mish", "exp")}


def test_functions_of_elements_that_are_not_taken_count():
    x = hostile(2000)
    with profiled() as s:
        F.elu(x)
    row = only(s.profile)
    assert row.key["function"] == "expm1"
    assert (row.elements, seen(row.cell, "in")) == (2000, truth(x))


@pytest.mark.parametrize("shape", [(64, 1), (33, 7), (17, 1000), (5, 4096), (3, 40_000)])
@pytest.mark.parametrize("dim", [-1, 0])
def test_softmax(shape, dim):
    x = torch.randn(shape, device="cuda") * 30
    with profiled() as s:
        F.softmax(x, dim)
        F.log_softmax(x, dim)
    given = x - x.amax(dim, keepdim=True)
    with patched("corem"):
        powers = torch.exp(given)
    rows = on_cuda(s.profile, "operator", "function")
    assert set(rows) == {
        ("aten::_softmax", "exp"), ("aten::_log_softmax", "exp"), ("aten::_log_softmax", "log")
    }  # fmt: skip
    for operator in ("aten::_softmax", "aten::_log_softmax"):
        row = rows[operator, "exp"]
        times = row.calls  # the kernel of long rows and other dimensions computes exp twice
        assert times in (1, 2)
        assert row.operator_calls == 1
        assert row.elements == times * x.numel()
        assert seen(row.cell, "in") == truth(*[given] * times)
        assert seen(row.cell, "out") == truth(*[powers] * times)
        assert np.array_equal(row.cell["hist_in"], times * histogram(given))
    log = rows["aten::_log_softmax", "log"]
    assert log.elements == x.numel() // x.shape[dim]
    totals = powers.double().sum(dim)
    low, high = log.limits("in")
    assert low == pytest.approx(float(totals.min()), rel=1e-5)
    assert high == pytest.approx(float(totals.max()), rel=1e-5)


def test_gradients():
    x = hostile(3000).nan_to_num(1.0, 1.0, -1.0)
    rows = torch.randn(40, 60, device="cuda", requires_grad=True)
    with profiled() as s:
        leaf = x.clone().requires_grad_()
        F.silu(leaf).sum().backward()
        log = F.log_softmax(rows, -1)
        log.sum().backward()
    found = on_cuda(s.profile, "operator", "function", "stage")
    cell = found["aten::silu_backward", "exp", "backward"].cell
    assert (cell["elements"], seen(cell, "in")) == (3000, truth(-x))
    cell = found["aten::_log_softmax_backward_data", "exp", "backward"].cell
    assert (cell["elements"], seen(cell, "in")) == (2400, truth(log))


# Where --------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16), nn.Tanh())
        self.last = nn.LogSoftmax(-1)

    def forward(self, x):
        return self.last(self.features(x))


def test_layers_and_stages_are_those_of_the_cpu():
    model = Net()
    x = torch.randn(48, 8)  # whole vectors of rows: the CPU counts the lanes behind a tail
    found = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with profiled() as s:
        for device in ("cpu", "cuda"):
            model.to(device)
            for _ in range(3):
                model(x.to(device)).sum().backward()
            found[device] = {
                tuple(r.key[k] for k in ("function", "operator", "module", "stage")): r.elements
                for r in s.profile.rows("function", "operator", "module", "stage", "device")
                if r.key["device"] == device
            }
    torch.set_num_threads(threads)
    assert found["cuda"] == found["cpu"]
    assert ("exp", "aten::silu_backward", "Net.features.1", "backward") in found["cuda"]
    table = s.profile.table("layer")
    assert "Net.features.3 cuda" in table
    # A context of both devices has its operator calls apart.
    calls = [r for r in s.profile.rows("operator", "device") if r.key["device"] == "cuda"]
    assert {r.operator_calls for r in calls} == {3}


def test_the_same_numbers_have_the_same_ranges_on_both_devices():
    x = hostile(20_000)
    names = ("exp", "log", "sin", "tanh", "erf", "sigmoid")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with profiled() as s:
        for name in names:
            getattr(torch, name)(x)
            getattr(torch, name)(x.cpu())
    torch.set_num_threads(threads)
    rows = {(r.key["operator"], r.key["device"]): r for r in s.profile.rows("operator", "device")}
    for name in names:
        one, other = (rows[f"aten::{name}", device] for device in ("cpu", "cuda"))
        assert one.elements == other.elements == 20_000
        for side in ("in", "out"):
            assert seen(one.cell, side) == seen(other.cell, side)
            assert np.array_equal(one.cell[f"hist_{side}"], other.cell[f"hist_{side}"])


def test_the_first_infinity():
    x = torch.ones(5000, device="cuda")
    before = time.time_ns()
    with profiled() as s:
        torch.exp(x)
        assert s.profile.first("inf") is None
        x[77] = 89.0
        torch.exp(x)
        x[3] = INF
        torch.exp(x[:8])
    first = s.profile.first("inf")
    assert (first.function, first.operator, first.device) == ("exp", "aten::exp", "cuda")
    # The GPU's clock was put over to that of the host.
    assert before - 10**8 < first.time_ns < time.time_ns() + 10**8
    assert s.profile.first("nan") is None


# Streams, graphs, sessions --------------------------------------------------------------------


def test_streams_count_side_by_side():
    xs = [hostile(40_000, n) for n in range(4)]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    with profiled() as s:
        for _ in range(25):
            for x, stream in zip(xs, streams, strict=True):
                with torch.cuda.stream(stream):
                    torch.exp(x)
        row = only(s.profile)
    assert (row.calls, row.elements) == (100, 4_000_000)
    wanted = truth(*xs)
    for name, value in seen(row.cell, "in").items():
        assert value == (wanted[name] if name in ("min", "max") else 25 * wanted[name])


def captured(x, function=torch.exp):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    return graph, y


def test_replays_of_a_graph_count_where_it_was_captured():
    x = hostile(3000)
    layer = nn.SiLU()
    with profiled() as s:
        layer(x)
        graph, _ = captured(x, layer)
        for _ in range(3):
            graph.replay()
        graph_alone = s.profile
        x.fill_(2.0)
        graph.replay()
    rows = on_cuda(graph_alone, "operator", "module", "stage")
    assert rows["aten::silu", "SiLU", "forward"].calls == 1 + 3
    row = only(s.profile)
    assert (row.calls, row.elements) == (5, 15_000)
    assert row.limits("in")[1] == truth(-hostile(3000))["max"]
    graph.replay()  # after the session: counted by nobody, and harmless
    with profiled() as s:
        torch.sin(x)
        graph.replay()
    rows = on_cuda(s.profile, "function")
    assert rows["exp"].calls == 1
    assert rows["exp"].limits("in") == (-2.0, -2.0)


def test_a_profile_asked_for_during_a_capture_is_an_error():
    x = torch.ones(100, device="cuda")
    with profiled() as s:
        torch.exp(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.exp(x)
            with pytest.raises(SessionBusyError, match="while a CUDA graph"):
                _ = s.profile
        graph.replay()
        assert only(s.profile).calls == 2
    assert bool((y == y[0]).all())


def test_a_graph_captured_without_a_profile_counts_nothing():
    x = hostile(1000)
    with patched("corem"):
        torch.exp(x)
        graph, _ = captured(x)
    with profiled() as s:
        torch.exp(x)
        graph.replay()
    assert only(s.profile).calls == 1


def test_sessions_and_parts_count_from_zero():
    x = hostile(1000)
    with profiled() as s:
        torch.exp(x)
        part = s.collector.take("first")
        torch.sin(x)
        assert set(on_cuda(s.collector.take("second"), "function")) == {"sin"}
    assert set(on_cuda(part, "function")) == {"exp"}
    assert set(on_cuda(s.profile, "function")) == {"exp", "sin"}
    with profiled() as s:
        torch.sin(x)
        with patched("corem"):
            torch.log(x)
        with patched("std"):
            torch.cos(x)
    assert set(on_cuda(s.profile, "function")) == {"sin"}
    with profiled("std") as s:
        torch.exp(x)
    assert not on_cuda(s.profile, "function")


def test_results_are_those_of_a_session_without_a_profile():
    x = hostile(300_000)
    wide = torch.randn(300, 1000, device="cuda")
    operators = (torch.exp, F.elu, F.mish, lambda t: torch.pow(t, t.flip(0)))
    found = []
    for session in (patched("corem"), profiled()):
        with session:
            found.append([f(x) for f in operators] + [F.log_softmax(wide, d) for d in (0, 1)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.nan_to_num(7.0).view(torch.int32),
                           other.nan_to_num(7.0).view(torch.int32))  # fmt: skip


def test_the_histogram_takes_one_program_in_as_many():
    x = torch.randn(1 << 20, device="cuda")
    with patched("corem", profile=True, profile_stride=64) as s:
        torch.exp(x)
    cell = only(s.profile).cell
    assert cell["hist_elements"] == cell["hist_in"].sum() == (1 << 20) // 64
    assert cell["elements"] == 1 << 20


def test_a_saved_profile_keeps_the_device(tmp_path):
    from pytest_udftorch.swap.records.profile import Profile

    x = hostile(1000)
    with patched("corem", profile=True, profile_out=tmp_path) as s:
        torch.exp(x)
        torch.exp(x.cpu())
    loaded = Profile.load(tmp_path)
    assert loaded.document()["cells"] == s.profile.document()["cells"]
    assert {c["device"] for c in loaded.document()["cells"]} == {"cpu", "cuda"}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_several_gpus_add_up():
    with profiled() as s:
        for device in range(2):
            torch.exp(torch.full((100,), float(device), device=f"cuda:{device}"))
    row = only(s.profile)
    assert (row.calls, row.elements, row.limits("in")) == (2, 200, (0.0, 1.0))


def test_compiled_kernels_do_not_count():
    x = torch.ones(100, device="cuda")
    with profiled() as s:
        torch.compile(lambda t: torch.exp(t) + 1)(x)
        assert not on_cuda(s.profile, "function")
