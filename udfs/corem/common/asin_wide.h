//===- asin_wide.h - Quick paths of asin and acos at AVX-512 --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in asin_eight.h, base + t G(s) with G(s) = asin(sqrt(s)) / sqrt(s), in
// pairs of floats: t = a and s = a^2 for small a = |x|, and t = -2 sqrt(s) and
// s = (1 - a) / 2 beyond UDF_ASIN_WIDE_END. s is selected before the root, and
// one set of tables of 32 intervals serves both: s SCALE, rounded, numbers
// them, and
//
//   G(c + r) = value + r (p1 + p2 r + p3 r^2),  r = s - c
//
// asin_wide.py chooses the centers c so that value and p1 are floats but for
// errors that do not count. value + r (p1 + ...) is rounded once, and a fused
// multiply-add gives the error of this rounding.
//
// rest = root^2 - s is exact. Where root is that of s, rest / root is what the
// rounding of -2 root lost, and where it is a, rest G'(s) t is what the
// rounding of a^2 lost. 1 / root needs but 13 bits: an approximation from the
// encoding, corrected by a polynomial in its error e, has 2^-14. So a root is
// the only instruction that occupies the divider.
//
// Error, relative to t: the rounding of p1 + ..., which weighs 2^-27 of |r|,
// and the error of the polynomial are below 2^-34.4 for asin and 2^-34.7 for
// acos together (at points; constants' headers). All others are roundings of
// low parts. In the interval of 0, where r may lose a bit, |r| is half as long.
// These bounds are estimates by hand; no script proves them. The sources say
// what the tests' widths are and what was run.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ASIN_WIDE_H
#define UDF_ASIN_WIDE_H

#include "corem.h"

#ifdef __FMA__

// The entries of an interval.
typedef struct {
  float center, value, p1, p2, p3;
} udf_asin_wide_entries;

// The argument of G, its root and what the square of the root has above it.
typedef struct {
  float s, root, rest, inverse;
} udf_asin_wide_reduced;

// Its low five bits number the interval.
UDF_INLINE uint32_t udf_asin_wide_index(float s, float scale) {
  return udf_f32_bits(__builtin_fmaf(s, scale, 0x1p23f));
}

// The inverse gets the sign.
UDF_INLINE udf_asin_wide_reduced udf_asin_wide_reduce(float a, int upper,
                                                      uint32_t sign) {
  float s = upper ? __builtin_fmaf(a, -0.5f, 0.5f) : a * a;
  float root = upper ? __builtin_sqrtf(s) : a;
  float rest = __builtin_fmaf(root, root, -s);
  float y = udf_f32_from_bits(UINT32_C(0x5f3759df) - (udf_f32_bits(s) >> 1));
  float e = __builtin_fmaf(-root, y, 1.0f);
  e = __builtin_fmaf(e, e, e);
  y = udf_f32_from_bits(udf_f32_bits(y) ^ sign);
  return (udf_asin_wide_reduced){s, root, rest, __builtin_fmaf(y, e, y)};
}

// An unevaluated sum of two floats.
typedef struct {
  float high, low;
} udf_asin_wide_pair;

// base + t G(s).
UDF_INLINE udf_asin_wide_pair udf_asin_wide(udf_asin_wide_reduced x, float t,
                                            float base, float low_part,
                                            udf_asin_wide_entries e,
                                            int upper) {
  float r = x.s - e.center;
  float q = __builtin_fmaf(r, e.p3, e.p2);
  q = __builtin_fmaf(r, q, e.p1);
  float f = __builtin_fmaf(r, q, e.value);
  float f_low = __builtin_fmaf(r, q, e.value - f);
  float high = __builtin_fmaf(t, f, base);
  float low = __builtin_fmaf(t, f, base - high);
  low = __builtin_fmaf(base, low_part, low);
  low = __builtin_fmaf(t, f_low, low);
  float slope = upper ? x.inverse * f : t * q;
  low = __builtin_fmaf(x.rest, slope, low);
  return (udf_asin_wide_pair){high, low};
}

#endif

#endif // UDF_ASIN_WIDE_H
