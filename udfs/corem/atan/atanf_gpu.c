//===- atanf_gpu.c - Correctly rounded float32 atan on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The quick path at AVX-512, atanf_wide.c, with its tables in one array. A
// table is 128 bytes, a line of the cache: a warp reads 32 entries of it at a
// time. 1/|x| is the GPU's approximation (gpu_rows.h).
//
// One argument in 400 of a normal distribution is left to the fast path.
//
//===----------------------------------------------------------------------===//

#include "atanf.c"

#include "../common/gpu_rows.h"

#include "gpu_constants.h"

#define ATAN_GPU_ENTRY(column, i) udf_gpu_atan[UDF_GPU_ATAN_##column][i]

UDF_INLINE float udf_atanf_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int inverse = a > 1.0f;
  // Not in a branch of its own, so that elements are computed side by side.
  float reciprocal = UDF_GPU_RCP(a);
  float v = inverse ? reciprocal : a;
  float rest = inverse ? __builtin_fmaf(-v, a, 1.0f) : 0.0f;
  float first = inverse ? UDF_ROWS_WIDE_MAGIC + 16 : UDF_ROWS_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(__builtin_fmaf(v, UDF_GPU_ATAN_SCALE, first)) % 32;
  float r = v - ATAN_GPU_ENTRY(CENTER, i);
  udf_rows_wide_row e = {
      ATAN_GPU_ENTRY(VALUE, i), ATAN_GPU_ENTRY(SLOPE, i), ATAN_GPU_ENTRY(P2, i),
      ATAN_GPU_ENTRY(P3, i),    ATAN_GPU_ENTRY(P4, i),    ATAN_GPU_ENTRY(P5, i),
      ATAN_GPU_ENTRY(WIDTH, i),
  };
  float d = v * rest;
  float more = inverse ? __builtin_fmaf(e.slope, d, UDF_GPU_ATAN_MORE) : 0.0f;
  return udf_f32_add_sign(udf_gpu_rows(r, d, r + d, more, e, hard), x);
}
