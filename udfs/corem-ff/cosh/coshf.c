//===- coshf.c - Correctly rounded float32 cosh in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. cosh(a) = A + 1 / (4 A) with A = exp(a) / 2 for a = |x|, see
// exp_ff.h. Arguments above 88 and NaN are left to corem.
//
// Error of hi + lo, relative: below 2^-42.28 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.0e547ep+6). It is that of exp(a). The
// rounding test allows for COSH_FF_ERROR = 0x1p-41, and all 2^32 inputs give
// the digest of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^19.6 to corem (414 of
// 319,665,884).
//
//===----------------------------------------------------------------------===//

#include "../../corem/cosh/coshf.c"

#include "../common/exp_ff.h"

#define COSH_FF_ERROR 0x1p-41f

// 2^n is finite up to here.
#define COSH_FF_MAX 88.0f

UDF_INLINE float udf_coshf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  uint32_t n;
  float r, s;
  udf_exp_ff_split(a, &n, &r, &s);
  float half = udf_exp_ff_power(n - 1);
  udf_ff e = udf_exp_ff_of(r, s);
  // exp(a) / 2 and its reciprocal's quarter
  e = (udf_ff){half * e.hi, half * e.lo};
  udf_ff q = udf_ff_div((udf_ff){0.25f, 0}, e);
  int undecided;
  float y = udf_ff_round(udf_ff_sum(e, q), COSH_FF_ERROR, &undecided);
  *hard = undecided | !(a <= COSH_FF_MAX);
  return y;
#else
  return udf_coshf_fast(x, hard);
#endif
}

static UDF_COLD float udf_coshf_in_double(float x) {
  int hard;
  float y = udf_coshf_fast(x, &hard);
  return hard ? udf_coshf_accurate(x) : y;
}
