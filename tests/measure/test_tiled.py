# SPDX-License-Identifier: Apache-2.0
"""Rows computed tile by tile: what is cut, what is refused, and that nothing decides the bits."""

from __future__ import annotations

import subprocess
import threading

import numpy as np
import pytest
import torch

from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure import model_pair, recording, tiled
from pytest_udftorch.measure.rewrite.tiled import backend, parts
from pytest_udftorch.measure.rewrite.tiled.run import Settings, Tiled, cache_bytes
from pytest_udftorch.measure.rewrite.tiled.schedules import SCHEDULES

X = torch.randn(1001, 16, generator=torch.Generator().manual_seed(0))
Y = torch.randn(1001, 16, generator=torch.Generator().manual_seed(1))
W = torch.randn(16, 4, generator=torch.Generator().manual_seed(2))
SMALL = {"tile_bytes": 4096, "strict": True}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    with torch.no_grad():
        yield


def scores(x, y, w):
    p = torch.softmax((x - y) @ w, 1)
    return p, (p * p).sum(), x.amax(0), y.mean(0) * 2, x.mean(), x.T @ p, w + 1


PIPELINES = {
    "scores": (scores, (X, Y, W)),
    "a dictionary": (lambda x: {"s": x.exp().sum(0, keepdim=True), "r": [x.sum(1)]}, (X,)),
    "norm of rows": (lambda x: torch.nn.functional.layer_norm(x, (16,)).amin(), (X,)),
    "a linear layer": (lambda x, w, b: torch.addmm(b, x, w).relu(), (X, W, torch.ones(4))),
    "flags": (lambda x: ((x > 4).any(), (x > -9).all(0), (x > 0).sum()), (X,)),
    "concatenated columns": (lambda x, y: torch.cat([x, y], 1)[:, 3:20].unsqueeze(2), (X, Y)),
    "three dimensions": (lambda x: x.tanh().permute(0, 2, 1).clone(), (X.reshape(1001, 4, 4),)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_tiles_give_what_the_function_gives(name):
    function, inputs = PIPELINES[name]
    with recording() as reports:
        found = tiled(function, **SMALL)(*inputs)
    assert [f.rule for f in reports[0].fired] == ["tiles"]
    torch.testing.assert_close(found, function(*inputs), rtol=1e-5, atol=1e-5)


def test_schedules_and_threads_do_not_change_a_bit():
    wanted = tiled(scores, threads=1, **SMALL)(X, Y, W)
    for schedule in SCHEDULES:
        for threads in (2, 3):
            found = tiled(scores, schedule=schedule, threads=threads, **SMALL)(X, Y, W)
            assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("tiles", [1, 2, 7, 64])
def test_a_schedule_gives_each_tile_to_one_thread(name, tiles):
    taken: list[list[int]] = [[] for _ in range(3)]

    def work(mine, into):
        into.extend(mine)

    shares = SCHEDULES[name](tiles, 3)
    threads = [threading.Thread(target=work, args=pair) for pair in zip(shares, taken, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tile for each in taken for tile in each) == list(range(tiles))


def test_guided_runs_shrink_and_thieves_take_the_later_half():
    first, second = SCHEDULES["guided"](16, 2)
    assert [next(first) for _ in range(8)] == list(range(8))
    assert [next(second) for _ in range(4)] == [8, 9, 10, 11]
    assert list(first) == [12, 13, 14, 15]
    own, other = SCHEDULES["stealing"](8, 2)
    assert [next(own) for _ in range(4)] == [0, 1, 2, 3]
    assert next(own) == 6
    assert list(other) == [4, 5, 7]
    assert list(own) == []


REFUSED = {
    "softmax over rows": (lambda x: torch.softmax(x, 0), "_softmax"),
    "a second pass": (lambda x: x / x.sum(), "a second pass"),
    "cumsum": (lambda x: x.cumsum(0), "cumsum"),
    "rows as columns": (lambda x: x.T + 1, "takes rows as columns"),
    "products of rows": (lambda x: x @ x.T, "mixes rows"),
    "sorted rows": (lambda x: x.sort(0).values, "sort"),
    "another number of rows": (lambda x: x + torch.ones(1001, 1), "not cut"),
    "an input": (lambda x: (x, x + 1), "an output is an input"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_rows_is_refused_and_runs_as_it_is(name):
    function, why = REFUSED[name]
    with pytest.raises(RewriteError, match=why):
        tiled(function, **SMALL)(X)
    with recording() as reports:
        torch.testing.assert_close(tiled(function)(X), function(X))
    assert why in reports[0].left_alone


def test_wrong_tiles_never_run(monkeypatch):
    """Negative control: parts of a sum that are joined by the wrong operator."""
    monkeypatch.setitem(parts.JOINS, "sum", torch.maximum)

    def total(x):
        return x.exp().sum()

    with recording() as reports:
        assert torch.equal(tiled(total, tile_bytes=4096)(X), total(X))
    assert "do not pass their check" in reports[0].left_alone
    compiled = torch.compile(total, backend="udf_tiled", options={"tile_bytes": 4096, "gain": 0})
    with recording() as reports:
        assert torch.equal(compiled(X), total(X))
    assert "does not pass its check" in reports[0].left_alone


def test_an_error_in_a_tile_is_the_callers():
    graph = backend.compat.aten_graph(lambda x: x.exp().sum(), [X])
    made = parts.cut(graph, [0], 1001)
    run = Tiled(made, [0], Settings("static", 2, 4096))
    assert run(X) > 0
    run.parts.tile.forward = lambda *_: X.no_such_item
    with pytest.raises(AttributeError, match="item"):
        run(X)


def test_numpy_arrays_and_wrong_arguments():
    found = tiled(lambda x: (x.exp(), x.sum()), **SMALL)(X.numpy())
    assert isinstance(found[0], np.ndarray)
    np.testing.assert_allclose(found[0], X.exp().numpy(), rtol=1e-6)
    with pytest.raises(RewriteError, match="not list"):
        tiled(lambda x: x)([1, 2])
    with pytest.raises(RewriteError, match="No schedule 'statik'"):
        tiled(lambda x: x, schedule="statik")
    with pytest.raises(RewriteError, match="threads=0"):
        tiled(lambda x: x, threads=0)
    with pytest.raises(RewriteError, match=r"tile_bytes=0\.5"):
        tiled(lambda x: x, tile_bytes=0.5)


def test_gradients_are_the_functions():
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        tiled(lambda x: (x * x).sum(), tile_bytes=4096)(x).backward()
    torch.testing.assert_close(x.grad, 2 * X)


def test_it_is_a_backend_and_an_executor():
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.Softmax(1))
    options = {"tile_bytes": 4096, "schedule": "stealing", "strict": True, "gain": 0}
    compiled = torch.compile(model.eval(), backend="udf_tiled", dynamic=False, options=options)
    with recording() as reports:
        torch.testing.assert_close(compiled(X), model(X))
    assert [f.rule for f in reports[0].fired] == ["tiles"]
    pair = model_pair(model, X, "udf_tiled")
    assert pair.failures == {}
    pair.check()
    with pytest.raises(RewriteError, match="No schedule"):
        torch.compile(model, backend="udf_tiled", options={"schedule": "x"})(X)


def test_threads_of_torch_stay_as_they_are():
    before = torch.get_num_threads()
    tiled(lambda x: x.exp().sum(), threads=3, **SMALL)(X)
    assert torch.get_num_threads() == before
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_estimated_memory_decides_on_the_plan():
    array = pytest.importorskip("dask.array", reason="dask is not installed")

    def pipeline(x):
        y = x.tanh() * 2
        return y.exp(), (y * y).sum()

    # The input, y, its exponentials and its squares.
    peak = 4 * X.numel() * X.element_size()
    wanted = pipeline(X)
    for memory, plan, tasks in (
        (None, "", "a task for each chunk"),
        (peak, "the function as it is", "one task"),
        (peak - 1, "tiles", "a task for each chunk"),
    ):
        function = tiled(pipeline, memory=memory, **SMALL)
        with recording() as reports:
            torch.testing.assert_close(function(X), wanted)
            lazy = function(array.from_array(X.numpy(), chunks=(400, 16)))
        assert reports[0].before.peak_bytes == peak
        notes = [n for r in reports for n in r.notes if n.startswith("plan: ")]
        assert [n.split(";")[0] for n in notes] == (
            [f"plan: {plan}", f"plan: {tasks}"] if memory else []
        )
        assert len(lazy[0].chunks[0]) == (1 if tasks == "one task" else 3)
        torch.testing.assert_close(torch.from_numpy(lazy[0].compute()), wanted[0])
    with pytest.raises(RewriteError, match="memory=0"):
        tiled(pipeline, memory=0)


def test_dask_arrays_stay_lazy_and_chunks_give_the_same():
    array = pytest.importorskip("dask.array", reason="dask is not installed")
    read = []

    def block(block_info=None):
        place = block_info[None]["array-location"]
        read.append(place[0][0])
        return X.numpy()[slice(*place[0])]

    x = array.map_blocks(block, chunks=((300, 300, 300, 101), (16,)), dtype="float32")
    found = tiled(scores, **SMALL)(x, array.from_array(Y.numpy(), chunks=(400, 8)), W.numpy())
    assert 900 not in read
    assert found[0].chunks[0] == (300, 300, 300, 101)
    for mine, wanted in zip(found, scores(X, Y, W), strict=True):
        assert mine.shape == tuple(wanted.shape)
        np.testing.assert_allclose(mine.compute(), wanted.numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(RewriteError, match="cannot run on chunks"):
        tiled(lambda x: x / x.sum())(x)


def test_the_size_of_the_cache_is_the_systems():
    done = subprocess.run(["getconf", "LEVEL2_CACHE_SIZE"], capture_output=True, text=True)
    known = int(done.stdout.strip() or 0) if done.returncode == 0 else 0
    assert cache_bytes() == (known or 2 << 20)
