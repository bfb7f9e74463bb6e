//===- erff_gpu.c - Correctly rounded float32 erf on GPUs -----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in erff.c, with one term fewer and most coefficients of 21 bits, and one
// after the other: other elements fill the time that a step waits.
//
// Error of the double, measured with disturbed approximations on every 1997th
// input: below 2^13.2 units in its last place.
//
//===----------------------------------------------------------------------===//

#include "erff.c"

#include "../common/gpu.h"

#define ERF_GPU_MARGIN (UINT32_C(1) << 15)

UDF_INLINE float udf_erff_gpu(float x, int *hard) {
  float c = __builtin_fabsf(x);
  // Written so that NaN passes.
  c = c > ERF_MAX ? ERF_MAX : c;
  double a = c;
  double t = UDF_FMA(a, a, -ERF_CENTER);
  double p = UDF_FMA(t, UDF_GPU_ERF_C21, UDF_GPU_ERF_C20);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C19);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C18);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C17);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C16);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C15);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C14);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C13);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C12);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C11);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C10);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C9);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C8);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C7);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C6);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C5);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C4);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C3);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C2);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C1);
  p = UDF_FMA(p, t, UDF_GPU_ERF_C0);
  double y = a * p;
  _Bool subnormal = (c < ERF_SUBNORMAL) & (c > 0);
  *hard = subnormal | udf_gpu_near_boundary(y, ERF_GPU_MARGIN);
  return udf_f32_add_sign((float)y, x);
}
