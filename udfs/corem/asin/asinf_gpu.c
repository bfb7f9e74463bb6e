//===- asinf_gpu.c - Correctly rounded float32 asin on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The quick path at AVX-512, asinf_wide.c, with its tables in one array. A
// table is 128 bytes, a line of the cache: a warp reads 32 entries of it at a
// time. The root starts from the GPU's approximation of its reciprocal; what it
// lacks is larger than what a root's rounding loses, but is taken care of in
// the same way.
//
//===----------------------------------------------------------------------===//

#include "asinf.c"

#include "../common/gpu.h"
#include "../common/rows_wide.h"

#include "gpu_constants.h"

#define ASIN_GPU_ENTRY(column, i) udf_gpu_asin[UDF_GPU_ASIN_##column][i]

UDF_INLINE float udf_asinf_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > 0.5f;
  float s = __builtin_fmaf(a, -0.5f, 0.5f);
  float reciprocal = UDF_GPU_RSQRT(s);
  // s = 0 has no reciprocal root; it is a multiple of 2^-25 otherwise.
  reciprocal = reciprocal > 0x1p20f ? 0x1p20f : reciprocal;
  float root = s * reciprocal;
  float v = upper ? root : a;
  // Zero for the lower branch.
  float rest = upper ? __builtin_fmaf(-root, root, s) : 0.0f;
  float d = rest * (0.5f * reciprocal);
  float first = upper ? UDF_ROWS_WIDE_MAGIC + 16 : UDF_ROWS_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(__builtin_fmaf(v, UDF_GPU_ASIN_SCALE, first)) % 32;
  float r = v - ASIN_GPU_ENTRY(CENTER, i);
  udf_rows_wide_row e = {
      ASIN_GPU_ENTRY(VALUE, i), ASIN_GPU_ENTRY(SLOPE, i), ASIN_GPU_ENTRY(P2, i),
      ASIN_GPU_ENTRY(P3, i),    ASIN_GPU_ENTRY(P4, i),    ASIN_GPU_ENTRY(P5, i),
      ASIN_GPU_ENTRY(WIDTH, i),
  };
  float more = upper ? __builtin_fmaf(e.slope, d, UDF_GPU_ASIN_MORE) : 0.0f;
  int undecided;
  float y = udf_rows_wide(r, d, more, e, &undecided);
  // Beyond 1 and for NaN the root is NaN, and so is y.
  *hard = undecided & (a <= 1.0f);
  return udf_f32_add_sign(y, x);
}
