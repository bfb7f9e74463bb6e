//===- log1pf.c - Correctly rounded float32 log1p in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. log1p(x) = k ln(2) + log(1 + f), see log_ff.h. k is taken from 1 + x
// rounded to float, whose rounding error is known exactly and goes into f.
// Arguments below 2^-26 give themselves; x <= -1, NaN and x >= 2^126 are left
// to corem.
//
// Error of hi + lo, relative: below 2^-39.12 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.a841b6p-2). The error is largest for k = 1
// and m just above sqrt(1/2), where the terms cancel to half. The rounding test
// allows for LOG1P_FF_ERROR = 0x1.4p-39, and all 2^32 inputs give the digest of
// corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^14.1 to corem (3,456 of
// 62,315,374).
//
//===----------------------------------------------------------------------===//

#include "../../corem/log1p/log1pf.c"

#include "../common/log_ff.h"

#define LOG1P_FF_ERROR 0x1.4p-39f

// log1p(x) = x - x^2/2 + ... rounds to x below.
#define LOG1P_FF_TINY 0x1p-26f

UDF_INLINE float udf_log1pf_ff(float x, int *hard) {
#ifdef __FMA__
  // 1 + x without error; x <= -1, NaN and very large arguments are hard.
  udf_ff u = udf_ff_two_sum(1, x);
  float k;
  float m = udf_log_ff_split(u.hi, &k);
  float scale = udf_f32_from_bits(udf_f32_bits(m) - udf_f32_bits(u.hi) +
                                  UINT32_C(0x3f800000));
  // For k = 0 this is x itself.
  udf_ff f = udf_ff_two_sum(m - 1, u.lo * scale);
  udf_ff y = udf_log_ff_add(k, UDF_FF(UDF_LOG_FF_LN2), udf_log_ff_of(f));
  int undecided;
  float rounded = udf_ff_round(y, LOG1P_FF_ERROR, &undecided);
  int special =
      udf_f32_bits(u.hi) - UINT32_C(0x00800000) >= UINT32_C(0x7e000000);
  _Bool tiny = __builtin_fabsf(x) < LOG1P_FF_TINY;
  *hard = !tiny & (undecided | special);
  return tiny ? x : rounded;
#else
  return udf_log1pf_fast(x, hard);
#endif
}

static UDF_COLD float udf_log1pf_in_double(float x) {
  int hard;
  float y = udf_log1pf_fast(x, &hard);
  return hard ? udf_log1pf_accurate(x) : y;
}
