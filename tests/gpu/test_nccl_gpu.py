# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training over NCCL: one rank a GPU, every rank under the session's functions."""

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

GPUS = torch.cuda.device_count()
WORLDS = [n for n in (2, 4) if n <= GPUS]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not WORLDS, reason="NCCL between ranks needs two GPUs or more"),
]

# Each rank trains under a library, says what it was told, and writes digests.
RANK = """
import hashlib, json, os, sys, warnings
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from pytest_udftorch import UdfError, patched

folder, scenario = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.linspace(-30, 30, 4099, device="cuda")
functions = (torch.exp, torch.log, torch.sin, torch.tanh, nn.functional.elu)

def digest(tensors):
    bits = hashlib.sha256()
    for t in tensors:
        bits.update(t.detach().cpu().contiguous().numpy().tobytes())
    return bits.hexdigest()

def bits():
    return digest(f(x) for f in functions)

def train(steps=5):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    ).cuda()
    if scenario == "compiled":
        model = torch.compile(model)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        images = torch.randn(16, 32, generator=generator).cuda()
        labels = torch.randint(10, (16,), generator=generator).cuda()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(model.parameters())

mine = "canary" if scenario in ("different", "strict") and rank == 1 else "corem"
said = {"stock": bits()}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        with patched(mine, ranks="error" if scenario == "strict" else "warn"):
            said["inside"] = bits()
            if mine == "corem" and scenario not in ("different", "strict"):
                said["weights"] = train()
                total = torch.exp(x[:1].clone())
                dist.all_reduce(total)
                said["total"] = total.item()
    except UdfError as error:
        said["error"] = type(error).__name__ + ": " + str(error)
said["warned"] = [str(w.message) for w in caught if "ranks" in str(w.message)]
said["after"] = bits()
dist.barrier()
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(said, file)
dist.destroy_process_group()
"""


def run(tmp_path, world: int, scenario: str) -> list[dict]:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={world}", str(script), str(tmp_path), scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("scenario", ["eager", "compiled"])
def test_every_rank_trains_with_the_sessions_functions(tmp_path, world, scenario):
    said = run(tmp_path, world, scenario)
    for name in ("stock", "inside", "weights", "total", "after"):
        assert len({s[name] for s in said}) == 1, name
    assert said[0]["inside"] != said[0]["stock"] == said[0]["after"]
    assert not any(s["warned"] for s in said)


def test_a_rank_under_another_library_is_named(tmp_path):
    said = run(tmp_path, WORLDS[0], "different")
    assert "rank 1 has canary" in said[0]["warned"][0]
    assert "rank 0 has corem" in said[1]["warned"][0]
    assert said[0]["inside"] != said[1]["inside"]
    assert all(s["stock"] == s["after"] for s in said)


def test_a_rank_under_another_library_is_an_error_where_asked(tmp_path):
    said = run(tmp_path, WORLDS[0], "strict")
    assert all(s["error"].startswith("RanksDifferError") for s in said)
    assert all(s["stock"] == s["after"] and "inside" not in s for s in said)
