//===- acosf_gpu.c - Correctly rounded float32 acos on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// acos(x) as in acosf.c, with the parts of gpu_asin.h.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^13.5 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "../common/gpu_asin.h"
#include "acosf.c"

#define ACOS_GPU_MARGIN (UINT32_C(1) << 14)

UDF_INLINE float udf_acosf_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  _Bool upper = a > 0.5f;
  double p;
  double t = udf_gpu_asin_parts(a, upper, &p);
  // |x| <= 1/2: pi/2 - x P; above, 2 t P, or pi less it.
  uint32_t sign = udf_f32_bits(x) & UINT32_C(0x80000000);
  t = udf_gpu_add_high(
      t, (upper ? UINT32_C(0x00100000) : UINT32_C(0x80000000)) ^ sign);
  double base = UDF_GPU_WORDS(
      upper ? (x < 0 ? UDF_GPU_PI : 0) : UDF_GPU_HALF_PI, UDF_GPU_PI_LOW);
  double y = UDF_FMA(t, p, base);
  *hard = udf_gpu_near_boundary(y, ACOS_GPU_MARGIN);
  return (float)y;
}
