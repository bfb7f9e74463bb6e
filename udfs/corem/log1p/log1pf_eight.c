//===- log1pf_eight.c - Quick path of log1p at AVX2 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_eight.h. 1 + x = f + e exactly, and f chooses k, m and c. r is (m c -
// 1) + 2^-k c e rounded, which for small x is x itself; d, what that rounding
// lost, joins the low part.
//
// Errors found, over all arguments in [2^-6, 1/2) and every seventh of others
// that are normal: 2^-32.5 relative below CAP, elsewhere at most 2^-34.4, where
// results are large. MARGIN and MARGIN CAP cover them.
//
// Left to the fast path: x <= -1, NaN, results beyond LIMIT, and by the
// rounding test 1,878,923 of 1,509,949,440 arguments in (-1, -2^-30] and
// [2^-30, 2^120). A run of all 2^32 arguments found no wrong result.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_eight.h"

#ifdef __FMA__
#define LOG1P_EIGHT_MARGIN 0x1.8p-33f
#define LOG1P_EIGHT_CAP 0.26f
#define LOG1P_EIGHT_LIMIT 86.0f

UDF_INLINE udf_log_eight_pair udf_log1pf_eight_pair(float x) {
  // 1 + x = f + e exactly.
  float f = 1.0f + x;
  float larger = x > 1.0f ? x : 1.0f;
  float smaller = x > 1.0f ? 1.0f : x;
  float e = smaller - (f - larger);
  uint32_t u = udf_f32_bits(f);
  udf_log_eight_parts a = udf_log_eight_split(u);
  float c = udf_log_eight_reciprocal[a.j % 8];
  float first = __builtin_fmaf(a.m, c, -1.0f);
  // 2^-k c.
  float scale = udf_f32_from_bits(udf_f32_bits(c) - (u - udf_f32_bits(a.m)));
  float second = e * scale;
  float r = first + second;
  // log(1 + r + d) = log(1 + r) + d / (1 + r).
  float d = second - (r - first);
  float inverse =
      __builtin_fmaf(r, udf_log_eight_inverse[1], udf_log_eight_inverse[0]);
  inverse = __builtin_fmaf(r, inverse, 1.0f);
  float high =
      __builtin_fmaf(a.k, UDF_LOG_EIGHT_TWO_HI, udf_log_eight_high[a.j % 8]);
  float low =
      __builtin_fmaf(a.k, UDF_LOG_EIGHT_TWO_LO, udf_log_eight_low[a.j % 8]);
  low = __builtin_fmaf(d, inverse, low);
  udf_log_eight_series g = {
      UDF_LOG_EIGHT_SLOPE_HI,
      UDF_LOG_EIGHT_SLOPE_LO,
      UDF_LOG_EIGHT_SQUARE,
      udf_log_eight_poly,
  };
  return udf_log_eight_sum(high, low, r, g);
}

UDF_INLINE float udf_log1pf_eight(float x, int *hard) {
  // The sign for -0.
  return udf_f32_add_sign(
      udf_log_eight_round(udf_log1pf_eight_pair(x), LOG1P_EIGHT_CAP,
                          LOG1P_EIGHT_MARGIN, LOG1P_EIGHT_LIMIT, hard),
      x);
}
#endif
