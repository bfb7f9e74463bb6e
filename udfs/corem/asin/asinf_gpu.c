//===- asinf_gpu.c - Correctly rounded float32 asin on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// asin(a) as in asinf.c, with the parts of gpu_asin.h.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^13.7 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "../common/gpu_asin.h"
#include "asinf.c"

#define ASIN_GPU_MARGIN (UINT32_C(1) << 14)

UDF_INLINE float udf_asinf_gpu(float x, int *hard) {
  float a = __builtin_fabsf(x);
  _Bool upper = a > 0.5f;
  double p;
  double t = udf_gpu_asin_parts(a, upper, &p);
  // Above 1/2: pi/2 - 2 t P. t = 0 becomes -2^-1022, which changes nothing.
  t = udf_gpu_add_high(t, upper ? UINT32_C(0x80100000) : 0);
  double base = UDF_GPU_WORDS(upper ? UDF_GPU_HALF_PI : 0, UDF_GPU_PI_LOW);
  double y = UDF_FMA(t, p, base);
  *hard = udf_gpu_near_boundary(y, ASIN_GPU_MARGIN);
  return udf_f32_add_sign((float)y, x);
}
