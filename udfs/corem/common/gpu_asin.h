//===- gpu_asin.h - asin and acos on GPUs ---------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// For a <= 1/2 t = a, and above t = sqrt((1 - a) / 2), as in asinf.c; both
// functions need t P(t^2), P of nine terms, the last three in float.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_GPU_ASIN_H
#define UDF_GPU_ASIN_H

#include "gpu.h"

// The upper words of pi and pi/2; their lower words are the same, and alone
// less than 2^-1022.
#define UDF_GPU_PI UINT32_C(0x400921fb)
#define UDF_GPU_HALF_PI UINT32_C(0x3ff921fb)
#define UDF_GPU_PI_LOW UINT32_C(0x54442d18)

// t for a in [0, 1], and P(t^2); NaN beyond.
UDF_INLINE double udf_gpu_asin_parts(float a, _Bool upper, double *p) {
  float z = __builtin_fmaf(a, -0.5f, 0.5f);
  float r = UDF_GPU_RSQRT(z);
  // z = 0 has no reciprocal root; it is a multiple of 2^-25 otherwise.
  r = r > 0x1p20f ? 0x1p20f : r;
  float h = z * r;
  float high = upper ? h : a;
  float low = __builtin_fmaf(-h, h, z) * (upper ? 0.5f * r : 0.0f);
  double t = (double)high + (double)low;
  double s = t * t;
  float f = high * high;
  float tail = __builtin_fmaf(f, UDF_GPU_ASIN_C8, UDF_GPU_ASIN_C7);
  tail = __builtin_fmaf(f, tail, UDF_GPU_ASIN_C6);
  double q = UDF_FMA((double)tail, s, UDF_GPU_ASIN_C5);
  q = UDF_FMA(q, s, UDF_GPU_ASIN_C4);
  q = UDF_FMA(q, s, UDF_GPU_ASIN_C3);
  q = UDF_FMA(q, s, UDF_GPU_ASIN_C2);
  q = UDF_FMA(q, s, UDF_GPU_ASIN_C1);
  *p = UDF_FMA(q, s, UDF_GPU_ASIN_C0);
  return t;
}

#endif // UDF_GPU_ASIN_H
