# SPDX-License-Identifier: Apache-2.0
"""Profiles of a distributed run: two real ranks, which share one folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_udftorch.swap.records.profile import Profile

TRAINING = """
    import torch
    import torch.distributed as dist

    def test_step():
        dist.init_process_group("gloo")
        try:
            torch.manual_seed(0)
            layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ELU())
            model = torch.nn.parallel.DistributedDataParallel(layers)
            rank = dist.get_rank()
            for _ in range(3 + rank):  # the ranks count different numbers
                torch.exp(torch.full((5,), float(rank)))
            # ELU's expm1 runs on whole vectors, of which all lanes count.
            model(torch.ones(16, 4)).sum().backward()
            total = torch.tensor([1.0])
            dist.all_reduce(total)
            assert total.item() == 2
        finally:
            dist.destroy_process_group()
"""


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    pytest_command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        [sys.executable, *command, *pytest_command],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_ranks_share_a_folder_and_are_added_up(suite):
    suite.write(test_ranks=TRAINING)
    done = torchrun(suite.path, "--udf-lib=corem", "--udf-profile", "--udf-profile-out=out")
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted((suite.path / "out").glob("profiled-*.bin"))
    assert len(files) == 2
    parts = [exp_elements(Profile.load(file)) for file in files]
    assert sorted(parts, key=str) == [{0.0: 15}, {1.0: 20}]
    whole = Profile.load(suite.path / "out")
    assert exp_elements(whole) == {1.0: 35}
    assert len(whole.processes) == 2
    stages = {c["stage"] for c in whole.document()["cells"] if "elu" in c["operator"]}
    assert stages == {"forward", "backward"}


@pytest.mark.slow
def test_strict_ranks_fail_under_different_libraries(suite):
    suite.write(test_ranks=TRAINING)
    command = (
        "if [ $RANK = 1 ]; then library=two; else library=one; fi; "
        '"$PYTHON" -m pytest -q -p no:cacheprovider --udf-strict --udf-lib=./$library'
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            "--no-python", "sh", "-c", command,
        ],
        cwd=suite.path, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "RanksDifferError: The ranks of the process group do not compute with" in done.stdout
    assert "has one 1.5, build " in done.stdout
    assert "rank 1 has two 1.5, build " in done.stdout


def exp_elements(profile: Profile) -> dict[float, int]:
    """Return largest input -> elements of torch.exp."""
    cells = [c for c in profile.document()["cells"] if c["operator"] == "aten::exp"]
    return {c["in_max"]: c["elements"] for c in cells}
