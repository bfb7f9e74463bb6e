//===- expf.c - Correctly rounded float32 exp in float-float --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. exp(x) = 2^n exp(r + s), see exp_ff.h. 2^n is added to the exponent
// field. Arguments below -104 give 0 and those above EXP_FF_MAX infinity;
// subnormal results and NaN are left to corem.
//
// Error of hi + lo, relative: below 2^-42.22 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.6181c8p+6). It comes from the upper half of
// Q, computed in float. The rounding test allows for EXP_FF_ERROR = 0x1p-41,
// and all 2^32 inputs give the digest of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^18.5 to corem (853 of
// 319,666,996).
//
//===----------------------------------------------------------------------===//

#include "../../corem/exp/expf.c"

#include "../common/exp_ff.h"

#define EXP_FF_ERROR 0x1p-41f

// Results are normal from here on.
#define EXP_FF_MIN -0x1.5d589ep+6f
// Greater arguments overflow.
#define EXP_FF_MAX 0x1.62e42ep+6f

UDF_INLINE float udf_expf_ff(float x, int *hard) {
#ifdef __FMA__
  uint32_t n;
  float r, s;
  udf_exp_ff_split(x, &n, &r, &s);
  int undecided;
  float y = udf_ff_round(udf_exp_ff_of(r, s), EXP_FF_ERROR, &undecided);
  y = udf_f32_from_bits(udf_f32_bits(y) + (n << 23));
  _Bool zero = x<EXP_MIN, infinite = x> EXP_FF_MAX;
  *hard = !(zero | infinite) & (undecided | !(x >= EXP_FF_MIN));
  return infinite ? __builtin_inff() : zero ? 0 : y;
#else
  return udf_expf_fast(x, hard);
#endif
}

static UDF_COLD float udf_expf_in_double(float x) {
  int hard;
  float y = udf_expf_fast(x, &hard);
  return hard ? udf_expf_accurate(x) : y;
}
