//===- hypotf_wide.c - Quick path of hypot at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// sqrt(a^2 + b^2) in pairs of floats, a being the larger size. The sum of the
// squares is rounded once, and fused multiply-adds give what that and the
// rounding of a^2 lost. With r, the root of sum, sum - r^2 is exact by another,
// and
//
//   sqrt(sum + low) = r + (sum - r^2 + low) / (2 r)
//
// but for half the square of that term. root_wide.h has 1 / (2 r) but for
// 2^-12.5 of it, without a division.
//
// So nearly all of the error is in proportion to the term, and a width in
// proportion to it, 2^-12, is the whole rounding test. The roundings of low,
// sum - r^2 + low and the term, and half its square, are below 2^-46 of the
// result. Where that is more than the width has left, the term is below 2^-32,
// and the result is r for both. wide.gappa has the proof
// (tests/native/test_pairs_paths.py). Half-way results do not pass.
//
// Sums outside of HYPOT_WIDE_MIN and HYPOT_WIDE_MAX, zeros, infinities and NaN
// are left to the fast path, and by the rounding test one pair in 4,100. Of
// 2^31 pairs none was wrong, nor of 2^26 with a width of 0x1.6p-13; with
// 0x1.4p-13 it was one in 2 million.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/root_wide.h"

#ifdef __FMA__
#define HYPOT_WIDE_WIDTH 0x1p-12f
// The encodings of 2^-70 and 2^120.
#define HYPOT_WIDE_MIN UINT32_C(0x1c800000)
#define HYPOT_WIDE_MAX UINT32_C(0x7b800000)

UDF_INLINE float udf_hypotf_wide(float x, float y, int *hard) {
  float ax = __builtin_fabsf(x), ay = __builtin_fabsf(y);
  float a = ax > ay ? ax : ay;
  float b = ax > ay ? ay : ax;
  float square = a * a;
  float sum = __builtin_fmaf(b, b, square);
  float low =
      __builtin_fmaf(b, b, square - sum) + __builtin_fmaf(a, a, -square);
  float r = __builtin_sqrtf(sum);
  float rest =
      (__builtin_fmaf(-r, r, sum) + low) * udf_root_wide_half_inverse(r);
  float upper = __builtin_fmaf(rest, 1.0f + HYPOT_WIDE_WIDTH, r);
  float lower = __builtin_fmaf(rest, 1.0f - HYPOT_WIDE_WIDTH, r);
  _Bool inside =
      udf_f32_bits(sum) - HYPOT_WIDE_MIN <= HYPOT_WIDE_MAX - HYPOT_WIDE_MIN;
  // Masked, the last instruction costs nothing more if it leaves its factor. No
  // result outside is equal to that.
  lower = inside ? lower : 1.0f - HYPOT_WIDE_WIDTH;
  *hard = upper != lower;
  return upper;
}
#endif
