//===- log_quick.h - Quick paths of the logarithms ------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log, log2, log10 and log1p in pairs of floats, twice as many to a register as
// doubles, for the vector and array forms where there is FMA.
//
// x = 2^k m with m in [START, 2 START), START near 0.7, which is cut into J =
// 32 intervals, or 16 at AVX2: what a table of two registers holds. c is a
// reciprocal of m of so few bits that r = m c - 1 is exact in float, and c = 1
// in the interval of 1:
//
//   log(x) = (k log(2) - log(c)) + log(1 + r),   |r| <= 2^-5.62 (2^-4.72)
//
// The high parts of log(2) and log(c) are multiples of 2^-17 (log2: 2^-16,
// log10: 2^-18), so that a, their sum, is exact; the low parts are known to
// 2^-43 (2^-42, 2^-44). Where the result can be small, a is zero.
//
// log(1 + r) = hi + lo: hi is r - r^2/2 rounded once, lo begins with its error
// and takes in r^3 times a polynomial. log2 and log10 multiply the pair by
// log2(e) or log10(e).
//
// Error. Its largest parts are the roundings on the way to the term of r^3, up
// to 2^-24 of it each, and of the last sums, at the ends of the intervals
// beside that of 1, where r and the parts known to 2^-43 are largest against
// the result. Relative to the result the error stays below MARGIN, 1.25 2^-35
// (AVX2: 1.25 2^-33). log_quick.gappa has the proof but for a few pieces beside
// 1, whose arguments are run one by one (tests/native/test_quick_bounds.py). So
// the true value lies between the two sums of high and low, and when both round
// to the same float that is its rounding.
//
// Zero, subnormal, negative, infinite and NaN arguments are left to the fast
// path: the callers count them as hard.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_QUICK_H
#define UDF_LOG_QUICK_H

#include "corem.h"

#include "log_quick_constants.h"

#ifdef __FMA__

// An unevaluated sum of two floats.
typedef struct {
  float hi, lo;
} udf_log_pair;

// The encoding u of the argument, counted from that of START: k is in the upper
// 9 bits, the interval in the next ones.
UDF_INLINE uint32_t udf_log_quick_offset(uint32_t u) {
  return u - UDF_LOG_QUICK_START;
}

UDF_INLINE float udf_log_quick_k(uint32_t offset) {
  return (float)((int32_t)offset >> 23);
}

UDF_INLINE uint32_t udf_log_quick_interval(uint32_t offset) {
  return offset >> UDF_LOG_QUICK_SHIFT;
}

UDF_INLINE float udf_log_quick_c(uint32_t offset) {
  return udf_log_quick_reciprocal[udf_log_quick_interval(offset) %
                                  UDF_LOG_QUICK_STEPS];
}

// m c - 1 of a normal argument; exact.
UDF_INLINE float udf_log_quick_r(uint32_t u, uint32_t offset, float c) {
  float m = udf_f32_from_bits(u - (offset & UINT32_C(0xff800000)));
  return __builtin_fmaf(m, c, -1.0f);
}

// log(1 + r).
UDF_INLINE udf_log_pair udf_log_quick_series(float r) {
  const float *p = udf_log_quick_poly;
  float h = -0.5f * r;
  float hi = __builtin_fmaf(r, h, r);
  float lo = __builtin_fmaf(r, h, r - hi);
  float q = __builtin_fmaf(r, p[3], p[2]);
  q = __builtin_fmaf(r, q, p[1]);
  q = __builtin_fmaf(r, q, p[0]);
  return (udf_log_pair){hi, __builtin_fmaf(r * h, r * q, lo)};
}

// g times the sum of the floats hi and lo.
UDF_INLINE udf_log_pair udf_log_quick_scale(udf_log_pair g, float hi,
                                            float lo) {
  float product = g.hi * hi;
  float error = __builtin_fmaf(g.hi, hi, -product);
  error = __builtin_fmaf(g.hi, lo, error);
  return (udf_log_pair){product, __builtin_fmaf(g.lo, hi, error)};
}

// a + g + low rounded, where |a| >= |g.hi| or a = 0.
UDF_INLINE float udf_log_quick_sum(float a, udf_log_pair g, float low,
                                   int *undecided) {
  float high = a + g.hi;
  float rest = (g.hi - (high - a)) + (g.lo + low);
  float one = high + __builtin_fmaf(high, UDF_LOG_QUICK_MARGIN, rest);
  float other = high + __builtin_fmaf(high, -UDF_LOG_QUICK_MARGIN, rest);
  *undecided = one != other;
  return one;
}

#endif

#endif // UDF_LOG_QUICK_H
