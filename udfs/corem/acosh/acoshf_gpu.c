//===- acoshf_gpu.c - Correctly rounded float32 acosh on GPUs -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See gpu_log.h.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^12.0 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "../common/gpu_log.h"
#include "acoshf.c"

#define ACOSH_GPU_MARGIN (UINT32_C(1) << 14)

UDF_INLINE float udf_acoshf_gpu(float x, int *hard) {
  // log(e), e = x + sqrt(x^2 - 1). Except for x = 1, e - 1 is at least 2^-11.5,
  // so that its 53 bits suffice.
  double d = x;
  double v = UDF_FMA(d, d, -1.0);
  float f = (float)v;
  double e = d + udf_gpu_root(v, f);
  // e in float, to choose k.
  uint32_t t = udf_log_offset(udf_f32_bits((float)e));
  double y = udf_gpu_log_of(UDF_FMA(udf_gpu_log_scale(t), e, -1.0), t);
  *hard = !((x >= 1.0f) & (x < 0x1p60f)) |
          udf_gpu_near_boundary(y, ACOSH_GPU_MARGIN);
  return (float)y;
}
