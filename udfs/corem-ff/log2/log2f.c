//===- log2f.c - Correctly rounded float32 log2 in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. log2(x) = k + log(m) / ln(2), see log_ff.h. Zero, subnormal,
// negative, infinite and NaN arguments are left to corem.
//
// Error of hi + lo, relative: below 2^-39.59 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.699b96p-1). The error is largest for k = -1
// and m just below sqrt(2), where the terms cancel to half. The rounding test
// allows for LOG2_FF_ERROR = 0x1p-39, and all 2^32 inputs give the digest of
// corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^14.4 to corem (14,372 of
// 304,386,633).
//
//===----------------------------------------------------------------------===//

#include "../../corem/log2/log2f.c"

#include "../common/log_ff.h"

#define LOG2_FF_ERROR 0x1p-39f

UDF_INLINE float udf_log2f_ff(float x, int *hard) {
#ifdef __FMA__
  float k;
  float m = udf_log_ff_split(x, &k);
  udf_ff y = udf_log_ff_of((udf_ff){m - 1, 0});
  y = udf_ff_add_f(k, udf_ff_mul(y, UDF_FF(UDF_LOG_FF_LOG2E)));
  int undecided;
  float rounded = udf_ff_round(y, LOG2_FF_ERROR, &undecided);
  *hard = undecided | udf_log_ff_special(x);
  return rounded;
#else
  return udf_log2f_fast(x, hard);
#endif
}

static UDF_COLD float udf_log2f_in_double(float x) {
  int hard;
  float y = udf_log2f_fast(x, &hard);
  return hard ? udf_log2f_accurate(x) : y;
}
