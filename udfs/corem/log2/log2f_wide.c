//===- log2f_wide.c - Quick path of log2 at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_wide.h.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_wide.h"

#ifdef __FMA__
// Arguments between 2^-125 and 2^125 have results up to it.
#define LOG2_WIDE_LIMIT 125.0f
#define LOG2_WIDE_SHARE 0x1.4p-23f

UDF_INLINE float udf_log2f_wide(float x, int *hard) {
  udf_log_wide_reduced e = udf_log_wide_reduce(x);
  float base = __builtin_fmaf(e.k, 0x1p-23f, udf_log2_quick_high[e.i]);
  float high = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base);
  float low = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base - high) +
              udf_log2_quick_low[e.i];
  float q = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C5, UDF_LOG2_WIDE_C4);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C3);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C2);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C1_LO);
  low = __builtin_fmaf(e.r, q, low);
  return udf_log_wide_round(high, low, e.r, LOG2_WIDE_SHARE, LOG2_WIDE_LIMIT,
                            hard);
}
#endif
