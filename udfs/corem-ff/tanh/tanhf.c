//===- tanhf.c - Correctly rounded float32 tanh in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. tanh(x) = E / (E + 2) with E = expm1(2x) = 2^n expm1(r + s) + (2^n -
// 1), see exp_ff.h, for both signs of x. Arguments below 2^-13 give themselves,
// those from 10 up 1; NaN is left to corem.
//
// Error of hi + lo, relative: below 2^-41.09 (measured by measure_ff.c on every
// seventh input, the largest at -0x1.62cad4p-3). It is that of E, which the
// quotient multiplies by at most 2. The rounding test allows for TANH_FF_ERROR
// = 0x1p-40, and all 2^32 inputs give the digest of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^15.4 to corem (899 of
// 38,947,108).
//
//===----------------------------------------------------------------------===//

#include "../../corem/tanh/tanhf.c"

#include "../common/exp_ff.h"

#define TANH_FF_ERROR 0x1p-40f

// tanh(x) = x - x^3/3 + ... rounds to x below.
#define TANH_FF_TINY 0x1p-13f

UDF_INLINE float udf_tanhf_ff(float x, int *hard) {
#ifdef __FMA__
  uint32_t n;
  float r, s;
  udf_exp_ff_split(x + x, &n, &r, &s);
  float scale = udf_exp_ff_power(n);
  udf_ff e = udf_expm1_ff_of(r, s);
  e = udf_ff_sum(udf_ff_two_sum(scale, -1),
                 (udf_ff){scale * e.hi, scale * e.lo});
  int undecided;
  float y = udf_ff_round(udf_ff_div(e, udf_ff_sum(e, (udf_ff){2, 0})),
                         TANH_FF_ERROR, &undecided);
  float a = __builtin_fabsf(x);
  _Bool tiny = a < TANH_FF_TINY, one = a >= TANH_MAX;
  *hard = !(tiny | one) & undecided;
  return tiny ? x : one ? __builtin_copysignf(1, x) : y;
#else
  return udf_tanhf_fast(x, hard);
#endif
}

static UDF_COLD float udf_tanhf_in_double(float x) {
  int hard;
  float y = udf_tanhf_fast(x, &hard);
  return hard ? udf_tanhf_accurate(x) : y;
}
