//===- acosf.c - Correctly rounded float32 acos in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. For a = |x|: pi/2 - asin(a) or pi/2 + asin(a) up to 1/2, acos(a) or
// pi - acos(a) beyond, see asin_ff.h. Arguments beyond 1 give NaN; NaN is left
// to corem.
//
// Error of hi + lo, relative: below 2^-41.55 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.004e96p-1). It comes from the last terms of
// the polynomial, computed in float. The rounding test allows for ACOS_FF_ERROR
// = 0x1p-41, and all 2^32 inputs give the digest of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^18.8 to corem (690 of
// 304,386,633).
//
//===----------------------------------------------------------------------===//

#include "../../corem/acos/acosf.c"

#include "../common/asin_ff.h"

#define ACOS_FF_ERROR 0x1p-41f

UDF_INLINE float udf_acosf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  _Bool upper = a > 0.5f, negative = x < 0;
  udf_ff w = udf_asin_ff_of(a, upper);
  udf_ff base = {negative ? UDF_ASIN_FF_PI_HI : 0,
                 negative ? UDF_ASIN_FF_PI_LO : 0};
  base.hi = upper ? base.hi : UDF_ASIN_FF_HALF_PI_HI;
  base.lo = upper ? base.lo : UDF_ASIN_FF_HALF_PI_LO;
  _Bool plus = upper != negative;
  w.hi = plus ? w.hi : -w.hi;
  w.lo = plus ? w.lo : -w.lo;
  int undecided;
  float y = udf_ff_round(udf_ff_add(base, w), ACOS_FF_ERROR, &undecided);
  _Bool beyond = a > 1;
  *hard = !beyond & undecided;
  return beyond ? __builtin_nanf("") : y;
#else
  return udf_acosf_fast(x, hard);
#endif
}

static UDF_COLD float udf_acosf_in_double(float x) {
  int hard;
  float y = udf_acosf_fast(x, &hard);
  return hard ? udf_acosf_accurate(x) : y;
}
