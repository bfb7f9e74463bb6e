# SPDX-License-Identifier: Apache-2.0
"""Layouts of ranks: tensor, sequence, sharded and data parallelism have the bits of one process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_udftorch.errors import SummationError
from pytest_udftorch.reproduce import tree_layout
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.nodes import cuts, tiles, total
from pytest_udftorch.swap.contract.replicas import scatter_mean

# The bench's ranks, forked from a process that has imported torch once.
RANKS = """
import json, os, sys, traceback
from dataclasses import replace
import torch
torch.set_num_threads(1)
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from benches.experiments import contract_ranks_cuda as bench
from pytest_udftorch import patched
from pytest_udftorch.reproduce import tree_layout
from pytest_udftorch.swap.contract import nodes, replicas
from pytest_udftorch.swap.contract.nodes import cuts, product, ranks_of

met = 0

def forked(ranks, work):
    global met
    met += 1
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
                if ranks > 1:
                    distributed.init_process_group(
                        "gloo", init_method=f"file://{FOLDER}/meet{met}", rank=rank,
                        world_size=ranks,
                    )
                with open(f"{FOLDER}/{met}.{rank}", "w") as file:
                    for found in work(rank):
                        print(json.dumps(found), file=file, flush=True)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit("a rank failed")
    return [open(f"{FOLDER}/{met}.{rank}").read().splitlines() for rank in range(ranks)]

def products(rank):
    ranks, made = ranks_of(None), torch.Generator().manual_seed(0)
    for dtype, k in ((torch.float32, 768), (torch.float32, 704), (torch.bfloat16, 2200)):
        a, b = (torch.randn(s, generator=made).to(dtype) for s in ((5, k), (k, 3)))
        low, high = cuts(k, ranks.world)[rank : rank + 2]
        with patched("repro"):
            whole = torch.mm(a, b)
            found = product(a[:, low:high], b[low:high], k, ranks).to(dtype)
            one = a[:, low:high].float() @ b[low:high].float()
        distributed.all_reduce(one)
        yield [torch.equal(found, whole), torch.equal(one.to(dtype), whole)]

def norms(rank):
    ranks, shape = ranks_of(None), (3, 7, 40)
    mesh = init_device_mesh("cpu", (ranks.world,))
    low, high = cuts(shape[1], ranks.world)[rank : rank + 2]

    def placed(x):
        part = x[:, low:high].clone()
        return DTensor.from_local(
            part, mesh, [Shard(1)], run_check=False, shape=x.shape, stride=x.stride()
        )

    for norm, tree in ((nn.LayerNorm, True), (nn.RMSNorm, True), (nn.LayerNorm, False)):
        torch.manual_seed(0)
        x, grad, model = torch.randn(shape), torch.randn(shape), nn.Sequential(norm(shape[-1]))
        with patched("repro"):
            given = x.clone().requires_grad_()
            y = model(given)
            y.backward(grad)
            whole = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            parallelize_module(model, mesh, {"0": SequenceParallel()})
            if tree:
                tree_layout(model)
            mine = placed(x).requires_grad_()
            out = model(mine)
            out.backward(placed(grad))
            found = [p.grad.full_tensor() for p in model.parameters()]
        same = [torch.equal(a, b) for a, b in zip(found, whole, strict=True)]
        rows = torch.equal(out.to_local(), y[:, low:high])
        rows &= torch.equal(mine.grad.to_local(), given.grad[:, low:high])
        yield [tree, rows and all(same)]

def in_turn(terms, found, begin=0):
    return sum(list(found.values())[::-1])

def mean_in_turn(parts):
    return sum(parts[::-1]) / len(parts)

if WRONG:
    nodes.total, replicas._mean = in_turn, mean_in_turn
with patched("repro"):  # builds it once
    pass
rows, equal, normed = [], [], []
for ranks, layouts in PLACES:
    legs = tuple(bench.Leg(*leg) for leg in layouts)
    place = bench.Place("cpu", ranks, "gloo" if ranks > 1 else "", legs)
    order = bench.Order(
        place, "", FOLDER, CASES, LIBRARIES, replace(bench.TINY, images=IMAGES), STEPS
    )
    rows += bench._rows(forked(ranks, lambda rank: bench.child(order)))
for ranks in PRODUCTS:
    equal += [json.loads(line) for of in forked(ranks, products) for line in of]
if PRODUCTS:
    normed = [json.loads(line) for of in forked(2, norms) for line in of]
print(json.dumps([rows, equal, normed]))
"""

FLOAT32 = (("llama", "float32"),)


def ran(folder, places, cases=FLOAT32, libraries=("repro",), **given):
    """Return rows of the bench on the CPU, and which products and norms over ranks were right."""
    named = {"steps": 2, "images": 256, "wrong": False, "products": (), **given}
    folder.mkdir(exist_ok=True)
    head = f"FOLDER, PLACES, CASES, LIBRARIES = {str(folder)!r}, {places}, {cases}, {libraries}\n"
    head += "".join(f"{name.upper()} = {value!r}\n" for name, value in named.items())
    said, failed = folder / "said", folder / "failed"
    with said.open("w") as out, failed.open("w") as err:
        run = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", head + RANKS],
            stdout=out, stderr=err, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            status = run.wait(600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    assert status == 0, failed.read_text()
    return json.loads(said.read_text().splitlines()[-1])


def whole(*layouts, steps=2):
    return tuple((name, 0, steps) for name in layouts)


def ends(rows):
    return {(row["layout"], row["ranks"]): row["digest"] for row in rows}


def test_layouts_of_two_ranks_end_with_the_weights_of_one(tmp_path):
    places = ((1, whole("one", "parts")), (2, whole("ddp", "fsdp", "tp", "sp")))
    rows, equal, normed = ran(tmp_path, places, products=(4,))
    assert len(ends(rows)) == 6
    assert len(set(ends(rows).values())) == 1
    # One sum of each rank is the negative control; rounding to bfloat16 may hide what differs.
    assert all(tree for tree, _ in equal)
    assert sum(one for _, one in equal) <= len(equal) // 3
    assert len(equal) == 3 * 4
    # Torch's sums of the norms' gradients are the negative control.
    assert normed == [[tree, tree] for tree in (True, True, False)] * 2
    # Only exchanges are sent, and all of them are counted.
    assert [row["sent"] > 0 for row in rows] == [False] * 2 + [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "net"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layout_ends_with_the_weights_of_one_rank(tmp_path, model, dtype):
    parts = () if dtype == "bfloat16" else ("ddp", "fsdp")
    places = (
        (1, whole("one", "parts", steps=3)),
        (2, (*whole("ddp", "fsdp", "tp", "sp", steps=3), ("fsdp", 0, 1, True))),
        (4, (*whole("tp", "sp", "fsdp+tp", "fsdp+sp", *parts, steps=3), ("sp", 1, 2, True))),
        (1, (("one", 2, 3, True),)),
    )
    case = ((model, dtype),)
    rows, *_ = ran(tmp_path, places, case, ("repro", "std"), steps=3, images=1024)
    each = {
        library: [r["digest"] for r in rows if r["library"] == library and r["end"] == 3]
        for library in ("repro", "std")
    }
    assert len(each["repro"]) > 5
    assert len(set(each["repro"])) == 1
    assert len(set(each["std"])) > len(each["std"]) // 2


@pytest.mark.slow
def test_nodes_in_another_order_end_with_others(tmp_path):
    """The negative control: nodes added one after the other."""
    places = ((1, whole("one")), (2, whole("tp")), (4, whole("ddp", "fsdp")))
    found = ends(ran(tmp_path, places, wrong=True)[0])
    one = found.pop(("one", 1))
    assert len(found) == 3
    assert one not in found.values()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("terms", [1, 5, 12, 48, 172])
def test_nodes_of_parts_are_few_and_have_the_sum(terms, count):
    x = torch.randn(terms, 9, generator=torch.Generator().manual_seed(terms))
    nodes, edges = {}, cuts(terms, count)
    for low, high in pairwise(edges):
        mine = tiles(low, high, terms)
        assert len(mine) <= 2 * terms.bit_length()
        nodes |= {node: contract().sums(x[node.begin : sum(node)], 0) for node in mine}
    assert torch.equal(total(terms, nodes), contract().sums(x, 0, reference=True).view(9))


# Refusals ---------------------------------------------------------------------------------


@pytest.fixture
def ranks(request):
    """A group of ranks of which this one alone is there: torch's backend that sends nothing."""
    count = getattr(request, "param", 2)
    torch.distributed.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    yield count
    torch.distributed.destroy_process_group()


def layers(*more):
    return nn.Sequential(nn.Linear(128, 64), *more, nn.Linear(64, 8))


def test_without_ranks_a_model_is_left_as_it_is():
    model = layers()
    before = dict(model[0].__dict__)
    assert tree_layout(model) is model
    assert model[0].__dict__ == before


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.parametrize("wrap", [DistributedDataParallel, fully_shard])
def test_a_number_of_parts_that_is_no_power_of_two(ranks, wrap):
    with pytest.raises(SummationError, match=r"over 3 ranks .* no power of two"):
        tree_layout(wrap(layers()))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (nn.Dropout(0.1), r"1 \(Dropout\) draws for each rank"),
        (nn.BatchNorm1d(64), r"1 \(BatchNorm1d\) takes statistics"),
    ],
)
def test_layers_that_are_others_on_parts(ranks, more, words):
    with pytest.raises(SummationError, match=words):
        tree_layout(fully_shard(layers(more)))


def test_micro_batches_that_no_tree_adds(ranks):
    with pytest.raises(SummationError, match=r"a step over 3 micro-batches .* no power of two"):
        tree_layout(layers(), micro_batches=3)
    with pytest.raises(SummationError, match="rounds and adds gradients after each"):
        tree_layout(DistributedDataParallel(layers()), micro_batches=2)


def test_a_parameter_of_two_layers(ranks):
    model = layers(nn.Linear(64, 64), nn.Linear(64, 64))
    model[2].weight = model[1].weight
    with pytest.raises(SummationError, match=r"2\.weight belongs to two layers"):
        tree_layout(DistributedDataParallel(model))


def test_weights_in_16_bits(ranks):
    with pytest.raises(SummationError, match=r"A weight is .* torch\.bfloat16"):
        tree_layout(fully_shard(layers().bfloat16()))


@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_replicated_shards(ranks):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    with pytest.raises(SummationError, match="mesh of two dimensions"):
        tree_layout(fully_shard(layers(), mesh=mesh))


def spread(module, *placed):
    """Give a module's parameters a layout."""
    mesh = init_device_mesh("cpu", (2,) * len(placed))
    for name, of in list(module.named_parameters(recurse=False)):
        module.register_parameter(name, nn.Parameter(distribute_tensor(of, mesh, placed)))
    return module


def test_layouts_that_are_not_known(ranks):
    for module, words in (
        (spread(nn.Linear(64, 8, bias=False), Replicate()), "Use ColwiseParallel or Rowwise"),
        (spread(nn.Embedding(64, 8), Replicate()), "gradients of some rows"),
        (spread(nn.Conv1d(4, 4, 3, bias=False), Shard(0)), r"\(Conv1d\) has parameters on ranks"),
        (spread(nn.Bilinear(4, 4, 4, bias=False), Replicate()), r"\(Bilinear\) has parameters"),
    ):
        with pytest.raises(SummationError, match=words):
            tree_layout(nn.Sequential(module))


def test_parts_that_are_no_nodes_and_other_dtypes(ranks):
    model = tree_layout(fully_shard(layers()))
    with pytest.raises(SummationError, match=r"0 gets 96 rows .* takes 64 rows"):
        model(torch.ones(96, 128))
    bfloat16 = torch.autocast("cpu", torch.bfloat16)
    with bfloat16, pytest.raises(SummationError, match=r"0 gets 256 rows .* takes 512 rows"):
        model(torch.ones(256, 128))
    half = torch.autocast("cpu", torch.float16)
    with half, pytest.raises(SummationError, match=r"computes in torch\.float16"):
        model(torch.ones(64, 128))
    images = tree_layout(DistributedDataParallel(nn.Conv2d(1, 1, 3)))
    with pytest.raises(SummationError, match=r"3 rows .* takes 1 rows"):
        images(torch.ones(3, 1, 4, 4))


def test_an_input_that_does_not_say_how_it_lies(ranks):
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(layers(), init_device_mesh("cpu", (2,)), plan)
    with pytest.raises(SummationError, match="a style for this layer"):
        tree_layout(model)[0].forward(torch.ones(2, 128))


def test_a_norm_whose_features_are_cut(ranks):
    plan = {"0": SequenceParallel(sequence_dim=2)}
    norm = parallelize_module(nn.Sequential(nn.LayerNorm(8)), init_device_mesh("cpu", (2,)), plan)
    with pytest.raises(SummationError, match=r"0 \(LayerNorm\) gets an input .* along a dimension"):
        tree_layout(norm)(torch.ones(2, 4, 4))


def test_another_reduction(ranks):
    least = torch.distributed.ReduceOp.MIN
    with pytest.raises(SummationError, match="sums and means alone"):
        scatter_mean(torch.empty(2), torch.empty(4), None, least)
