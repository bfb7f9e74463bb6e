//===- asinhf_gpu.c - Correctly rounded float32 asinh on GPUs -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See gpu_log.h.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^15.6 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "../common/gpu_log.h"
#include "asinhf.c"

#define ASINH_GPU_MARGIN (UINT32_C(1) << 16)
#define ASINH_GPU_SMALL 0x1.6p-7f

UDF_INLINE float udf_asinhf_gpu(float x, int *hard) {
  // log(e), e = a + sqrt(a^2 + 1); below 2^-6.5, where e - 1 loses bits,
  // a - a^3/6 + 3/40 a^5.
  float a = __builtin_fabsf(x);
  double d = a;
  double v = UDF_FMA(d, d, 1.0);
  double e = d + udf_gpu_root(v, (float)v);
  uint32_t t = udf_log_offset(udf_f32_bits((float)e));
  double y = udf_gpu_log_of(UDF_FMA(udf_gpu_log_scale(t), e, -1.0), t);
  float s = a * a;
  double small =
      d +
      (double)(s * (a * __builtin_fmaf(s, 0x1.333334p-4f, -0x1.555556p-3f)));
  y = a < ASINH_GPU_SMALL ? small : y;
  *hard = !(a < 0x1p60f) | udf_gpu_near_boundary(y, ASINH_GPU_MARGIN);
  return udf_f32_add_sign((float)y, x);
}
