//===- odd_eight.h - Quick paths of odd functions by eight intervals ------===//
// SPDX-License-Identifier: Apache-2.0
//
// f(a) for a >= 0 in pairs of floats, as in odd_quick.h, for AVX2, where a
// table of eight entries is one register and a look-up in it one permutation,
// but a look-up in 32 entries seven instructions.
//
// SLOPE a - CURVE a^2, rounded to an integer, numbers the intervals: short near
// zero and long where f changes little. With c near the middle of the interval,
// r = a - c is exact in float, and
//
//   f(c + r) (1 + m) = value + slope r + p2 r^2 + p3 r^3 + p4 r^4 + r^5 (p5 +
//   ...)
//
// The centers are chosen (odd_eight.py) so that value and p2 are floats but for
// little; slope is a pair. What the roundings of p3 and p4 take away, the other
// coefficients make up for. In the interval of 0 c, value, p2 and p4 are zero,
// and the result keeps its relative accuracy.
//
// The intervals are so long that the terms up to r^4 are too large for float.
// So Horner's scheme is exact for four steps: v = p3 + p4 r, u = p2 + v r,
// t = slope + u r and high = value + t r are rounded once each, and fused
// multiply-adds give the errors of these roundings, which join the low part.
//
// Error, relative to the result. Six roundings count 2^-24 each of the terms
// from r^5 on, which are at most 2^-13 of the result: of p5 + ..., of r^2, of
// their product, and of three products with r. The polynomial adds at most
// 2^-34. m, the same for all intervals, is larger than the sum. So the
// tables give a result that is not too small and at most 2 m too large: the
// true value lies between high + low and high + low - 2 m high, and when both
// round to the same float that is its rounding. odd_eight.gappa has the proof
// (tests/native/test_odd_eight_bounds.py).
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ODD_EIGHT_H
#define UDF_ODD_EIGHT_H

#include "corem.h"

#ifdef __FMA__

// The entries of an interval.
typedef struct {
  float center, value, slope, slope_low, p2, p3, p4, p5, p6, p7, p8;
} udf_eight_entries;

// The number of the interval of a, in the low bits.
UDF_INLINE uint32_t udf_odd_eight_index(float a, float slope, float curve) {
  float t = __builtin_fmaf(a, -curve, slope);
  return udf_f32_bits(__builtin_fmaf(a, t, 0x1.8p23f));
}

// (1 + m) f(center + r) rounded, which is between one and 1 - width times the
// true value.
UDF_INLINE float udf_odd_eight(float r, udf_eight_entries e, float width,
                               int *undecided) {
  float v = __builtin_fmaf(e.p4, r, e.p3);
  float v_low = __builtin_fmaf(e.p4, r, e.p3 - v);
  float u = __builtin_fmaf(v, r, e.p2);
  float u_low = __builtin_fmaf(v, r, e.p2 - u);
  float t = __builtin_fmaf(u, r, e.slope);
  float t_low = __builtin_fmaf(u, r, e.slope - t) + e.slope_low;
  float high = __builtin_fmaf(t, r, e.value);
  float error = __builtin_fmaf(t, r, e.value - high);
  float q = __builtin_fmaf(r, e.p8, e.p7);
  q = __builtin_fmaf(r, q, e.p6);
  q = __builtin_fmaf(r, q, e.p5);
  float low = __builtin_fmaf(r * r, q, v_low);
  low = __builtin_fmaf(r, low, u_low);
  low = __builtin_fmaf(r, low, t_low);
  low = __builtin_fmaf(r, low, error);
  float upper = high + low;
  float lower = high + __builtin_fmaf(high, width, low);
  *undecided = upper != lower;
  return upper;
}

#endif

#endif // UDF_ODD_EIGHT_H
