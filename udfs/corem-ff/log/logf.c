//===- logf.c - Correctly rounded float32 log in float-float --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. log(x) = k ln(2) + log(m), see log_ff.h; k times the two parts of
// ln(2) is known to 2^-45. Zero, subnormal, negative, infinite and NaN
// arguments are left to corem.
//
// Error of hi + lo, relative: below 2^-39.60 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.699b96p-1). The error is largest for k = -1
// and m just below sqrt(2), where the terms cancel to half. The rounding test
// allows for LOG_FF_ERROR = 0x1p-39, and all 2^32 inputs give the digest of
// corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^14.5 to corem (13,089 of
// 304,386,633).
//
//===----------------------------------------------------------------------===//

#include "../../corem/log/logf.c"

#include "../common/log_ff.h"

#define LOG_FF_ERROR 0x1p-39f

UDF_INLINE float udf_logf_ff(float x, int *hard) {
#ifdef __FMA__
  float k;
  float m = udf_log_ff_split(x, &k);
  udf_ff y = udf_log_ff_of((udf_ff){m - 1, 0});
  y = udf_log_ff_add(k, UDF_FF(UDF_LOG_FF_LN2), y);
  int undecided;
  float rounded = udf_ff_round(y, LOG_FF_ERROR, &undecided);
  *hard = undecided | udf_log_ff_special(x);
  return rounded;
#else
  return udf_logf_fast(x, hard);
#endif
}

static UDF_COLD float udf_logf_in_double(float x) {
  int hard;
  float y = udf_logf_fast(x, &hard);
  return hard ? udf_logf_accurate(x) : y;
}
