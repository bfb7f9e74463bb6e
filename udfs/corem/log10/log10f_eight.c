//===- log10f_eight.c - Quick path of log10 at AVX2 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_eight.h. Errors found, over all m at eleven k: 2^-32.5 relative in
// the intervals around 1, elsewhere 2^-35.4 at most, which needs |k| > 100.
//
// Left to the fast path by the rounding test: 215,487 of 2,080,374,784
// arguments in [2^-124, 2^124). A run of all 2^32 arguments found no wrong
// result.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_eight.h"

#ifdef __FMA__
#define LOG10_EIGHT_MARGIN 0x1.8p-33f
#define LOG10_EIGHT_CAP 0.14f
#define LOG10_EIGHT_LIMIT 37.625f

UDF_INLINE udf_log_eight_pair udf_log10f_eight_pair(float x) {
  udf_log_eight_parts a = udf_log_eight_split(udf_f32_bits(x));
  float high = __builtin_fmaf(a.k, UDF_LOG10_EIGHT_TWO_HI,
                              udf_log10_eight_high[a.j % 8]);
  float low =
      __builtin_fmaf(a.k, UDF_LOG10_EIGHT_TWO_LO, udf_log10_eight_low[a.j % 8]);
  udf_log_eight_series g = {
      UDF_LOG10_EIGHT_SLOPE_HI,
      UDF_LOG10_EIGHT_SLOPE_LO,
      UDF_LOG10_EIGHT_SQUARE,
      udf_log10_eight_poly,
  };
  return udf_log_eight_sum(high, low, udf_log_eight_r(a), g);
}

UDF_INLINE float udf_log10f_eight(float x, int *hard) {
  return udf_log_eight_round(udf_log10f_eight_pair(x), LOG10_EIGHT_CAP,
                             LOG10_EIGHT_MARGIN, LOG10_EIGHT_LIMIT, hard);
}
#endif
