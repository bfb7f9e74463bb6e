# SPDX-License-Identifier: Apache-2.0
"""The library repro on several GPUs: every layout of ranks ends with the weights of one GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="torch sees no CUDA device"),
]

STEPS = 3
CASES = (("llama", "float32"), ("llama", "bfloat16"), ("net", "float32"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return what short runs of the bench found, on the GPUs and on one CPU rank."""
    from benches.experiments import contract_ranks_cuda as bench

    cpu = bench.Place("cpu", 1, "", (bench.Leg("one", end=STEPS),))
    folder = str(tmp_path_factory.mktemp("ranks"))
    # Four ranks have 512 rows each, which is a chunk in bfloat16.
    scale = replace(bench.TINY, batch=32)
    order = bench.Order(cpu, "", folder, CASES, scale=scale, steps=STEPS)
    found: list[dict] = []
    chosen = [*bench.places(GPUS, STEPS), cpu]
    failed = bench.measured(order, chosen, found.append, time.monotonic() + 600)
    assert not failed
    return [row for row in found if row["end"] == STEPS]


def digests(rows, library, **wanted):
    return {
        (row["model"], row["dtype"]): row["digest"]
        for row in rows
        if row["library"] == library and all(row[k] == v for k, v in wanted.items())
    }


def test_every_layout_ends_with_the_weights_of_one_gpu(rows):
    one = digests(rows, "repro", device="cuda", layout="one")
    assert one.keys() == set(CASES)
    layouts = {row["layout"] for row in rows}
    assert layouts >= {"one", "parts", "ddp", "fsdp", "tp", "sp", "fsdp+tp", "fsdp+sp", "stopped"}
    for row in rows:
        if row["library"] == "repro":
            assert row["digest"] == one[row["model"], row["dtype"]], row


def test_stock_ends_with_others(rows):
    """The control: the layouts alone do not do it."""
    one = digests(rows, "std", device="cuda", layout="one")
    for wanted in ({"device": "cpu"}, {"layout": "tp"}, {"layout": "parts"}):
        other = digests(rows, "std", **wanted)
        assert all(other[case] != one[case] for case in one), wanted


@pytest.mark.skipif(GPUS < 2, reason="NCCL between ranks needs two GPUs or more")
def test_the_pages_script_gives_one_digest_over_nccl(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "reproduce" / "same_weights.md"
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"```python\n(.+?)```", page.read_text(), re.DOTALL)[0])
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    said = []
    for device, how in (("cpu", []), ("cuda", []), ("cuda", torchrun)):
        run = subprocess.run(
            [sys.executable, *how, str(script)],
            env={**os.environ, "DEVICE": device, "NCCL_NVLS_ENABLE": "0"},
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
