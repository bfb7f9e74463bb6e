//===- asinhf_gpu.c - Correctly rounded float32 asinh on GPUs -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(a + sqrt(a^2 + 1)) as in asinhf_eight.c, with the logarithm of
// gpu_log_pair.h. The root starts from the GPU's approximation.
//
// Error: below 0.48 of the width of the rounding test, measured on every 1499th
// argument with approximations that are off by up to two units. One argument in
// 2,500 of a normal distribution is left to the fast path, and all from 2^12 to
// 2^19.
//
//===----------------------------------------------------------------------===//

#include "../common/gpu_log_pair.h"
#include "asinhf.c"

// Below it, asinh(a) rounds to a.
#define ASINH_GPU_SMALL 0x1p-13f

UDF_INLINE float udf_asinhf_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // a^2 + 1 and its root in pairs.
  float h = __builtin_fmaf(a, a, 1.0f);
  float h_low = __builtin_fmaf(a, a, 1.0f - h);
  float reciprocal = UDF_GPU_RSQRT(h);
  float root = h * reciprocal;
  float rest = __builtin_fmaf(-root, root, h) + h_low;
  float f = root + a;
  float e = __builtin_fmaf(rest, 0.5f * reciprocal, a - (f - root));
  int undecided;
  float y = udf_gpu_log_of_pair(f, e, &undecided);
  _Bool small = a < ASINH_GPU_SMALL;
  *hard = !small & (undecided | udf_gpu_loses_one(a));
  return udf_f32_add_sign(small ? a : y, x);
}
