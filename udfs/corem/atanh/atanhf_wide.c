//===- atanhf_wide.c - Quick path of atanh at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log1p_wide.h. atanh(a) = log1p(y) / 2, y = 2 a / (1 - a). The denominator
// is a pair, and so is the quotient. Its correction needs no second division,
// because 1 / (1 - a) = 1 + y / 2. The rest is as in log1pf_wide.c, with the
// tables of half the logarithm; the low part of y joins d.
//
// Arguments from LIMIT on and NaN are left to the fast path.
//
// Left to the fast path by the rounding test: 143,060 of 2,130,706,424
// arguments below LIMIT. A run of all 2^32 arguments found no wrong result.
// With 3/4 of the width none was wrong from 2^-7 on, either.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log1p_wide.h"

#ifdef __FMA__
#define ATANH_WIDE_SLOPE_LOW 0x1p-39f
// From there on e, below, is not exact.
#define ATANH_WIDE_LIMIT 0x1.fffff8p-1f

UDF_INLINE float udf_atanhf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  float twice = a + a;
  float less = 1.0f - a;
  float less_low = (1.0f - less) - a;
  float y = twice / less;
  float rest = __builtin_fmaf(-y, less, twice);
  rest = __builtin_fmaf(-y, less_low, rest);
  float y_low = rest * __builtin_fmaf(y, 0.5f, 1.0f);
  // 1 + y = f + e exactly.
  float f = 1.0f + y;
  float e = y - (f - 1.0f);
  uint32_t u = udf_f32_bits(f);
  udf_log1p_wide_parts p = udf_log1p_wide_split(u);
  float c = udf_log1p_wide_reciprocal[p.j % 32];
  float first = __builtin_fmaf(p.m, c, -1.0f);
  // 2^-k c.
  float scale = udf_f32_from_bits(udf_f32_bits(c) + (udf_f32_bits(p.m) - u));
  float second = e * scale;
  float r = first + second;
  // log(1 + r + d) / 2 = log(1 + r) / 2 + d / (2 + 2 r).
  float d = second - (r - first);
  d = __builtin_fmaf(y_low, scale, d);
  float inverse = __builtin_fmaf(__builtin_fmaf(r, 0.5f, -0.5f), r, 0.5f);
  float high =
      __builtin_fmaf(p.k, UDF_ATANH_WIDE_TWO, udf_atanh_wide_high[p.j % 32]);
  float low =
      __builtin_fmaf(high, UDF_ATANH_WIDE_SHARE, udf_atanh_wide_low[p.j % 32]);
  low = __builtin_fmaf(d, inverse, low);
  udf_log1p_wide_series g = {
      UDF_ATANH_WIDE_SLOPE,
      ATANH_WIDE_SLOPE_LOW,
      UDF_ATANH_WIDE_SQUARE,
      udf_atanh_wide_poly,
  };
  udf_log1p_wide_pair sum = udf_log1p_wide_sum(high, low, r, g);
  return udf_f32_add_sign(udf_log1p_wide_round(sum, UDF_LOG1P_WIDE_WIDTH,
                                               a < ATANH_WIDE_LIMIT, hard),
                          x);
}
#endif
