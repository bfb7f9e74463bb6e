//===- erfcf_gpu.c - Correctly rounded float32 erfc on GPUs ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in erfcf.c, the last terms of both polynomials in float; results that
// are subnormal are left to it.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^15.0 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "erfcf.c"

#include "../common/gpu_exp.h"

#define ERFC_GPU_MARGIN (UINT32_C(1) << 16)

UDF_INLINE float udf_erfcf_gpu(float x, int *hard) {
  // As in erfcf.c: exp(-a^2) q F(q), q = 1 / (a + 4).
  float c = x > ERFC_MAX ? ERFC_MAX : x;
  c = c < ERFC_MIN ? ERFC_MIN : c;
  double a = __builtin_fabsf(c);
  double b = a + ERFC_SHIFT;
  float first = UDF_GPU_RCP(__builtin_fabsf(c) + (float)ERFC_SHIFT);
  double q = first;
  q = UDF_FMA(UDF_FMA(-b, q, 1.0), q, q);
  double v = q - ERFC_MIDDLE;
  float f = (float)v;
  float tail = __builtin_fmaf(f, UDF_GPU_ERFC_C14, UDF_GPU_ERFC_C13);
  tail = __builtin_fmaf(f, tail, UDF_GPU_ERFC_C12);
  tail = __builtin_fmaf(f, tail, UDF_GPU_ERFC_C11);
  tail = __builtin_fmaf(f, tail, UDF_GPU_ERFC_C10);
  tail = __builtin_fmaf(f, tail, UDF_GPU_ERFC_C9);
  double p = UDF_FMA((double)tail, v, UDF_GPU_ERFC_C8);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C7);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C6);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C5);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C4);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C3);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C2);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C1);
  p = UDF_FMA(p, v, UDF_GPU_ERFC_C0);
  double kd;
  double e = udf_gpu_exp_part(-(a * a), &kd);
  double y = udf_gpu_scaled(e * (q * p), kd);
  // erfc(-a) = 2 - erfc(a).
  uint32_t sign = udf_f32_bits(c) & UINT32_C(0x80000000);
  y = UDF_GPU_WORDS(UDF_GPU_HIGH(y) ^ sign, UDF_GPU_LOW(y)) +
      UDF_GPU_WORDS(sign >> 1, 0);
  _Bool subnormal = (c > (float)ERFC_SUBNORMAL) & (c < ERFC_MAX);
  *hard = subnormal | udf_gpu_near_boundary(y, ERFC_GPU_MARGIN);
  return (float)y;
}
