# SPDX-License-Identifier: Apache-2.0
"""The library repro on several GPUs: ranks and micro-batches end with the weights of one GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("mlxtend")

GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="torch sees no CUDA device"),
]

STEPS = 4


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return what short runs of the bench found, on the GPUs and on one CPU rank."""
    from benches.experiments import contract_ranks_cuda as bench

    order = {
        "models": ["lenet", "gpt"], "optimizers": ["SGD"], "libraries": ["std", "repro"],
        "folder": str(tmp_path_factory.mktemp("ranks")),
    }  # fmt: skip
    chosen = [*bench.places(GPUS, STEPS), bench.on_cpu(STEPS)[0]]
    found = bench.measured(order, chosen)
    return [row for row in found if row["end"] == STEPS]


def digests(rows, library, **wanted):
    return {
        row["model"]: row["digest"]
        for row in rows
        if row["library"] == library and all(row[k] == v for k, v in wanted.items())
    }


def test_every_run_ends_with_the_weights_of_one_gpu(rows):
    one = digests(rows, "repro", device="cuda", ranks=1, run="whole")
    assert len(set(one.values())) == len(one) == 2
    assert {row["run"] for row in rows} >= {"whole", "parts", "stopped"}
    for row in rows:
        if row["library"] == "repro" and row["run"] != "torch's all-reduce":
            assert row["digest"] == one[row["model"]], row


def test_stock_ends_with_others(rows):
    """The control: the hook and the micro-batches alone do not do it."""
    one = digests(rows, "std", device="cuda", ranks=1, run="whole")
    for wanted in ({"device": "cpu"}, {"ranks": 4}, {"run": "parts", "parts": 4}):
        other = digests(rows, "std", **wanted)
        assert all(other[name] != one[name] for name in one), wanted


@pytest.mark.skipif(GPUS < 2, reason="NCCL between ranks needs two GPUs or more")
def test_the_pages_script_gives_one_digest_over_nccl(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "reproduce" / "same_weights.md"
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"```python\n(.+?)```", page.read_text(), re.DOTALL)[0])
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said = []
    for device, how in (("cpu", []), ("cuda", []), ("cuda", torchrun)):
        run = subprocess.run(
            [sys.executable, *how, str(script)], env={**os.environ, "DEVICE": device},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        said += run.stdout.split()
    assert len(said) == 4
    assert len(set(said)) == 1
    assert re.fullmatch("[0-9a-f]{64}", said[0])


def test_one_other_digest_is_told(rows):
    """The control of the comparison itself."""
    from benches.experiments import contract_ranks_cuda as bench

    assert bench.same(rows, "repro")
    spoiled = [*rows[1:], {**rows[0], "library": "repro", "digest": "ranks differ"}]
    assert not bench.same(spoiled, "repro")
