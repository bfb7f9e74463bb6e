//===- coshf.c - Correctly rounded float32 cosh in float-float ------------===//
//
// HEADER
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
