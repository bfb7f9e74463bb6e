//===- log10f_wide.c - Quick path of log10 at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_wide.h.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_wide.h"

#ifdef __FMA__
#define LOG10_WIDE_SHARE 0x1p-24f

UDF_INLINE float udf_log10f_wide(float x, int *hard) {
  udf_log_wide_reduced e = udf_log_wide_reduce(x);
  float base =
      __builtin_fmaf(e.k, UDF_LOG_WIDE_LOG10_2_HI, udf_log10_wide_high[e.i]);
  float rest =
      __builtin_fmaf(e.k, UDF_LOG_WIDE_LOG10_2_LO, udf_log10_wide_low[e.i]);
  float high = __builtin_fmaf(e.r, UDF_LOG10_WIDE_C1_HI, base);
  float low = __builtin_fmaf(e.r, UDF_LOG10_WIDE_C1_HI, base - high) + rest;
  float q = __builtin_fmaf(e.r, UDF_LOG10_WIDE_C5, UDF_LOG10_WIDE_C4);
  q = __builtin_fmaf(e.r, q, UDF_LOG10_WIDE_C3);
  q = __builtin_fmaf(e.r, q, UDF_LOG10_WIDE_C2);
  q = __builtin_fmaf(e.r, q, UDF_LOG10_WIDE_C1_LO);
  low = __builtin_fmaf(e.r, q, low);
  float width = udf_log_wide_width(high, e.r * e.r, LOG10_WIDE_SHARE);
  return udf_log_wide_round(high, low, width, LOG10_WIDE_SHARE, hard);
}
#endif
