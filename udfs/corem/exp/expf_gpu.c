//===- expf_gpu.c - Correctly rounded float32 exp on GPUs -----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in expf.c; results that are subnormal are left to it.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^14.6 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "expf.c"

#include "../common/gpu_exp.h"

#define EXP_GPU_MARGIN (UINT32_C(1) << 15)

UDF_INLINE float udf_expf_gpu(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > EXP_MAX ? EXP_MAX : x;
  c = c < EXP_MIN ? EXP_MIN : c;
  double kd;
  double p = udf_gpu_exp_part(c, &kd);
  double y = udf_gpu_scaled(p, kd);
  _Bool subnormal = (c < EXP_SUBNORMAL) & (c > EXP_MIN);
  *hard = subnormal | udf_gpu_near_boundary(y, EXP_GPU_MARGIN);
  return (float)y;
}
