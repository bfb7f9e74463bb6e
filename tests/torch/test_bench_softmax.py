"""The Triton softmax of the benches, run by Triton's interpreter on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]

# The interpreter runs programs one after the other: no program can wait for a later one. So the
# board is written beforehand, from float64; each program still writes its own word.
SCRIPT = """
import torch
import triton

from benches.compile_triton import _softmax_parts, _softmax_rows

torch.manual_seed(6)


def board(x, step, parts):
    words = torch.zeros(len(x) * parts, dtype=torch.int64)
    n = x.shape[1]
    for row, values in enumerate(x):
        skew = row * n % 4
        for part in range(parts):
            first = max(0, part * step - skew)
            mine = values[first : max(0, (part + 1) * step - skew)]
            peak = mine.max() if mine.numel() else torch.tensor(-float("inf"))
            sum_ = torch.exp(mine - peak).sum() if torch.isfinite(peak) else torch.tensor(0.0)
            pair = torch.stack([sum_, peak]).float().view(torch.int32).to(torch.int64)
            words[row * parts + part] = (pair[1] << 32) | (pair[0] & 0xFFFFFFFF)
    return words


def softmax(x, step, block, parts):
    y = torch.full_like(x, 7.0)
    words = board(x, step, parts)
    before = words.clone()
    n = x.shape[1]
    _softmax_parts[(2 * parts,)](
        x, y, words, len(x), n, STEP=step, BLOCK=block, PARTS=parts,
        SPREAD=triton.next_power_of_2(parts), EVEN=n % 4 == 0,
    )
    assert torch.equal(words >> 32, before >> 32), "a program found another peak"
    return y


def check(rows, columns, step, block, parts, extreme):
    x = torch.randn(rows, columns)
    if extreme:
        x[0, : columns // 2] = -float("inf")
        x[1] = -1e30
        x[2, -1] = 1e30
    torch.testing.assert_close(softmax(x, step, block, parts), torch.softmax(x, 1))
    y = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    _softmax_rows[(triton.cdiv(rows, 2),)](x, y, rows, columns, BLOCK=block, ROWS=2, WHOLE=False)
    torch.testing.assert_close(y, torch.softmax(x, 1))


check(3, 64, 64, 64, 1, extreme=False)
# Rows that start anywhere between groups of four.
check(5, 61, 64, 64, 1, extreme=False)
check(5, 125, 32, 32, 4, extreme=True)
# Parts narrower than their block.
check(5, 127, 48, 64, 3, extreme=True)
"""


def test_rows_over_one_and_several_programs():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
