//===- atan2f_wide.c - Quick path of atan2 at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The angle is 0, pi/2 or pi plus atan(n / d), where |n| <= |d|: y / x, or -x /
// y where |y| is larger. n / d = v + rest, of which v is the rounded quotient.
// A fused multiply-add gives the remainder, and root_wide.h a reciprocal of few
// bits for it. As in rows_wide.h, 32 rows of tables have a polynomial
//
//   atan(c + r) = value + slope r + r^2 (p2 + p3 r + p4 r^2)
//
// for |v|, with |r| below 1/52. c is chosen so that value is a multiple of
// 2^-22 and slope a float, but for little. The first parts of pi/2 and pi are
// such multiples, too. So their sum with value, or with -value where v is
// negative, is exact. s is r with the sign of v, and only r^2 has that sign in
// the last term: there r s takes its place.
//
// Error of |v|'s polynomial, absolute. Value, slope and the fit are off by
// 2^-35 at most. The terms from r^2 on are below 2^-13 and have four
// roundings that count: of the polynomial, of r^2 twice, and of the product.
// That is below 2^-35; the other low parts are below 2^-22, and their
// roundings below 2^-44. In the first row the error is relative to v, and less
// than 2^-32.5 of it. The generator estimates each row at some points, and a
// width is 1.35 times that. Widths are in proportion to the result up to CAP,
// the end of the first row, and equal from there on. wide.gappa has the proof
// for every pair that is decided (tests/native/test_atan2_wide_bounds.py). Of
// 2^33 pairs, along lines, near the ends of rows and random, none that the test
// decides was wrong. With 0.74 of the widths two of 2^27 were, with 0.65 one in
// 800,000.
//
// The rounding test leaves one of 1,000 pairs to the fast path that are uniform
// in a square, most of them near the positive axis of x: there it is one in 370
// where |y| <= x, and one in 120 where |y| < x / 32. It also leaves results
// below 2^-40 but not 0, (0, 0), and pairs of which the larger is below 2^-40
// or not below 2^88. Where the quotient is rounded to zero, the result is.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/root_wide.h"

#include "wide_constants.h"

#ifdef __FMA__

// Adding it leaves an integer in the low bits of the encoding.
#define ATAN2_WIDE_MAGIC 0x1.8p23f
// Added to the encoding of a divisor from 2^-40 on and below 2^88, and of no
// other, it sets bit 30.
#define ATAN2_WIDE_RANGE UINT32_C(0x14800000)
#define ATAN2_WIDE_BIT UINT32_C(0x40000000)
// The encoding of 2^-40. Less 1, zero has the largest of all.
#define ATAN2_WIDE_LEAST UINT32_C(0x2b800000)

UDF_INLINE float udf_atan2f_wide(float y, float x, int *hard) {
  float a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  int inverse = b > a;
  float n = inverse ? -x : b;
  float d = inverse ? b : x;
  float v = n / d;
  // Half of what v lacks.
  float rest = __builtin_fmaf(-v, d, n) * udf_root_wide_half_inverse(d);

  float size = __builtin_fabsf(v);
  float sign = udf_f32_add_sign(1.0f, v);
  uint32_t i = udf_f32_bits(
      __builtin_fmaf(size, UDF_ATAN2_WIDE_SCALE, ATAN2_WIDE_MAGIC));
  float center = udf_atan2_wide_center[i % 32];
  float r = size - center;
  float s = __builtin_fmaf(-sign, center, v);

  // 0, pi/2 or pi.
  float part = inverse ? 0.0f : udf_f32_add_sign(UDF_ATAN2_WIDE_HALF_PI, x);
  float base = UDF_ATAN2_WIDE_HALF_PI - part;
  float value = __builtin_fmaf(sign, udf_atan2_wide_value[i % 32], base);

  float slope = udf_atan2_wide_slope[i % 32];
  float high = __builtin_fmaf(slope, s, value);
  float low = __builtin_fmaf(slope, s, value - high);
  float more = __builtin_fmaf(slope, rest, base * (0.5f * UDF_ATAN2_WIDE_LOW));
  low = __builtin_fmaf(2.0f, more, low);
  float q =
      __builtin_fmaf(r, udf_atan2_wide_p4[i % 32], udf_atan2_wide_p3[i % 32]);
  q = __builtin_fmaf(r, q, udf_atan2_wide_p2[i % 32]);
  // The square of r and what v lacks.
  float square = r * __builtin_fmaf(4.0f, rest, s);
  low = __builtin_fmaf(square, q, low);

  float capped = high < UDF_ATAN2_WIDE_CAP ? high : UDF_ATAN2_WIDE_CAP;
  float width = udf_atan2_wide_width[i % 32];
  float upper = high + __builtin_fmaf(capped, width, low);
  float lower = high + __builtin_fmaf(capped, -width, low);
  uint32_t range = (udf_f32_bits(d) + ATAN2_WIDE_RANGE) & ATAN2_WIDE_BIT;
  uint32_t encoding = udf_f32_bits(high) - 1;
  // Masked, the last sum costs nothing more. No result is negative here.
  _Bool inside = (range != 0) & (encoding >= ATAN2_WIDE_LEAST);
  lower = inside ? lower : -1.0f;
  *hard = upper != lower;
  return udf_f32_add_sign(upper, y);
}
#endif
