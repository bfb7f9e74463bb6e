//===- acosf_gpu.c - Correctly rounded float32 acos on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The quick path at AVX-512, acosf_wide.c, with its tables in one array, as in
// asinf_gpu.c.
//
//===----------------------------------------------------------------------===//

#include "acosf.c"

#include "../common/gpu.h"
#include "../common/rows_wide.h"

#include "gpu_constants.h"

#define ACOS_GPU_ENTRY(column, i) udf_gpu_acos[UDF_GPU_ACOS_##column][i]

UDF_INLINE float udf_acosf_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > 0.5f;
  float s = __builtin_fmaf(a, -0.5f, 0.5f);
  float reciprocal = UDF_GPU_RSQRT(s);
  // s = 0 has no reciprocal root; it is a multiple of 2^-25 otherwise.
  reciprocal = reciprocal > 0x1p20f ? 0x1p20f : reciprocal;
  float root = s * reciprocal;
  float v = upper ? root : x;
  // Zero for the middle branch.
  float rest = upper ? __builtin_fmaf(-root, root, s) : 0.0f;
  float d = rest * (0.5f * reciprocal);
  float first = x > 0.5f ? UDF_ROWS_WIDE_MAGIC + 8 : UDF_ROWS_WIDE_MAGIC;
  first = x < -0.5f ? UDF_ROWS_WIDE_MAGIC + 16 : first;
  uint32_t i = udf_f32_bits(__builtin_fmaf(v, UDF_GPU_ACOS_SCALE, first)) % 32;
  float r = v - ACOS_GPU_ENTRY(CENTER, i);
  udf_rows_wide_row e = {
      ACOS_GPU_ENTRY(VALUE, i),
      ACOS_GPU_ENTRY(SLOPE, i),
      ACOS_GPU_ENTRY(P2, i),
      ACOS_GPU_ENTRY(P3, i),
      ACOS_GPU_ENTRY(P4, i),
      __builtin_fmaf(r, ACOS_GPU_ENTRY(P6, i), ACOS_GPU_ENTRY(P5, i)),
      ACOS_GPU_ENTRY(WIDTH, i),
  };
  float more = __builtin_fmaf(e.slope, d, ACOS_GPU_ENTRY(LOW, i));
  int undecided;
  float y = udf_rows_wide(r, d, more, e, &undecided);
  // Beyond 1 and for NaN the root is NaN, and so is y.
  *hard = undecided & (a <= 1.0f);
  return y;
}
