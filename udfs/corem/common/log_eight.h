//===- log_eight.h - Quick paths of the logarithms at AVX2 ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log, log2, log10 and log1p in pairs of floats, as in log_quick.h, for AVX2,
// where a look-up in a table of eight entries is one permutation and one in 16
// entries three instructions.
//
// x = 2^k m with m in [START, 2 START), START near 0.71, which is cut into
// eight intervals. c is a reciprocal of m of so few bits that r = m c - 1 is
// exact in float, and c = 1 in the interval of 1. For g = log, log2 or log10:
//
//   g(x) = (k g(2) - g(c)) + g(1 + r),   |r| <= 2^-3.91
//
// The high parts of g(2) and g(c) are multiples of 2^-17 (log2: 2^-16, log10:
// 2^-18), so that their sum a is exact. Where the result can be small, a is
// zero.
//
// g(1 + r) = r (SLOPE + SQUARE r + r (...)). t = SLOPE + SQUARE r and high = a
// + r t are rounded once each; fused multiply-adds give the errors of these
// roundings, which join the low part. What SLOPE and SQUARE lack is in the low
// part, too. The terms from r^3 on are evaluated in float.
//
// Error. The terms in float err by some 2^-23 of r^3/3, so that the error is
// largest where r is, and has little to do with the size of the result: it is
// some 2^-35.5 where |result| >= CAP. Below, in the intervals around 1, r is
// smaller, and the error is less than MARGIN relative to the result. So the
// width of the rounding test is MARGIN min(|high|, CAP): most results are
// larger than CAP, and hardly any of these is left undecided. log_eight.gappa
// proves both bounds but for a few pieces, whose arguments the test runs
// (tests/native/test_log_eight_bounds.py). Sources say how large errors were.
//
// |high| > LIMIT leaves to the fast path: zero, subnormal, negative, infinite
// and NaN arguments, which give k <= -127 or k >= 128 here and some finite
// high, and the normal ones below 2^-125 and from 2^125 on.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_EIGHT_H
#define UDF_LOG_EIGHT_H

#include "corem.h"

#include "log_eight_constants.h"

#ifdef __FMA__

// An argument 2^k m.
typedef struct {
  float k; // times 2^23, as the constants TWO expect it
  float m;
  uint32_t j; // the number of the interval, in the low three bits
} udf_log_eight_parts;

UDF_INLINE udf_log_eight_parts udf_log_eight_split(uint32_t u) {
  uint32_t offset = u - UDF_LOG_EIGHT_START;
  uint32_t k = offset & UINT32_C(0xff800000);
  return (udf_log_eight_parts){(float)(int32_t)k, udf_f32_from_bits(u - k),
                               offset >> UDF_LOG_EIGHT_SHIFT};
}

// m c - 1; exact.
UDF_INLINE float udf_log_eight_r(udf_log_eight_parts x) {
  return __builtin_fmaf(x.m, udf_log_eight_reciprocal[x.j % 8], -1.0f);
}

// g(1 + r) = r (slope + slope_low + square r + r (p[0] + p[1] r + ...)).
typedef struct {
  float slope, slope_low, square;
  const float *p;
} udf_log_eight_series;

// An unevaluated sum of two floats.
typedef struct {
  float high, low;
} udf_log_eight_pair;

// a + low + g(1 + r), where a is zero or |a| >= |g(1 + r)|.
UDF_INLINE udf_log_eight_pair udf_log_eight_sum(float a, float low, float r,
                                                udf_log_eight_series g) {
  float t = __builtin_fmaf(r, g.square, g.slope);
  float t_low = __builtin_fmaf(r, g.square, g.slope - t);
  // A constant; log has none.
  if (g.slope_low != 0)
    t_low += g.slope_low;
  float high = __builtin_fmaf(r, t, a);
  float error = __builtin_fmaf(r, t, a - high);
  float q = __builtin_fmaf(r, g.p[5], g.p[4]);
  q = __builtin_fmaf(r, q, g.p[3]);
  q = __builtin_fmaf(r, q, g.p[2]);
  q = __builtin_fmaf(r, q, g.p[1]);
  q = __builtin_fmaf(r, q, g.p[0]);
  q = __builtin_fmaf(r, q, t_low);
  return (udf_log_eight_pair){high, __builtin_fmaf(r, q, error + low)};
}

// The sum rounded, unless it is so near a boundary that the error matters.
UDF_INLINE float udf_log_eight_round(udf_log_eight_pair y, float cap,
                                     float margin, float limit, int *hard) {
  float size = __builtin_fabsf(y.high);
  float width = size < cap ? size : cap;
  float upper = y.high + __builtin_fmaf(width, margin, y.low);
  float lower = y.high + __builtin_fmaf(width, -margin, y.low);
  *hard = (upper != lower) | (size > limit);
  return upper;
}

#endif

#endif // UDF_LOG_EIGHT_H
