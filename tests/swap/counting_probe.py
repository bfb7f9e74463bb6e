# SPDX-License-Identifier: Apache-2.0
"""Runs the counting code of ``kernels`` on the CPU, in Triton's interpreter.

    python counting_probe.py CASES OUT

CASES is an .npz with x<i>, y<i> and, for functions of two arguments, z<i>; OUT gets the slot
that was counted in as slot<i>. Values are float32 and of any length.
"""

import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.filterwarnings("ignore", category=RuntimeWarning)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pytest_udftorch.swap.cuda import kernels as cuda_kernels  # noqa: E402
from pytest_udftorch.swap.cuda.counters import SLOT, empty_slot  # noqa: E402
from pytest_udftorch.swap.cuda.kernels import _count, _known, _launched  # noqa: E402

#: What the clock of the GPU shows.
NOW = 123


@triton.jit
def clock():
    return tl.full([], 123, tl.int64)


@triton.jit
def processor():
    return tl.program_id(0)


@triton.jit
def probe(x, z, y, n, row, TWO: tl.constexpr, BLOCK: tl.constexpr):
    _launched(row, n, 0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    seen = (row, inside)
    known = _known(seen, 1)
    given, result = tl.load(x + at, inside, other=0.0), tl.load(y + at, inside, other=0.0)
    if TWO:
        _count(given, tl.load(z + at, inside, other=0.0), result, seen, known, 1)
    else:
        _count(given, None, result, seen, known, 1)


def main(cases: str, out: str) -> None:
    # The interpreter's machine has neither.
    cuda_kernels._now, cuda_kernels._processor = clock, processor
    found = {}
    with np.load(cases) as arrays:
        for i in range(sum(name.startswith("x") for name in arrays)):
            x, y = (torch.from_numpy(arrays[f"{name}{i}"]) for name in "xy")
            two = f"z{i}" in arrays
            z = torch.from_numpy(arrays[f"z{i}"]) if two else x
            block, stride = arrays[f"settings{i}"].tolist()
            row = torch.from_numpy(np.tile(empty_slot(stride), 2))
            for _ in range(2):  # the second launch finds the ranges of the first
                probe[(-(-len(x) // block),)](x, z, y, len(x), row, two, block)
            found[f"slots{i}"] = row.numpy().reshape(2, SLOT)
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
