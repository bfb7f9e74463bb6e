# SPDX-License-Identifier: Apache-2.0
"""A product kernel of repro whose sums of chunks wait in memory, beside the one that ships.

    python -m benches.experiments.contract_products

Says for square matrices on a GPU whether the kernel gives the bits of the one that ships, and how
its time compares with that and with cuBLAS without TF32. The candidate keeps one digit of the
counter of chunks in registers, and so has room for larger steps.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from benches.experiments import command
from pytest_udftorch.contract.gpu import CHUNK, GPU
from pytest_udftorch.contract.triton_kernels import _minus_zero

SIZES = (512, 1024, 2048, 4096)
#: Rows, columns and steps of a tile, and programs of a multiprocessor.
TILES = ((64, 64, 16, 3), (64, 64, 32, 2), (64, 64, 32, 3))


@triton.jit(
    do_not_specialize=["m", "n", "k", "batches", "splits", "a_batch", "b_batch"],
)
def products(a, b, c, waiting, m, n, k, batches, splits, a_batch, a_row, a_k, b_batch, b_k,
             b_column, LEVELS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """Multiply batches of matrices; of each split of k, which has 2^LEVELS chunks, a part.

    c is dense: (splits, batches, m, n). Sums of 2, 4, 8, ... chunks wait in global memory for a
    partner of their size, where each program has room for LEVELS tiles. WHOLE says that k is a
    multiple of STEP.
    """
    across = tl.cdiv(n, COLUMNS)
    down = tl.cdiv(m, ROWS)
    tiles = down * across
    nothing = _minus_zero()
    SIZE: tl.constexpr = ROWS * COLUMNS
    PARTS: tl.constexpr = CHUNK // STEP
    BAND: tl.constexpr = 8
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    room = waiting + tl.program_id(0).to(tl.int64) * (LEVELS * SIZE) + places
    for task in range(tl.program_id(0), tiles * batches * splits, tl.num_programs(0)):
        tile = task % tiles
        batch = (task // tiles % batches).to(tl.int64)
        split = (task // tiles // batches).to(tl.int64)
        # Neighbours share rows and columns, which then are in the cache.
        band = tile // (BAND * across)
        height = tl.minimum(down - band * BAND, BAND)
        i = (band * BAND + tile % (BAND * across) % height) * ROWS + tl.arange(0, ROWS)
        j = tile % (BAND * across) // height * COLUMNS + tl.arange(0, COLUMNS)
        first = (split * (CHUNK << LEVELS)).to(tl.int32)
        end = tl.minimum(first.to(tl.int64) + (CHUNK << LEVELS), k).to(tl.int32)
        at = first + tl.arange(0, STEP)
        left = a + batch * a_batch + (i % m)[:, None].to(tl.int64) * a_row
        left += at[None, :].to(tl.int64) * a_k
        right = b + batch * b_batch + (j % n)[None, :].to(tl.int64) * b_column
        right += at[:, None].to(tl.int64) * b_k
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        one = acc
        steps = tl.cdiv(end - first, STEP)
        for s in range(steps):
            if WHOLE:
                x = tl.load(left)
                y = tl.load(right)
            else:
                inside = at + s * STEP < end
                x = tl.load(left, inside[None, :], other=0.0)
                y = tl.load(right, inside[:, None], other=nothing)
            left += STEP * a_k
            right += STEP * b_k
            acc = tl.dot(x, y, acc, input_precision="ieee")
            if (s % PARTS == PARTS - 1) | (s == steps - 1):
                q = s // PARTS
                if (q & 1) == 0:
                    one = acc
                else:
                    total = one + acc
                    level = 0
                    rest = q >> 1
                    while (rest & 1) == 1:
                        total = tl.load(room + level * SIZE) + total
                        level += 1
                        rest = rest >> 1
                    tl.store(room + level * SIZE, total)
                    tl.debug_barrier()
                acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        chunks = tl.cdiv(end - first, CHUNK)
        total = tl.broadcast_to(nothing, (ROWS, COLUMNS))
        if (chunks & 1) == 1:
            total = one + total
        rest = chunks >> 1
        level = 0
        while rest > 0:
            if (rest & 1) == 1:
                total = tl.load(room + level * SIZE) + total
            level += 1
            rest = rest >> 1
        to = c + (split * batches + batch) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
        tl.store(to, total, (i < m)[:, None] & (j < n)[None, :])
        tl.debug_barrier()


def candidate(a: Any, b: Any, rows: int, columns: int, step: int, resident: int) -> Any:
    """Return the product of two matrices by the kernel above."""
    (m, k), n = a.shape, b.shape[1]
    levels = max(-(-k // CHUNK) - 1, 0).bit_length()
    processors = torch.cuda.get_device_properties(a.device).multi_processor_count
    programs = min(-(-m // rows) * -(-n // columns), processors * resident)
    c = torch.empty(m, n, device=a.device)
    waiting = torch.empty(programs * levels * rows * columns, device=a.device)
    products[(programs,)](
        a, b, c, waiting, m, n, k, 1, 1, 0, *a.stride(), 0, *b.stride(), LEVELS=levels,
        CHUNK=CHUNK, ROWS=rows, COLUMNS=columns, STEP=step, WHOLE=k % step == 0, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return c


def median_ms(call: Callable[[], Any]) -> float:
    """Return the median of 15 times, after a first call."""
    call()
    times = []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[7]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    command.parser("contract_products", __doc__).parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    same = True
    for size in SIZES:
        a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
        want = GPU.mm(a, b)
        stock = median_ms(lambda a=a, b=b: a @ b)
        print(f"{size}: ships {stock / median_ms(lambda a=a, b=b: GPU.mm(a, b)):.2f} of cuBLAS")
        for tile in TILES:
            equal = torch.equal(candidate(a, b, *tile).view(torch.int32), want.view(torch.int32))
            same &= equal
            share = stock / median_ms(lambda a=a, b=b, tile=tile: candidate(a, b, *tile))
            print(f"{size}, {tile}: {share:.2f}, {'the same' if equal else 'OTHER'} bits")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
