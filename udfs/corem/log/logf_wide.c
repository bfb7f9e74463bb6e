//===- logf_wide.c - Quick path of log at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_wide.h.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_wide.h"

#ifdef __FMA__
#define LOG_WIDE_SHARE 0x1p-23f

UDF_INLINE float udf_logf_wide(float x, int *hard) {
  udf_log_wide_reduced e = udf_log_wide_reduce(x);
  float base = __builtin_fmaf(e.k, UDF_LOG_WIDE_LN2_HI, udf_log_wide_high[e.i]);
  float rest = __builtin_fmaf(e.k, UDF_LOG_WIDE_LN2_LO, udf_log_wide_low[e.i]);
  float high = __builtin_fmaf(e.r, 1 / UDF_LOG_WIDE_SCALE, base);
  float low = __builtin_fmaf(e.r, 1 / UDF_LOG_WIDE_SCALE, base - high) + rest;
  float q = __builtin_fmaf(e.r, UDF_LOG_WIDE_C5, UDF_LOG_WIDE_C4);
  q = __builtin_fmaf(e.r, q, UDF_LOG_WIDE_C3);
  q = __builtin_fmaf(e.r, q, -0.5f / UDF_LOG_WIDE_SQUARE);
  float square = e.r * e.r;
  low = __builtin_fmaf(square, q, low);
  float width = __builtin_fmaf(e.k, high, square);
  return udf_log_wide_round(high, low, width, LOG_WIDE_SHARE, hard);
}
#endif
