//===- log1p_wide.h - Quick paths of log1p and its kin at AVX-512 ---------===//
// SPDX-License-Identifier: Apache-2.0
//
// log1p, and logarithms of pairs for asinh, acosh and atanh, with the sums of
// log_eight.h, for AVX-512, where a look-up in a table of 32 entries is one
// permutation.
//
// x = 2^k m with m in [START, 2 START), START near 0.7, which is cut into 32
// intervals. c is a reciprocal of m of so few bits that r = m c - 1 is exact in
// float, and c = 1 in the interval of 1:
//
//   log(x) = (k log(2) - log(c)) + log(1 + r),   |r| <= 2^-5.39
//
// The encodings count from START 2^-125, so that one unsigned comparison finds
// the arguments that are left to the fast path: zero, subnormal, negative,
// infinite and NaN ones, and the normal ones below START 2^-125. The table of
// reciprocals has the factor 2^125, and that of high parts has 125 log(2) less.
//
// The high parts of log(2) and log(c) are multiples of 2^-17, so that their sum
// a is exact. What log(2) lacks is a share of it and hence, with an entry of
// the other table, a share of a. Where the result can be small, a and the entry
// are zero.
//
// log(1 + r) = r (SLOPE + SQUARE r + r (...)), SLOPE = 1, or 1/2 for atanh. t =
// SLOPE + SQUARE r and high = a + r t are rounded once each; fused
// multiply-adds give the errors of these roundings, which join the low part. a
// - high must be exact for that: beside the interval of 1, where a and r t
// cancel, r is at most twice the power of two that is at most the result. What
// SQUARE lacks is in the low part, too.
//
// Error. The product with r, the sum with the error of t, and the last sum are
// rounded after r^3: some 1.25 2^-24 of slope r^3 in all. In the interval of 1
// the result is slope r, and |r| <= 2^-6.4. The reciprocals of the others are
// those with the smallest r^3 / log(x), which is at most 2^-11.5 (at the upper
// end of the interval above that of 1) and makes the error 2^-35.2 of the
// result there; it is far less elsewhere. Polynomials add 2^-38.
//
// The sum is never too small: SHARE has MARGIN more than what log(2) lacks, and
// the coefficient of r^3 has 2^-24 SLOPE more, which is for the interval of 1.
// So the true value lies between high + low and high + low - WIDTH high, WIDTH
// = 2 MARGIN, and when both round to the same float that is its rounding.
// log1p_wide.gappa has the proof (tests/native/test_log1p_wide_bounds.py) but
// for parts of the interval above that of 1, where the estimate, with what r^3
// has more, is larger than WIDTH; the test runs their arguments. Runs of all
// arguments found no wrong result.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG1P_WIDE_H
#define UDF_LOG1P_WIDE_H

#include "corem.h"

#include "log1p_wide_constants.h"

#ifdef __FMA__

// An argument 2^k m.
typedef struct {
  uint32_t offset; // the encoding, counted from START
  float k;         // counted from that of START, times 2^23
  float m;         // times a power of two, for which the reciprocals make up
  uint32_t j;      // the number of the interval, in the low five bits
} udf_log1p_wide_parts;

UDF_INLINE udf_log1p_wide_parts udf_log1p_wide_split(uint32_t u) {
  uint32_t offset = u - UDF_LOG1P_WIDE_START;
  uint32_t k = offset & UINT32_C(0xff800000);
  return (udf_log1p_wide_parts){offset, (float)(int32_t)k,
                                udf_f32_from_bits(u - k),
                                offset >> UDF_LOG1P_WIDE_SHIFT};
}

// The series of slope log(1 + r) = r (slope + slope_low + square r + r (p[0] +
// p[1] r + ...)).
typedef struct {
  float slope, slope_low, square;
  const float *p;
} udf_log1p_wide_series;

// An unevaluated sum of two floats.
typedef struct {
  float high, low;
} udf_log1p_wide_pair;

// a + low + the series, where a is zero or at least as large.
UDF_INLINE udf_log1p_wide_pair udf_log1p_wide_sum(float a, float low, float r,
                                                  udf_log1p_wide_series g) {
  float t = __builtin_fmaf(r, g.square, g.slope);
  float t_low = __builtin_fmaf(r, g.square, g.slope - t);
  // A constant; log has none.
  if (g.slope_low != 0)
    t_low += g.slope_low;
  float high = __builtin_fmaf(r, t, a);
  float error = __builtin_fmaf(r, t, a - high);
  float q = __builtin_fmaf(r, g.p[4], g.p[3]);
  q = __builtin_fmaf(r, q, g.p[2]);
  q = __builtin_fmaf(r, q, g.p[1]);
  // Another constant.
  q = g.p[0] != 0 ? __builtin_fmaf(r, q, g.p[0]) : r * q;
  q = __builtin_fmaf(r, q, t_low);
  return (udf_log1p_wide_pair){high, __builtin_fmaf(r, q, error + low)};
}

// The sum rounded, which is between one and 1 - width times the true value.
// Where the argument is not valid the other sum is 0, and this one is not.
UDF_INLINE float udf_log1p_wide_round(udf_log1p_wide_pair y, float width,
                                      _Bool valid, int *hard) {
  float upper = y.high + y.low;
  float lower = y.high + __builtin_fmaf(y.high, -width, y.low);
  lower = valid ? lower : 0.0f;
  *hard = upper != lower;
  return upper;
}

#endif

#endif // UDF_LOG1P_WIDE_H
