# SPDX-License-Identifier: Apache-2.0
"""Square matrix products written by hand for CUDA: in CUDA C++ through NVRTC, and in Triton.

Both compute in float32 (no TF32), as torch does by default. Imports triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils import cpp_extension

#: 256 threads make a tile of 128 x 128, each thread 8 x 8 of it: 64 products for 16 values read
#: from shared memory. A row of the transposed tile of a is padded, or its stores would meet in
#: few banks.
SOURCE = """
extern "C" __global__ void __launch_bounds__(256)
matmul(const float *a, const float *b, float *c, int n) {
  __shared__ float rows[8][132];
  __shared__ float columns[8][128];
  const int row0 = blockIdx.y * 128, column0 = blockIdx.x * 128;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float sum[8][8] = {};
  for (int k0 = 0; k0 < n; k0 += 8) {
    for (int part = 0; part < 4; ++part) {
      const int place = threadIdx.x + 256 * part;
      const int r = place / 8, kr = place % 8;
      const bool in_a = row0 + r < n && k0 + kr < n;
      rows[kr][r] = in_a ? a[(size_t)(row0 + r) * n + k0 + kr] : 0.0f;
      const int s = place % 128, ks = place / 128;
      const bool in_b = column0 + s < n && k0 + ks < n;
      columns[ks][s] = in_b ? b[(size_t)(k0 + ks) * n + column0 + s] : 0.0f;
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 8; ++k) {
      float x[8], y[8];
      #pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = rows[k][8 * ty + i];
        y[i] = columns[k][tx + 16 * i];
      }
      #pragma unroll
      for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j)
          sum[i][j] += x[i] * y[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) {
      const int r = row0 + 8 * ty + i, s = column0 + tx + 16 * j;
      if (r < n && s < n)
        c[(size_t)r * n + s] = sum[i][j];
    }
}
"""


def by_cuda(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """Return a call of the CUDA kernel on two n x n float32 matrices.

    Raises:
        RuntimeError: NVRTC is missing, or does not compile the source.
    """
    home = cpp_extension.CUDA_HOME
    # torch adds the toolkit's headers and fails where there is no toolkit; this source has none.
    cpp_extension.CUDA_HOME = home or "/usr"
    try:
        kernel: Any = torch.cuda._compile_kernel(SOURCE, "matmul")
    finally:
        cpp_extension.CUDA_HOME = home
    n = a.shape[0]
    blocks = (n + 127) // 128

    def call() -> Tensor:
        c = torch.empty_like(a)
        kernel(grid=(blocks, blocks, 1), block=(256, 1, 1), args=[a, b, c, n])
        return c

    return call


@triton.jit
def _product(a, b, c, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):
    # Tiles of GROUP rows of tiles are taken column by column, so that they share what L2 holds.
    tile_rows = tl.cdiv(n, M)
    tile_columns = tl.cdiv(n, N)
    tile = tl.program_id(0)
    group = tile // (GROUP * tile_columns)
    height = tl.minimum(tile_rows - group * GROUP, GROUP)
    within = tile - group * GROUP * tile_columns
    row = group * GROUP + within % height
    column = within // height
    # Offsets of the largest matrices, 17,500^2, still fit in 32 bits.
    r = row * M + tl.arange(0, M)
    s = column * N + tl.arange(0, N)
    k = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for k0 in range(0, n, K):
        left = tl.load(
            a + r[:, None] * n + (k0 + k)[None, :],
            mask=(r[:, None] < n) & ((k0 + k)[None, :] < n),
            other=0.0,
        )
        right = tl.load(
            b + (k0 + k)[:, None] * n + s[None, :],
            mask=((k0 + k)[:, None] < n) & (s[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + r[:, None] * n + s[None, :], total, mask=(r[:, None] < n) & (s[None, :] < n))


#: M, N, K of a tile, and warps.
SETTINGS = ((64, 64, 16, 4), (128, 64, 16, 4), (128, 128, 16, 8))


def by_triton(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """Return a call of the Triton kernel, with the setting that took the least time in one call."""
    n = a.shape[0]

    def make(setting: tuple[int, int, int, int]) -> Callable[[], Tensor]:
        m, columns, k, warps = setting
        grid = (triton.cdiv(n, m) * triton.cdiv(n, columns),)

        def call() -> Tensor:
            c = torch.empty_like(a)
            _product[grid](a, b, c, n, M=m, N=columns, K=k, GROUP=8, num_warps=warps)
            return c

        return call

    def milliseconds(call: Callable[[], Tensor]) -> float:
        call()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop))

    return min(map(make, SETTINGS), key=milliseconds)
