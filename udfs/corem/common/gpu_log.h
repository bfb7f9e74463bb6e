//===- gpu_log.h - Logarithms on GPUs -------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(e) for e >= 1 as in log_fast.h, with k from e in float, and a polynomial
// of six terms whose last three fit into instructions.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_GPU_LOG_H
#define UDF_GPU_LOG_H

#include "gpu.h"
#include "log_fast.h"

// a / b for normal numbers, relative error below 2^-40.
UDF_INLINE double udf_gpu_quotient(double a, double b) {
#ifdef __NVPTX__
  double r = __nvvm_rcp_approx_ftz_d(b);
#else
  // 20 bits, as a GPU has them.
  double r = udf_f64_from_bits(udf_f64_bits(1 / b) & ~UINT64_C(0xffffffff));
#endif
  double q = a * r;
  return UDF_FMA(UDF_FMA(-q, b, a), r, q);
}

// 2^-k, k and the polynomial's value of log(e) by e in float: u are its bits.
UDF_INLINE double udf_gpu_log_scale(uint32_t t) {
  uint32_t k = (uint32_t)((int32_t)t >> 3) & UINT32_C(0xfff00000);
  return UDF_GPU_WORDS(UINT32_C(0x3ff00000) - k, 0);
}

// log(1 + r) + k log(2).
UDF_INLINE double udf_gpu_log_of(double r, uint32_t t) {
  double k = (double)((int32_t)t >> 23);
  double s = udf_gpu_quotient(r, r + 2.0);
  double w = s * s;
  double q = UDF_FMA(w, UDF_GPU_LOG_C5, UDF_GPU_LOG_C4);
  q = UDF_FMA(q, w, UDF_GPU_LOG_C3);
  q = UDF_FMA(q, w, UDF_GPU_LOG_C2);
  q = UDF_FMA(q, w, UDF_GPU_LOG_C1);
  q = UDF_FMA(q, w, 2.0);
  return UDF_FMA(s, q, k * UDF_LOG_LN2);
}

// sqrt(v) for v >= 0, relative error below 2^-43; f is v in float. It must be
// zero, or lie in [2^-24, 2^126].
UDF_INLINE double udf_gpu_root(double v, float f) {
  float r = UDF_GPU_RSQRT(f);
  // 0 has no reciprocal root.
  r = r > 0x1p13f ? 0x1p13f : r;
  double h = v * (double)r;
  // Half of r.
  double half = udf_gpu_add_high(r, UINT32_C(0xfff00000));
  return UDF_FMA(UDF_FMA(-h, h, v), half, h);
}

#endif // UDF_GPU_LOG_H
