//===- log2f_wide.c - Quick path of log2 at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_wide.h.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_wide.h"

#ifdef __FMA__
#define LOG2_WIDE_SHARE 0x1.4p-23f

UDF_INLINE float udf_log2f_wide(float x, int *hard) {
  udf_log_wide_reduced e = udf_log_wide_reduce(x);
  float base = e.k + udf_log2_wide_high[e.i];
  float high = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base);
  float low = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base - high) +
              udf_log2_wide_low[e.i];
  float q = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C5, UDF_LOG2_WIDE_C4);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C3);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C2);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C1_LO);
  low = __builtin_fmaf(e.r, q, low);
  float width = udf_log_wide_width(high, e.r * e.r, LOG2_WIDE_SHARE);
  return udf_log_wide_round(high, low, width, LOG2_WIDE_SHARE, hard);
}
#endif
