//===- hypotf_eight.c - Quick path of hypot at AVX2 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// sqrt(x^2 + y^2) in pairs of floats. Fused multiply-adds give the low parts of
// the squares, and the sum of the high parts is exact as a pair. With r, the
// root of sum, sum - r^2 is exact by a fused multiply-add, and
//
//   sqrt(sum + low) = r + (sum - r^2 + low) / (2 r)
//
// but for half the square of that term.
//
// Error, relative to the result. low is below 2^-23 of the sum and has three
// roundings: xx_low + yy_low, the sum with the rest of the two squares, and
// the sum with sum - r^2; each is below 2^-47 of the sum, of which the root
// leaves half. The quotient is below 2^-23.4 and errs by 2^-47.4, and half of
// its square is 2^-47.8. The sum of these is below 2^-45.5, the rounding test
// errs by 2^-47 more, and it has 2^-44.5. eight.gappa has the proof
// (tests/native/test_hypot_bounds.py). Exact results pass, half-way ones do
// not.
//
// Squares below 2^-100 have no exact low part. What they lack, 2^-126 at most
// where subnormals are flushed, does not count beside HYPOT_EIGHT_MIN. Sums
// outside of HYPOT_EIGHT_MIN and HYPOT_EIGHT_MAX, zeros, infinities and NaN are
// left to the fast path, and by the rounding test one pair of ordinary
// magnitudes in 600,000. Of 2^30 pairs, random and structured, none was wrong,
// nor of 2^27 with a width of 2^-48; two were with 2^-49.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"

#ifdef __FMA__
#define HYPOT_EIGHT_WIDTH 0x1.6p-45f
#define HYPOT_EIGHT_MIN 0x1p-70f
#define HYPOT_EIGHT_MAX 0x1p120f

UDF_INLINE float udf_hypotf_eight(float x, float y, int *hard) {
  float xx = x * x;
  float yy = y * y;
  float xx_low = __builtin_fmaf(x, x, -xx);
  float yy_low = __builtin_fmaf(y, y, -yy);
  float sum = xx + yy;
  float more = xx > yy ? xx : yy;
  float less = xx > yy ? yy : xx;
  float low = ((more - sum) + less) + (xx_low + yy_low);
  float r = __builtin_sqrtf(sum);
  float rest = (__builtin_fmaf(-r, r, sum) + low) / (r + r);
  float upper = r + __builtin_fmaf(r, HYPOT_EIGHT_WIDTH, rest);
  float lower = r + __builtin_fmaf(r, -HYPOT_EIGHT_WIDTH, rest);
  // Written so that NaN is hard.
  *hard =
      (upper != lower) | !(sum >= HYPOT_EIGHT_MIN) | !(sum <= HYPOT_EIGHT_MAX);
  return upper;
}
#endif
