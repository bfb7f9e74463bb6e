//===- exp2f.c - Correctly rounded float32 exp2 in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. 2^x = 2^n exp(r + s) with n the integer nearest to x and (x - n)
// ln(2) = r + s, see exp_ff.h; x - n is exact. 2^n is added to the exponent
// field. Subnormal results and NaN are left to corem.
//
// Error of hi + lo, relative: below 2^-42.60 (measured by measure_ff.c on every
// seventh input, the largest at -0x1.ff0b96p-2). It comes from the upper half
// of Q, computed in float. The rounding test allows for EXP2_FF_ERROR =
// 0x1p-41, and all 2^32 inputs give the digest of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^18.5 to corem (850 of
// 321,126,400).
//
//===----------------------------------------------------------------------===//

#include "../../corem/exp2/exp2f.c"

#include "../common/exp_ff.h"

#define EXP2_FF_ERROR 0x1p-41f

// Results are normal from here on.
#define EXP2_FF_MIN -0x1.f8p+6f

UDF_INLINE float udf_exp2f_ff(float x, int *hard) {
#ifdef __FMA__
  // x - n is exact.
  float nm = x + UDF_FF_ROUND_MAGIC;
  float d = x - (nm - UDF_FF_ROUND_MAGIC);
  udf_ff r = udf_ff_mul_f(UDF_FF(UDF_EXP_FF_LN2), d);
  int undecided;
  float y = udf_ff_round(udf_exp_ff_of(r.hi, r.lo), EXP2_FF_ERROR, &undecided);
  y = udf_f32_from_bits(udf_f32_bits(y) + (udf_f32_bits(nm) << 23));
  _Bool zero = x < EXP2_MIN, infinite = x >= EXP2_MAX;
  *hard = !(zero | infinite) & (undecided | !(x >= EXP2_FF_MIN));
  return infinite ? __builtin_inff() : zero ? 0 : y;
#else
  return udf_exp2f_fast(x, hard);
#endif
}

static UDF_COLD float udf_exp2f_in_double(float x) {
  int hard;
  float y = udf_exp2f_fast(x, &hard);
  return hard ? udf_exp2f_accurate(x) : y;
}
