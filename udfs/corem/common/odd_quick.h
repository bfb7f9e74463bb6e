//===- odd_quick.h - Quick paths of odd functions by tables ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// f(a) for a >= 0 in pairs of floats, twice as many to a register as doubles,
// for the vector and array forms where there is FMA. The function is odd, has a
// derivative at 0 and, from some argument on, one result.
//
// b = SCALE a + ORIGIN is in [1, 16). Its exponent and the first bits of its
// significand number 32 intervals, eight to an octave, short near zero and long
// where f changes little: two registers hold an entry of each. With c near the
// middle of the interval, r = a - c is exact in float, and
//
//   f(c + r) (1 + m) = value + slope r + p2 r^2 + r^3 (p3 + p4 r + p5 r^2 +
//   ...)
//
// The centers are chosen (odd_quick.py) so that value and p2 are floats but for
// less than 2^-38 of the result; slope is a pair. In the interval of 0 c, value
// and p2 are zero, and the result keeps its relative accuracy.
//
// t = slope + p2 r and value + t r are rounded once each, to t and high; fused
// multiply-adds give the errors of both roundings, which begin the low part.
//
// Error, relative to the result. The polynomial of an interval is within 2^-38
// to 2^-34 of f. The roundings of p3 + ..., of r^2 and of their product with r
// count three times 2^-24 of the terms from r^3 on, which are at most 2^-11 of
// the result; all others, those of the errors of roundings, stay below 2^-41.
// An interval's m is larger than the sum. So the tables give a result that is
// not too small and at most 2 m too large: the true value lies between high +
// low and high + low - 2 m high, and when both round to the same float that is
// its rounding. odd_quick.gappa has the proof
// (tests/native/test_odd_quick_bounds.py).
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ODD_QUICK_H
#define UDF_ODD_QUICK_H

#include "corem.h"

#ifdef __FMA__

// The entries of an interval; width is -2 m.
typedef struct {
  float center, value, slope, slope_low, p2, p3, p4, p5, p6, width;
} udf_odd_entries;

// An unevaluated sum of two floats.
typedef struct {
  float high, low;
} udf_odd_pair;

// (1 + m) f(center + r).
UDF_INLINE udf_odd_pair udf_odd_quick_series(float r, udf_odd_entries e) {
  float t = __builtin_fmaf(e.p2, r, e.slope);
  float t_low = __builtin_fmaf(e.p2, r, e.slope - t) + e.slope_low;
  float high = __builtin_fmaf(t, r, e.value);
  float error = __builtin_fmaf(t, r, e.value - high);
  float q = __builtin_fmaf(r, e.p6, e.p5);
  q = __builtin_fmaf(r, q, e.p4);
  q = __builtin_fmaf(r, q, e.p3);
  float low = __builtin_fmaf(r, __builtin_fmaf(r * r, q, t_low), error);
  return (udf_odd_pair){high, low};
}

// The sum rounded; it is between one and 1 - width times the true value.
UDF_INLINE float udf_odd_quick_round(udf_odd_pair y, float width,
                                     int *undecided) {
  float upper = y.high + y.low;
  float lower = y.high + __builtin_fmaf(y.high, width, y.low);
  *undecided = upper != lower;
  return upper;
}

#endif

#endif // UDF_ODD_QUICK_H
