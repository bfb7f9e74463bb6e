//===- log10f.c - Correctly rounded float32 log10 in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. log10(x) = k log10(2) + log(m) / ln(10), see log_ff.h. Zero,
// subnormal, negative, infinite and NaN arguments are left to corem.
//
// Error of hi + lo, relative: below 2^-39.61 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.699b96p-1). The error is largest for k = -1
// and m just below sqrt(2), where the terms cancel to half. The rounding test
// allows for LOG10_FF_ERROR = 0x1p-39, and all 2^32 inputs give the digest of
// corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^14.5 to corem (13,230 of
// 304,386,633).
//
//===----------------------------------------------------------------------===//

#include "../../corem/log10/log10f.c"

#include "../common/log_ff.h"

#define LOG10_FF_ERROR 0x1p-39f

UDF_INLINE float udf_log10f_ff(float x, int *hard) {
#ifdef __FMA__
  float k;
  float m = udf_log_ff_split(x, &k);
  udf_ff y = udf_log_ff_of((udf_ff){m - 1, 0});
  y = udf_log_ff_add(k, UDF_FF(UDF_LOG_FF_LOG10_2),
                     udf_ff_mul(y, UDF_FF(UDF_LOG_FF_LOG10E)));
  int undecided;
  float rounded = udf_ff_round(y, LOG10_FF_ERROR, &undecided);
  *hard = undecided | udf_log_ff_special(x);
  return rounded;
#else
  return udf_log10f_fast(x, hard);
#endif
}

static UDF_COLD float udf_log10f_in_double(float x) {
  int hard;
  float y = udf_log10f_fast(x, &hard);
  return hard ? udf_log10f_accurate(x) : y;
}
