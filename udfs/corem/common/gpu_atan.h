//===- gpu_atan.h - atan and atan2 on GPUs --------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// For n / d >= 0 the angle is base + atan(t), |t| <= tan(pi/8):
//
//   n / d           base   t
//   below 0.4142    0      n / d
//   up to 2.4142    pi/4   (n - d) / (n + d)
//   above           pi/2   -d / n
//
// t starts from the quotient in float; its remainder is double. P of eight
// terms, the last three in float.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_GPU_ATAN_H
#define UDF_GPU_ATAN_H

#include "gpu.h"

// The upper words of pi/4 and pi/2, and the lower word of both, which alone is
// less than 2^-1022.
#define UDF_GPU_QUARTER_PI UINT32_C(0x3fe921fb)
#define UDF_GPU_HALF_PI UINT32_C(0x3ff921fb)
#define UDF_GPU_PI_LOW UINT32_C(0x54442d18)

// atan(t) less t; t = top / bottom, and t0 is it in float.
UDF_INLINE double udf_gpu_atan_of(double t, float t0, double base) {
  double s = t * t;
  float f = t0 * t0;
  float tail = __builtin_fmaf(f, UDF_GPU_ATAN_C7, UDF_GPU_ATAN_C6);
  tail = __builtin_fmaf(f, tail, UDF_GPU_ATAN_C5);
  double q = UDF_FMA((double)tail, s, UDF_GPU_ATAN_C4);
  q = UDF_FMA(q, s, UDF_GPU_ATAN_C3);
  q = UDF_FMA(q, s, UDF_GPU_ATAN_C2);
  q = UDF_FMA(q, s, UDF_GPU_ATAN_C1);
  q = UDF_FMA(q, s, UDF_GPU_ATAN_C0);
  return UDF_FMA(t, q, base);
}

#endif // UDF_GPU_ATAN_H
