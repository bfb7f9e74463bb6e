//===- gpu_exp.h - Exponentials on GPUs -----------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// exp(z) = 2^k exp(r) as in expf.c, the last four terms of the polynomial in
// float.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_GPU_EXP_H
#define UDF_GPU_EXP_H

#include "gpu.h"

#include "../exp/constants.h"

// exp(z) / 2^k, with k in the lower word of *kd.
UDF_INLINE double udf_gpu_exp_part(double z, double *kd) {
  *kd = UDF_FMA(z, EXP_LOG2E, UDF_ROUND_MAGIC);
  double r = UDF_FMA(*kd - UDF_ROUND_MAGIC, -EXP_LN2, z);
  float f = (float)r;
  float tail = __builtin_fmaf(f, UDF_GPU_EXP_C8, UDF_GPU_EXP_C7);
  tail = __builtin_fmaf(f, tail, UDF_GPU_EXP_C6);
  tail = __builtin_fmaf(f, tail, UDF_GPU_EXP_C5);
  double p = UDF_FMA((double)tail, r, UDF_GPU_EXP_C4);
  p = UDF_FMA(p, r, UDF_GPU_EXP_C3);
  p = UDF_FMA(p, r, UDF_GPU_EXP_C2);
  p = UDF_FMA(p, r, UDF_GPU_EXP_C1);
  return UDF_FMA(p, r, UDF_GPU_EXP_C0);
}

// y times 2^k, for normal results; NaN stays NaN.
UDF_INLINE double udf_gpu_scaled(double y, double kd) {
  return udf_gpu_add_high(y, UDF_GPU_LOW(kd) << 20);
}

#endif // UDF_GPU_EXP_H
