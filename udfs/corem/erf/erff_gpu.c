//===- erff_gpu.c - Correctly rounded float32 erf on GPUs -----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The quick path at AVX-512, odd_quick.h, with its tables in one array. A table
// is 128 bytes, a line of the cache: a warp reads 32 entries of it at a time.
//
// All operations are those of IEEE 754, and no approximation of the GPU is
// among them. So the bound of odd_quick.h holds, and a run of all 2^32
// arguments on a CPU found no wrong result, as it did for the quick path.
//
//===----------------------------------------------------------------------===//

#include "erff.c"

#include "gpu_constants.h"

// The encoding of 2^-64, as in erff.c.
#define ERF_GPU_TINY UINT32_C(0x1f800000)

#define ERF_GPU_ENTRY(column, i) udf_gpu_erf[UDF_GPU_ERF_##column][i]

UDF_INLINE float udf_erff_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  a = a > ERF_MAX ? ERF_MAX : a;
  float b = __builtin_fmaf(a, UDF_GPU_ERF_SCALE, UDF_GPU_ERF_ORIGIN);
  uint32_t i = (udf_f32_bits(b) >> UDF_GPU_ERF_SHIFT) % 32;
  udf_odd_entries e = {
      ERF_GPU_ENTRY(CENTER, i), ERF_GPU_ENTRY(VALUE, i),
      ERF_GPU_ENTRY(SLOPE, i),  ERF_GPU_ENTRY(SLOPE_LOW, i),
      ERF_GPU_ENTRY(P2, i),     ERF_GPU_ENTRY(P3, i),
      ERF_GPU_ENTRY(P4, i),     ERF_GPU_ENTRY(P5, i),
      ERF_GPU_ENTRY(P6, i),     ERF_GPU_ENTRY(WIDTH, i),
  };
  udf_odd_pair p = udf_odd_quick_series(a - e.center, e);
  int undecided;
  float y = udf_odd_quick_round(p, e.width, &undecided);
  // Zero, whose encoding is 0, is not tiny.
  *hard = undecided | (udf_f32_bits(a) - 1 < ERF_GPU_TINY - 1);
  return udf_f32_add_sign(y, x);
}
