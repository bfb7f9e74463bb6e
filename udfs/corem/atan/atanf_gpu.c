//===- atanf_gpu.c - Correctly rounded float32 atan on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See gpu_atan.h.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^13.7 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "../common/gpu_atan.h"
#include "atanf.c"

#define ATAN_GPU_MARGIN (UINT32_C(1) << 14)

UDF_INLINE float udf_atanf_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // With one = (a > tan(pi/8)) and two = (a < tan(3 pi/8)), the fraction is
  // (two a - one) / (one a + two).
  _Bool one = a > 0x1.a8279ap-2f, two = a < 0x1.3504f4p+1f;
  float fone = one ? 1.0f : 0.0f, ftwo = two ? 1.0f : 0.0f;
  float r = UDF_GPU_RCP(__builtin_fmaf(a, fone, ftwo));
  float t0 = __builtin_fmaf(a, ftwo, -fone) * r;
  double d = a;
  double done = UDF_GPU_WORDS(one ? UINT32_C(0x3ff00000) : 0, 0);
  double dtwo = UDF_GPU_WORDS(two ? UINT32_C(0x3ff00000) : 0, 0);
  double rest =
      UDF_FMA(-(double)t0, UDF_FMA(d, done, dtwo), UDF_FMA(d, dtwo, -done));
  double t = UDF_FMA(rest, (double)r, (double)t0);
  uint32_t high = one ? (two ? UDF_GPU_QUARTER_PI : UDF_GPU_HALF_PI) : 0;
  double y = udf_gpu_atan_of(t, t0, UDF_GPU_WORDS(high, UDF_GPU_PI_LOW));
  // 1 / a must not be subnormal.
  *hard = !(a < 0x1p126f) | udf_gpu_near_boundary(y, ATAN_GPU_MARGIN);
  return udf_f32_add_sign((float)y, x);
}
