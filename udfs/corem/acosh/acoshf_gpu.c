//===- acoshf_gpu.c - Correctly rounded float32 acosh on GPUs -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(x + sqrt(x^2 - 1)) as in acoshf_eight.c, with the logarithm of
// gpu_log_pair.h. The root starts from the GPU's approximation.
//
// Error: below 0.43 of the width of the rounding test, measured on every 1499th
// argument with approximations that are off by up to two units. Arguments from
// 2^12 to 2^19 are left to the fast path.
//
//===----------------------------------------------------------------------===//

#include "../common/gpu_log_pair.h"
#include "acoshf.c"

UDF_INLINE float udf_acoshf_gpu(float x, int *hard) {
  // x^2 - 1 and its root in pairs. 1 gives NaN.
  float p = x * x;
  float p_low = __builtin_fmaf(x, x, -p);
  float d = p - 1.0f;
  float h = d + p_low;
  float h_low = p_low - (h - d);
  float reciprocal = UDF_GPU_RSQRT(h);
  float root = h * reciprocal;
  float rest = __builtin_fmaf(-root, root, h) + h_low;
  float f = x + root;
  float e = __builtin_fmaf(rest, 0.5f * reciprocal, root - (f - x));
  int undecided;
  float y = udf_gpu_log_of_pair(f, e, &undecided);
  *hard = undecided | udf_gpu_loses_one(x) | !(x >= 1.0f);
  return y;
}
