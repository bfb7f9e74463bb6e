//===- log_fast.h - What the fast paths of the logarithms share -----------===//
// SPDX-License-Identifier: Apache-2.0
//
// log, log2, log10, log1p, acosh and asinh write their argument as 2^k m with m
// in [sqrt(1/2), sqrt(2)) and add a multiple of k to the series of log(m):
//
//   reduction  k and 2^-k come from the encoding of the argument as float32. An
//              argument in double is rounded to float32 for this purpose only,
//              so that m may leave the interval by 2^-23.
//   series     s = (m - 1) / (m + 1) = r / (r + 2) with r = m - 1, |s| <=
//              0.1717, and log(m) = s P(s^2), P of six terms.
//
// Shared error bound: the quotient, the Horner steps and the final sum stay
// below 2^-49, relative to the result, with or without FMA. Each function's
// file adds what its P and its r contribute; the total must stay below 2^-44,
// which is what the margin covers.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_FAST_H
#define UDF_LOG_FAST_H

#include "corem.h"

#include "log_fast_constants.h"

// Margin of the rounding test in units in the last place of the double, for an
// error below 2^-44.
#define UDF_LOG_MARGIN (UINT64_C(1) << 9)

// The encoding u of the argument, counted from that of sqrt(1/2): k is in the
// upper 9 bits.
UDF_INLINE uint32_t udf_log_offset(uint32_t u) { return u - UDF_LOG_SQRT_HALF; }

UDF_INLINE double udf_log_k(uint32_t offset) {
  return (double)((int32_t)offset >> 23);
}

// The same without a conversion from int, which in scalar code waits for the
// register of the previous result.
UDF_INLINE double udf_log_k_by_sum(uint32_t offset) {
  uint32_t k = (uint32_t)((int32_t)offset >> 23);
  return udf_f32_from_bits(k + UINT32_C(0x4b400000)) - 0x1.8p23f;
}

// m - 1 of a normal float32 argument with the encoding u; exact.
UDF_INLINE double udf_log_r(uint32_t u, uint32_t offset) {
  return udf_f32_from_bits(u - (offset & UINT32_C(0xff800000))) - 1.0f;
}

// 2^-k for k <= 126.
UDF_INLINE double udf_log_scale(uint32_t offset) {
  return udf_f32_from_bits(UINT32_C(0x3f800000) -
                           (offset & UINT32_C(0xff800000)));
}

// k c + s P(s^2) with the six coefficients p of P.
UDF_INLINE double udf_log_series(double r, const double *p, double k,
                                 double c) {
  double s = r / (r + 2.0);
  double w = s * s;
  double q = UDF_FMA(p[5], w, p[4]);
  q = UDF_FMA(q, w, p[3]);
  q = UDF_FMA(q, w, p[2]);
  q = UDF_FMA(q, w, p[1]);
  q = UDF_FMA(q, w, p[0]);
  return UDF_FMA(s, q, k * c);
}

// Whether log, log2 and log10 leave the encoding u to the accurate path: zero,
// subnormal, negative, infinite and NaN arguments.
UDF_INLINE int udf_log_special(uint32_t u) {
  return u - UINT32_C(0x00800000) >= UINT32_C(0x7f000000);
}

// Whether x is zero, negative, infinite or NaN; *y is then the value of log,
// log2 and log10.
UDF_INLINE int udf_log_at_limit(float x, float *y) {
  uint32_t u = udf_f32_bits(x);
  if (u - 1 >= UINT32_C(0x7f800000) - 1) {
    if ((u << 1) == 0)
      *y = -__builtin_inff();
    else if (u == UINT32_C(0x7f800000))
      *y = x;
    else
      *y = __builtin_nanf("");
    return 1;
  }
  return 0;
}

#endif // UDF_LOG_FAST_H
