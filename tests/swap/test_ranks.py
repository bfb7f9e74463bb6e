# SPDX-License-Identifier: Apache-2.0
"""The ranks of a process group say which of them computes with other functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pytest_udftorch import patched
from pytest_udftorch.errors import SessionStateError

LIBRARY = """
[library]
name = "{name}"
version = "1"
[functions.exp.float32]
source = "u.c"
scalar = "e"
[functions.log.float32]
source = "u.c"
scalar = "l"
"""

# Three forked ranks, which import torch once. A scenario has a process group of its own; what a
# rank was told there goes into a file.
RANKS = """
import json, os, sys, warnings
import torch
import torch.distributed as dist
from pytest_udftorch import UdfError, patched
from pytest_udftorch.swap.toolchain import progress

stock_init = dist.init_process_group
x = torch.linspace(-5, 5, 64)
stock = torch.exp(x)

def start(name):
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/{name}", rank=rank, world_size=3)

def mine(wrong, **options):
    return patched(f"{FOLDER}/{'minus' if rank in wrong else 'plus'}", **options)

def same():
    start("same")
    for _ in range(2):
        with mine(()), patched("std"), mine((), functions=("exp",)):
            pass

def different():
    start("different")
    with mine((1,)):
        pass

def functions():
    start("functions")
    with patched(f"{FOLDER}/plus", functions=("exp",) if rank == 2 else ("exp", "log")):
        pass

def strict():
    start("strict")
    with mine((1,), ranks="error"):
        pass

def alone():
    start("alone")
    if rank == 0:
        os.environ["UDFTORCH_RANKS_TIMEOUT"] = "0.5"
        progress.PAUSE = 0.1
        with mine(()):
            pass
        progress.PAUSE = 60
        os.environ["UDFTORCH_RANKS_TIMEOUT"] = "60"
    dist.barrier()
    with mine(()):  # the ranks are still in step
        pass

def later():
    with mine((0,)):
        assert dist.init_process_group is not stock_init
        start("later")
    assert dist.init_process_group is stock_init
    dist.destroy_process_group()
    with mine(()):
        start("later again")

def ignored():
    start("ignored")
    with mine((0,), ranks="ignore"):
        if rank == 1:
            with patched("std", profile=True):  # one rank alone may watch the stock functions
                pass
        with mine((0,), ranks="ignore"):
            pass

def forked():
    start("forked")
    with mine(()):
        child = os.fork()
        if child == 0:  # must not use its parent's connection
            with mine((rank,), ranks="error"):
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

def run():
    told = {}
    for scenario in (same, different, functions, strict, alone, later, ignored, forked):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                scenario()
            except UdfError as error:
                caught.append(error)
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
        told[scenario.__name__] = [
            [type(w).__name__, str(w)] if isinstance(w, UdfError)
            else [w.category.__name__, str(w.message)]
            for w in caught if "fork" not in str(getattr(w, "message", ""))
        ]
        assert torch.equal(torch.exp(x), stock), scenario
    with open(f"{FOLDER}/told{rank}", "w") as file:
        json.dump(told, file)

for name in ("plus", "minus"):
    with patched(f"{FOLDER}/{name}"):
        pass
with patched("std", profile=True):
    pass
children = []
for rank in range(3):
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return scenario -> rank -> the warnings and errors that it got."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, sign in (("plus", "+"), ("minus", "-")):
        (folder / name).mkdir()
        (folder / name / "udf.toml").write_text(LIBRARY.format(name=name))
        (folder / name / "u.c").write_text(
            f"float e(float x) {{ return x {sign} 100; }}\nfloat l(float x) {{ return x; }}\n"
        )
    done = subprocess.run(
        [sys.executable, "-c", f"FOLDER = {str(folder)!r}\n{RANKS}"],
        capture_output=True, text=True, timeout=300, check=False,
        env={
            **os.environ, "UDFTORCH_RANKS_TIMEOUT": "60", "OMP_NUM_THREADS": "1",
            "UDFTORCH_PROGRESS": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((folder / f"told{rank}").read_text()) for rank in range(3)]
    found = {scenario: [rank[scenario] for rank in ranks] for scenario in ranks[0]}
    return {**found, "written": done.stderr}


@pytest.mark.parametrize("scenario", ["same", "ignored", "forked"])
def test_ranks_that_agree_are_told_nothing(told, scenario):
    assert told[scenario] == [[], [], []]


@pytest.mark.parametrize(
    ("scenario", "wrong", "kind"),
    [
        ("different", 1, "RanksDifferWarning"),
        ("functions", 2, "RanksDifferWarning"),
        ("strict", 1, "RanksDifferError"),
        ("later", 0, "RanksDifferWarning"),
    ],
)
def test_each_rank_is_told_which_rank_differs(told, scenario, wrong, kind):
    for rank, ((category, message),) in enumerate(told[scenario]):
        assert category == kind
        assert f"Rank {rank}, which says this, has " in message
        others = {0, 1, 2} - {rank} if rank == wrong else {wrong}
        assert {n for n in range(3) if f" rank {n} has " in message} == others
    other = told[scenario][wrong - 1][0][1]
    if scenario == "functions":
        assert "functions: exp, log; rank 2 has plus 1, build " in other
    else:
        assert "has plus 1, build " in other
        assert f"rank {wrong} has minus 1, build " in other


def test_a_rank_without_a_session_is_named_and_not_waited_for_for_ever(told):
    assert told["alone"][1:] == [[], []]
    ((category, message),) = told["alone"][0]
    assert category == "RanksDifferWarning"
    for rank in (1, 2):
        assert f"rank {rank} has opened no session within 0.5 s (UDFTORCH_RANKS_TIMEOUT)" in message


def test_a_rank_that_waits_says_for_which_ranks(told):
    line = (
        "udftorch: rank 0 waits up to 0.5 s (UDFTORCH_RANKS_TIMEOUT) for sessions on these ranks: "
        "1, 2: 0 of 2, "
    )
    assert line in told["written"]
    assert ": done" not in told["written"]


def test_a_wrong_choice_or_timeout_is_an_error(monkeypatch):
    with pytest.raises(SessionStateError, match="ranks='maybe' is not one of 'warn', 'error'"):
        patched("corem", ranks="maybe")
    from pytest_udftorch.swap.session import ranks

    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv(ranks.TIMEOUT, text)
        with pytest.raises(SessionStateError, match=f"{ranks.TIMEOUT}='{text}' is not a number"):
            ranks.timeout()
