# SPDX-License-Identifier: Apache-2.0
"""The parts of a batch, on ranks or one after the other, give the bits of the whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from pytest_udftorch import patched
from pytest_udftorch.errors import SummationError
from pytest_udftorch.reproduce import GradientTree, tree_hook
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.replicas import _Tree

PAGE = Path(__file__).parents[2] / "docs" / "reproduce" / "same_weights.md"

# The page's code in forked ranks, which import torch once.
RANKS = """
import json, sys

torch.set_num_threads(1)

def made(model):
    if ADAM:
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def on_ranks(name, work):
    def run(rank, ranks):
        if ranks > 1:
            where = f"file://{FOLDER}/{name}{ranks}"
            distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
        with patched(LIBRARY):
            model = network()
            optimizer = made(model)
            work(model, optimizer, rank, ranks)
            return digest(model)

    def forked(ranks):
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                try:
                    found = run(rank, ranks)
                    with open(f"{FOLDER}/{name}{ranks}.{rank}", "w") as file:
                        file.write(found)
                    os._exit(0)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                    os._exit(1)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            sys.exit("a rank failed")
        (found,) = {open(f"{FOLDER}/{name}{ranks}.{rank}").read() for rank in range(ranks)}
        return found

    return forked

def whole(model, optimizer, rank, ranks):
    train(model, optimizer, rank, ranks, range(STEPS))

def in_parts(model, optimizer, rank, ranks):
    train_in_parts(model, optimizer, 4, range(STEPS))

def one_after_the_other(model, optimizer, rank, ranks):
    for step in range(STEPS):
        optimizer.zero_grad()
        for x, y in zip(*(part.chunk(4) for part in batch(step)), strict=True):
            (F.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()

def parts_on_ranks(model, optimizer, rank, ranks):
    tree = GradientTree(model.parameters())
    for step in range(STEPS):
        x, y = (part.chunk(ranks)[rank] for part in batch(step))
        for inputs, targets in zip(x.chunk(2), y.chunk(2), strict=True):
            F.cross_entropy(model(inputs), targets).backward()
            tree.add()
        tree.finish(distributed.group.WORLD)
        optimizer.step()
        optimizer.zero_grad()

def until_stopped(model, optimizer, rank, ranks):
    train(model, optimizer, rank, ranks, range(2))
    if rank == 0:
        torch.save([model.state_dict(), optimizer.state_dict()], f"{FOLDER}/checkpoint")

def gone_on(model, optimizer, rank, ranks):
    weights, state = torch.load(f"{FOLDER}/checkpoint")
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(model, optimizer, rank, ranks, range(2, STEPS))

with patched(LIBRARY):  # builds it once
    pass
found = {"1": on_ranks("whole", whole)(1), "2": on_ranks("whole", whole)(2)}
if MORE:
    found["4"] = on_ranks("whole", whole)(4)
    found["parts on ranks"] = on_ranks("parts", parts_on_ranks)(2)
    on_ranks("stopped", until_stopped)(2)
    found["stopped"] = on_ranks("on", gone_on)(4)
found["parts"] = on_ranks("in_parts", in_parts)(1)
found["one after the other"] = on_ranks("serial", one_after_the_other)(1)
print(json.dumps(found))
"""


def digests(folder, library, *, adam, more):
    script, parts = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    head = f"FOLDER, LIBRARY, ADAM, MORE = {str(folder)!r}, {library!r}, {adam}, {more}\n"
    script = script.replace('if __name__ == "__main__":', "if False:")
    said, failed = folder / "said", folder / "failed"
    # Files, and not pipes, which a rank would hold open; and a group, which ends as a whole.
    with said.open("w") as out, failed.open("w") as err:
        run = subprocess.Popen(
            [sys.executable, "-c", head + script + parts + RANKS],
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


@pytest.mark.slow
def test_the_pages_runs_end_with_one_digest(tmp_path):
    found = digests(tmp_path, "repro", adam=False, more=False)
    # Adding one after the other is the negative control.
    serial = found.pop("one after the other")
    assert len(set(found.values())) == 1
    assert serial not in found.values()


@pytest.mark.slow
@pytest.mark.parametrize("adam", [False, True])
def test_any_number_of_ranks_and_parts_ends_with_one_digest(tmp_path, adam):
    found = digests(tmp_path, "repro", adam=adam, more=True)
    found.pop("one after the other")
    assert len(found) == 6
    assert len(set(found.values())) == 1


@pytest.mark.slow
def test_the_stock_operators_end_with_others(tmp_path):
    """The negative control: the hook alone does not do it."""
    found = digests(tmp_path, "std", adam=False, more=True)
    assert len({found["1"], found["2"], found["4"]}) == 3


@pytest.mark.slow
def test_the_page_runs_as_a_script(tmp_path):
    script = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)[0]
    path = tmp_path / "train.py"
    path.write_text(script)
    run = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True, timeout=300
    )
    assert re.fullmatch(r"[0-9a-f]{64}\n", run.stdout)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 8, 13])
def test_parts_are_added_as_the_contract_adds(count):
    x = torch.randn(count, 99, generator=torch.Generator().manual_seed(count))
    tree = _Tree()
    for row in x.clone():
        tree.add(row)
    assert tree.count == count
    assert torch.equal(tree.total(), contract().sums(x, 0, reference=True).view(99))


def model():
    return nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)])


def test_what_a_part_did_not_reach_adds_zeros():
    both = model()
    tree = GradientTree(both.parameters())
    for part in (0, 0, 1):
        both[part](torch.ones(4, 3)).sum().backward()
        tree.add()
        assert both[part].weight.grad is None
    tree.finish()
    assert torch.equal(both[0].weight.grad, torch.full((2, 3), 8.0) / 3)
    assert torch.equal(both[1].weight.grad, torch.full((2, 3), 4.0) / 3)
    assert both[2].weight.grad is None
    # It begins anew.
    with pytest.raises(SummationError, match="No micro-batch was added"):
        tree.finish()


def test_the_gradients_of_the_last_step_are_not_added_to():
    linear = nn.Linear(3, 2)
    tree = GradientTree(linear.parameters())
    for again in (False, True):
        linear(torch.ones(4, 3)).sum().backward()
        if again:
            with pytest.raises(SummationError, match="zero_grad"):
                tree.add()
        else:
            tree.add()
            tree.finish()


class Shared(nn.Module):
    """Uses a table twice, and a layer three times."""

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(20, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = self.words(x)
        for _ in range(3):
            h = h + torch.tanh(self.layer(h))
        return F.linear(h, self.words.weight)


def gradients(shared, parts, run):
    """Of so many micro-batches of a batch, or without a tree."""
    given = [
        torch.from_numpy(numpy.random.default_rng(s).integers(20, size=(4, 64))) for s in (0, 1)
    ]
    tree = GradientTree(shared.parameters())
    for x, y in zip(*(t.chunk(parts) for t in given), strict=True):
        run(tree, F.cross_entropy(shared(x).flatten(0, 1), y.flatten()))
    if parts > 1:
        tree.finish()
    found = [p.grad for p in shared.parameters()]
    shared.zero_grad()
    return found


def test_uses_of_a_weight_have_trees_of_their_own():
    def added(tree, loss):
        loss.backward()
        tree.add()

    with patched("repro"):
        shared = Shared()
        whole = gradients(shared, 1, lambda tree, loss: loss.backward())
        ours = gradients(shared, 4, lambda tree, loss: tree.backward(loss))
        summed = gradients(shared, 4, added)
    assert all(map(torch.equal, whole, ours))
    assert not any(map(torch.equal, whole, summed))


def test_uses_that_cannot_be_told_apart_are_refused():
    shared = Shared()
    x = torch.arange(8)
    tree = GradientTree(shared.parameters())
    tree.backward(shared(x).mean())
    with pytest.raises(SummationError, match="used 1 times in this micro-batch, and 2 times"):
        tree.backward(shared.words(x).mean())
    tree = GradientTree(shared.parameters())
    shared.zero_grad()
    handle = shared.words.weight.register_hook(lambda g: 2 * g)
    with pytest.raises(SummationError, match="a hook changes it"):
        tree.backward(shared(x).mean())
    handle.remove()
    shared.zero_grad()
    tree.backward(shared(x).mean())
    tree.finish()
    assert shared.words.weight.grad is not None


def test_bad_calls():
    frozen = model().requires_grad_(False)
    with pytest.raises(SummationError, match="nothing to add"):
        GradientTree(frozen.parameters())
    tree = GradientTree(model().parameters())
    with pytest.raises(SummationError, match="after backward"):
        tree.add()
    wide = model().double()
    wide[0](torch.ones(4, 3, dtype=torch.float64)).sum().backward()
    with pytest.raises(SummationError, match=r"torch\.float64"):
        GradientTree(wide.parameters()).add()
    assert wide[0].weight.grad is not None
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(SummationError, match=r"torch\.sparse_coo"):
        GradientTree(table.parameters()).add()


def test_a_bucket_of_another_dtype_is_refused(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1
    )
    try:
        narrow = DistributedDataParallel(nn.Linear(3, 2).bfloat16())
        narrow.register_comm_hook(None, tree_hook)
        with pytest.raises(SummationError, match=r"bucket of gradients .* torch\.bfloat16"):
            narrow(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
