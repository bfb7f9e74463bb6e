//===- atanhf.c - Correctly rounded float32 atanh in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. With a = |x|, (1 + a) / (1 - a) = 2^k (1 + s) / (1 - s), where s =
// ((1 + a) - 2^k (1 - a)) / ((1 + a) + 2^k (1 - a)), 2 atanh(a) = k ln(2) + 2
// atanh(s), see log_ff.h; 1 + a and 1 - a are exact. For k = 0, s is a.
// Arguments below 2^-12 give themselves, 1 infinity, those beyond NaN; NaN is
// left to corem.
//
// Error of hi + lo, relative: below 2^-38.62 (measured by measure_ff.c on every
// seventh input, the largest at -0x1.5f9f0cp-3). It is largest for k = 1 and s
// just above -0.1716, where the terms cancel to half. The rounding test allows
// for ATANH_FF_ERROR = 0x1p-38, and all 2^32 inputs give the digest of corem's
// certificate.
//
// Of the inputs answered here the test leaves one in 2^13.5 to corem (2,536 of
// 28,760,942).
//
//===----------------------------------------------------------------------===//

#include "../../corem/atanh/atanhf.c"

#include "../common/log_ff.h"

#define ATANH_FF_ERROR 0x1p-38f

// atanh(x) = x + x^3/3 + ... rounds to x below.
#define ATANH_FF_TINY 0x1p-12f

UDF_INLINE float udf_atanhf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  udf_ff top = udf_ff_two_sum(1, a), bottom = udf_ff_two_sum(1, -a);
  float k, ratio = top.hi / bottom.hi;
  float m = udf_log_ff_split(ratio, &k);
  float power = udf_f32_from_bits(udf_f32_bits(ratio) - udf_f32_bits(m) +
                                  UINT32_C(0x3f800000));
  bottom.hi *= power;
  bottom.lo *= power;
  udf_ff s = udf_ff_div(udf_ff_sum(top, (udf_ff){-bottom.hi, -bottom.lo}),
                        udf_ff_sum(top, bottom));
  s.hi = k == 0 ? a : s.hi;
  s.lo = k == 0 ? 0 : s.lo;
  udf_ff y = udf_log_ff_add(k, UDF_FF(UDF_LOG_FF_LN2), udf_atanh2_ff(s));
  int undecided;
  float rounded = 0.5f * udf_ff_round(y, ATANH_FF_ERROR, &undecided);
  _Bool tiny = a < ATANH_FF_TINY, one = a == 1, beyond = a > 1;
  *hard = !(tiny | one | beyond) & undecided;
  rounded = one ? __builtin_inff() : rounded;
  return tiny     ? x
         : beyond ? __builtin_nanf("")
                  : __builtin_copysignf(rounded, x);
#else
  return udf_atanhf_fast(x, hard);
#endif
}

static UDF_COLD float udf_atanhf_in_double(float x) {
  int hard;
  float y = udf_atanhf_fast(x, &hard);
  return hard ? udf_atanhf_accurate(x) : y;
}
