//===- logf_wide.c - Quick path of log at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_wide.h.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_wide.h"

#ifdef __FMA__
// Arguments between 2^-124 and 2^124 have results below it.
#define LOG_WIDE_LIMIT 0x1.5a8p+6f
#define LOG_WIDE_SHARE 0x1p-23f

UDF_INLINE float udf_logf_wide(float x, int *hard) {
  udf_log_wide_reduced e = udf_log_wide_reduce(x);
  float base =
      __builtin_fmaf(e.k, UDF_LOG_WIDE_LN2_HI, udf_log_quick_high[e.i]);
  float rest = __builtin_fmaf(e.k, UDF_LOG_WIDE_LN2_LO, udf_log_quick_low[e.i]);
  float high = base + e.r;
  float low = ((base - high) + e.r) + rest;
  float q = __builtin_fmaf(e.r, UDF_LOG_WIDE_C5, UDF_LOG_WIDE_C4);
  q = __builtin_fmaf(e.r, q, UDF_LOG_WIDE_C3);
  q = __builtin_fmaf(e.r, q, -0.5f);
  low = __builtin_fmaf(e.r * e.r, q, low);
  return udf_log_wide_round(high, low, e.r, LOG_WIDE_SHARE, LOG_WIDE_LIMIT,
                            hard);
}
#endif
