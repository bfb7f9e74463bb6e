# SPDX-License-Identifier: Apache-2.0
"""The Triton softmax of the benches, run by Triton's interpreter on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]

SCRIPT = """
import torch
import triton

from benches.experiments.compile_triton import _softmax_long, _softmax_rows, _softmax_wide

torch.manual_seed(6)


def rows_of(rows, columns):
    x = torch.randn(rows, columns)
    x[0, : columns // 2] = -float("inf")
    x[1] = -1e30
    x[2, -1] = 1e30
    x[3, 0] = 1e30
    x[4, -9:] = -float("inf")
    return x


def check(x, kernel, grid, *sizes, **constants):
    y = torch.full_like(x, 7.0)
    kernel[grid](x, y, *sizes, x.shape[1], **constants)
    torch.testing.assert_close(y, torch.softmax(x, 1))


# Rows that start anywhere between groups of four, with one, some and no floats left over.
for columns in (51, 53, 58, 59, 60):
    x = rows_of(9, columns)
    for again in (False, True):
        check(x, _softmax_wide, (9,), CHUNK=16, KEPT=3, REST=16, AGAIN=again,
              EVEN=columns % 4 == 0, STORE="")
for columns in (32, 40, 41, 44):
    check(rows_of(6, columns), _softmax_wide, (6,), CHUNK=16, KEPT=2, REST=16, AGAIN=False,
          EVEN=columns % 4 == 0, STORE="")
check(rows_of(5, 64), _softmax_wide, (5,), CHUNK=16, KEPT=3, REST=16, AGAIN=True, EVEN=True,
      STORE="")
check(rows_of(5, 61), _softmax_rows, (3,), 5, BLOCK=64, ROWS=2, WHOLE=False)
check(rows_of(5, 61), _softmax_long, (5,), HEAD=16, CHUNK=8, STORE="", STAGES=1)
"""

SETTINGS = """
from benches.experiments.compile_triton import CHUNK, IN_REGISTERS, settings

for n in (*range(IN_REGISTERS - 5, IN_REGISTERS + 9), 40000, 49151, 49152, 49155, 50257, 60001,
          *range(65528, 65545), 100000):
    for kernel, *sizes in settings(n):
        if kernel == "wide":
            kept, rest, again, warps, store = sizes
            # Floats before the first group of four come out of the same lanes of every row.
            free = rest if n % 4 == 0 else rest - 4
            assert (n if n % 4 == 0 else n - 3) >= kept * CHUNK, n
            assert n - kept * CHUNK <= free, n
            assert 2 <= kept <= 3, n
        else:
            assert (kernel == "rows") == (n <= IN_REGISTERS), n
assert {s[0] for s in settings(50257)} == {s[0] for s in settings(65536)} == {"wide"}
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [SCRIPT, SETTINGS], ids=["results", "settings"])
def test_rows_of_any_length(script):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
