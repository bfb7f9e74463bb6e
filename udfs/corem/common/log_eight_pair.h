//===- log_eight_pair.h - Logarithms of pairs at AVX2 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(f + e) in pairs of floats, |e| at most some units in the last place of f,
// by the tables of log_eight.h, and asinh and acosh by it.
//
// With f = 2^k m, r = m c - 1 exact and second = 2^-k c e:
//
//   log(f + e) = (k log(2) - log(c)) + log(1 + r) + second / (1 + r)
//
// second is below 2^-22, so that a polynomial of degree two does for 1 / (1 +
// r): it errs by 2^-13.6, and that by 2^-36 in all.
//
// asinh(s) = log(s + sqrt(s^2 + 1)) and acosh(x) = asinh(sqrt(x^2 - 1)) =
// log(x + sqrt(x^2 - 1)). The square root is a pair: the remainder of its
// rounding, which a fused multiply-add gives, divided by twice the root. Where
// s is small the logarithm would lose bits, and s + s^3 P(s^2) is selected.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_EIGHT_PAIR_H
#define UDF_LOG_EIGHT_PAIR_H

#include "log_eight.h"

#ifdef __FMA__

// log(f + e), f >= 1.
UDF_INLINE udf_log_eight_pair udf_log_eight_of_pair(float f, float e) {
  uint32_t u = udf_f32_bits(f);
  udf_log_eight_parts x = udf_log_eight_split(u);
  float c = udf_log_eight_reciprocal[x.j % 8];
  float r = __builtin_fmaf(x.m, c, -1.0f);
  float inverse =
      __builtin_fmaf(r, udf_log_eight_inverse[1], udf_log_eight_inverse[0]);
  inverse = __builtin_fmaf(r, inverse, 1.0f);
  // 2^-k e c.
  float scale = udf_f32_from_bits(udf_f32_bits(c) - (u - udf_f32_bits(x.m)));
  float second = e * scale;
  float high =
      __builtin_fmaf(x.k, UDF_LOG_EIGHT_TWO_HI, udf_log_eight_high[x.j % 8]);
  float low =
      __builtin_fmaf(x.k, UDF_LOG_EIGHT_TWO_LO, udf_log_eight_low[x.j % 8]);
  low = __builtin_fmaf(second, inverse, low);
  udf_log_eight_series g = {
      UDF_LOG_EIGHT_SLOPE_HI,
      UDF_LOG_EIGHT_SLOPE_LO,
      UDF_LOG_EIGHT_SQUARE,
      udf_log_eight_poly,
  };
  return udf_log_eight_sum(high, low, r, g);
}

// asinh(s + s_low), s >= 0; large is used from end on.
UDF_INLINE udf_log_eight_pair udf_asinh_eight(udf_log_eight_pair large, float s,
                                              float s_low, float end) {
  const float *p = udf_asinh_eight_poly;
  float w = s * s;
  float q = __builtin_fmaf(__builtin_fmaf(p[2], w, p[1]), w, p[0]);
  float low = __builtin_fmaf(s * w, q, s_low);
  _Bool small = s < end;
  return (udf_log_eight_pair){small ? s : large.high, small ? low : large.low};
}

#endif

#endif // UDF_LOG_EIGHT_PAIR_H
