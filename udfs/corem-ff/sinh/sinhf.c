//===- sinhf.c - Correctly rounded float32 sinh in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. sinh(a) = (E + E / (E + 1)) / 2 with E = expm1(a) for a = |x|, see
// exp_ff.h. Arguments below 2^-12 give themselves; those above 88 and NaN are
// left to corem.
//
// Error of hi + lo, relative: below 2^-41.01 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.62ebcap-2). It is that of E. The rounding
// test allows for SINH_FF_ERROR = 0x1p-40, and all 2^32 inputs give the digest
// of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^15.3 to corem (1,064 of
// 44,040,193).
//
//===----------------------------------------------------------------------===//

#include "../../corem/sinh/sinhf.c"

#include "../common/exp_ff.h"

#define SINH_FF_ERROR 0x1p-40f

// sinh(x) = x + x^3/6 + ... rounds to x below.
#define SINH_FF_TINY 0x1p-12f
// 2^n is finite up to here.
#define SINH_FF_MAX 88.0f

UDF_INLINE float udf_sinhf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  uint32_t n;
  float r, s;
  udf_exp_ff_split(a, &n, &r, &s);
  float scale = udf_exp_ff_power(n);
  udf_ff e = udf_expm1_ff_of(r, s);
  e = udf_ff_sum(udf_ff_two_sum(scale, -1),
                 (udf_ff){scale * e.hi, scale * e.lo});
  // 2 sinh(a) = e + e / (e + 1)
  udf_ff q = udf_ff_div(e, udf_ff_sum(e, (udf_ff){1, 0}));
  int undecided;
  float y = 0.5f * udf_ff_round(udf_ff_sum(e, q), SINH_FF_ERROR, &undecided);
  _Bool tiny = a < SINH_FF_TINY;
  *hard = !tiny & (undecided | !(a <= SINH_FF_MAX));
  return tiny ? x : __builtin_copysignf(y, x);
#else
  return udf_sinhf_fast(x, hard);
#endif
}

static UDF_COLD float udf_sinhf_in_double(float x) {
  int hard;
  float y = udf_sinhf_fast(x, &hard);
  return hard ? udf_sinhf_accurate(x) : y;
}
