# SPDX-License-Identifier: Apache-2.0
"""Memory runs out around a session or its profile: an error, and nothing stays swapped.

The limit is one on the address space of the process, a little above what it has at the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import errno, json, re, resource
import torch
from pytest_udftorch import UdfError, build_library, patched

LIMIT = resource.RLIMIT_AS
x = torch.linspace(-5, 5, 100_001)
stock, out = torch.exp(x), torch.empty_like(x)
build = build_library("corem")
for profile in (False, True):  # what a process does once needs memory that it keeps
    with patched("corem", ("exp",), profile=profile):
        right = torch.exp(x)
assert not torch.equal(right, stock)

def attempt(profile):
    with patched("corem", ("exp",), profile=profile) as session:
        if profile:
            torch.exp(x[:1000], out=out[:1000])
            return str(session.profile.table()) and "right"
        torch.exp(x, out=out)
    return "right" if torch.equal(out, right) else "wrong bits"

told = {}
for profile in (False, True):
    for room in (0, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 26):
        blocks = []
        size = int(re.search(r"VmSize:\\s*(\\d+)", open("/proc/self/status").read())[1]) << 10
        resource.setrlimit(LIMIT, (size + room, -1))
        try:
            while True:  # the free lists of the allocators are used up first
                blocks.append(bytearray(1 << 14))
        except MemoryError:
            for _ in range(room >> 14):
                if blocks:
                    blocks.pop()
        try:
            found = attempt(profile)
        except (UdfError, MemoryError) as error:
            found = type(error).__name__
        except OSError as error:
            found = "MemoryError" if error.errno == errno.ENOMEM else "foreign: " + repr(error)
        except RuntimeError as error:  # torch's
            found = "MemoryError" if "memory" in str(error).lower() else "foreign: " + repr(error)
        except BaseException as error:
            found = "foreign: " + repr(error)
        finally:
            resource.setrlimit(LIMIT, (-1, -1))
            blocks.clear()
        told[f"{profile} {room}"] = [found, torch.equal(torch.exp(x), stock), attempt(profile)]
print(json.dumps(told))
"""


@pytest.mark.slow
def test_memory_that_runs_out_leaves_nothing_swapped(faults):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    first = [found for found, *_ in told.values()]
    healed, errors = first.count("right"), sum(f.isidentifier() and f != "right" for f in first)
    faults.add("session", "out of memory", len(told), healed, errors)
    assert all(after[1:] == [True, "right"] for after in told.values()), told
    assert healed, told
    assert errors, told
    assert healed + errors == len(told), told
