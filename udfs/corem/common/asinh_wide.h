//===- asinh_wide.h - Logarithms of pairs at AVX-512 -------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(f + e) in pairs of floats, |e| at most some units in the last place of f,
// by the tables of log1p_wide.h, and what asinh and acosh have in common. The
// sums are those of log_eight_pair.h.
//
// With f = 2^k m, r = m c - 1 exact and second = 2^-k c e:
//
//   log(f + e) = (k log(2) - log(c)) + log(1 + r) + second / (1 + r)
//
// second is below 2^-22, so that 1 - r + r^2 does for 1 / (1 + r): it errs by
// 2^-16, and that by 2^-38 in all.
//
// No division corrects the root. The encoding of 1 / (2 x) is about SEED less
// that of x, which errs by 6 % at most; a polynomial in the product with x
// leaves 2^-14.
//
// Near zero the logarithm would lose bits, and asinh(s) = s + s^3 P(s^2) is
// selected below END.
//
// Error. That of the logarithm is some 2^-38, and a little more for large
// results. The table of low parts has 2^-37.2 more, so that the sum is always
// too large, and the width of the rounding test is twice that. The series errs
// by 2^-24 s^3/6 for each of four roundings: the coefficient of s^3 has CUBIC /
// 2 = 2^-24 more, and the width is CUBIC s^3, which at END is that of the
// logarithm. Where s itself has a low part, the series has LINEAR s more
// instead. asinh_wide_series.gappa proves the series; that of acosh, which has
// few arguments, is run. log1p_wide.gappa and asinh_wide_root.gappa prove the
// logarithm up to 16 and most of it beyond (tests/native/
// test_asinh_wide_bounds.py); the test runs what is left open. Runs of all
// arguments found no wrong result.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ASINH_WIDE_H
#define UDF_ASINH_WIDE_H

#include "log1p_wide.h"

#ifdef __FMA__

// log(f + e), f > 1.
UDF_INLINE udf_log1p_wide_pair udf_log1p_wide_of_pair(float f, float e) {
  uint32_t u = udf_f32_bits(f);
  udf_log1p_wide_parts x = udf_log1p_wide_split(u);
  float c = udf_log1p_wide_reciprocal[x.j % 32];
  float r = __builtin_fmaf(x.m, c, -1.0f);
  // 2^-k e c.
  float scale = udf_f32_from_bits(udf_f32_bits(c) - (u - udf_f32_bits(x.m)));
  float second = e * scale;
  float inverse = __builtin_fmaf(r, r, 1.0f - r);
  float high =
      __builtin_fmaf(x.k, UDF_LOG1P_WIDE_TWO, udf_log1p_wide_high[x.j % 32]);
  float low = __builtin_fmaf(high, UDF_LOG1P_WIDE_PAIR_SHARE,
                             udf_log1p_wide_pair_low[x.j % 32]);
  low = __builtin_fmaf(second, inverse, low);
  udf_log1p_wide_series g = {
      UDF_LOG1P_WIDE_SLOPE,
      UDF_LOG1P_WIDE_SLOPE_LOW,
      UDF_LOG1P_WIDE_SQUARE,
      udf_log1p_wide_poly,
  };
  return udf_log1p_wide_sum(high, low, r, g);
}

// rest / (2 x).
UDF_INLINE float udf_log1p_wide_half_quotient(float rest, float x) {
  const float *p = udf_log1p_wide_pair_inverse;
  float y = udf_f32_from_bits(UDF_LOG1P_WIDE_PAIR_SEED - udf_f32_bits(x));
  float z = x * y;
  float q = __builtin_fmaf(__builtin_fmaf(p[2], z, p[1]), z, p[0]);
  return (rest * y) * q;
}

// The sum rounded, which is at most factor times size too large. Where the
// argument is not valid the other sum is 0, and this one is not.
UDF_INLINE float udf_log1p_wide_pair_round(udf_log1p_wide_pair y, float size,
                                           float factor, _Bool valid,
                                           int *hard) {
  float upper = y.high + y.low;
  float lower = y.high + __builtin_fmaf(size, -factor, y.low);
  lower = valid ? lower : 0.0f;
  *hard = upper != lower;
  return upper;
}

#endif

#endif // UDF_ASINH_WIDE_H
