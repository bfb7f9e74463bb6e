//===- log1pf_wide.c - Quick path of log1p at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log1p_wide.h. 1 + x = f + e exactly, and f chooses k, m and c. r is (m c
// - 1) + 2^-k c e rounded, which for small x is x itself; d, what that rounding
// lost, joins the low part with the derivative 1 - r.
//
// Roundings err by 1.25 2^-24 r^3 in the interval of 1, where the coefficient
// of r^3 has only 2^-24 more, and by 2^-49 r where r is tiny. SLOPE_LOW makes
// up for what is missing: without it the run of all arguments found wrong
// results.
//
// The table of encodings begins at START 2^-125 and ends before 2^128. Here f
// ends at 2^120, so that 2^-k c is normal.
//
// Left to the fast path by the rounding test: 1,263,237 of 3,137,339,392
// arguments in (-1, 2^120). A run of all 2^32 arguments found no wrong result.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log1p_wide.h"

#ifdef __FMA__
#define LOG1P_WIDE_SLOPE_LOW 0x1p-38f
// 1.25 times that of atanh: r has more bits here, and 7/8 of that was wrong.
#define LOG1P_WIDE_WIDTH (1.25f * UDF_LOG1P_WIDE_WIDTH)
// Of 2^120.
#define LOG1P_WIDE_END (UDF_LOG1P_WIDE_END - (UINT32_C(8) << 23))

UDF_INLINE float udf_log1pf_wide(float x, int *hard) {
  // 1 + x = f + e exactly.
  float f = 1.0f + x;
  float larger = x > 1.0f ? x : 1.0f;
  float smaller = x > 1.0f ? 1.0f : x;
  float e = smaller - (f - larger);
  uint32_t u = udf_f32_bits(f);
  udf_log1p_wide_parts a = udf_log1p_wide_split(u);
  float c = udf_log1p_wide_reciprocal[a.j % 32];
  float first = __builtin_fmaf(a.m, c, -1.0f);
  // 2^-k c.
  float scale = udf_f32_from_bits(udf_f32_bits(c) + (udf_f32_bits(a.m) - u));
  float second = e * scale;
  float r = first + second;
  // log(1 + r + d) = log(1 + r) + d / (1 + r).
  float d = second - (r - first);
  float high =
      __builtin_fmaf(a.k, UDF_LOG1P_WIDE_TWO, udf_log1p_wide_high[a.j % 32]);
  float low =
      __builtin_fmaf(high, UDF_LOG1P_WIDE_SHARE, udf_log1p_wide_low[a.j % 32]);
  low = __builtin_fmaf(d, 1.0f - r, low);
  udf_log1p_wide_series g = {
      UDF_LOG1P_WIDE_SLOPE,
      LOG1P_WIDE_SLOPE_LOW,
      UDF_LOG1P_WIDE_SQUARE,
      udf_log1p_wide_poly,
  };
  udf_log1p_wide_pair y = udf_log1p_wide_sum(high, low, r, g);
  // The sign for -0.
  return udf_f32_add_sign(udf_log1p_wide_round(y, LOG1P_WIDE_WIDTH,
                                               a.offset < LOG1P_WIDE_END, hard),
                          x);
}
#endif
