//===- asinf.c - Correctly rounded float32 asin in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. asin(a) for a = |x| up to 1/2, and pi/2 - acos(a) beyond, see
// asin_ff.h. Arguments below 2^-12 give themselves, those beyond 1 NaN; NaN is
// left to corem.
//
// Error of hi + lo, relative: below 2^-40.52 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.0048ap-1). It is largest just above 1/2,
// where pi/3 is taken off pi/2 and leaves pi/6. The rounding test allows for
// ASIN_FF_ERROR = 0x1p-40, and all 2^32 inputs give the digest of corem's
// certificate.
//
// Of the inputs answered here the test leaves one in 2^15.4 to corem (683 of
// 28,760,942).
//
//===----------------------------------------------------------------------===//

#include "../../corem/asin/asinf.c"

#include "../common/asin_ff.h"

#define ASIN_FF_ERROR 0x1p-40f

// asin(x) = x + x^3/6 + ... rounds to x below.
#define ASIN_FF_TINY 0x1p-12f

UDF_INLINE float udf_asinf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  _Bool upper = a > 0.5f;
  udf_ff w = udf_asin_ff_of(a, upper);
  udf_ff minus =
      udf_ff_add(UDF_FF(UDF_ASIN_FF_HALF_PI), (udf_ff){-w.hi, -w.lo});
  w.hi = upper ? minus.hi : w.hi;
  w.lo = upper ? minus.lo : w.lo;
  int undecided;
  float y = udf_ff_round(w, ASIN_FF_ERROR, &undecided);
  _Bool tiny = a < ASIN_FF_TINY, beyond = a > 1;
  *hard = !(tiny | beyond) & undecided;
  return tiny ? x : beyond ? __builtin_nanf("") : __builtin_copysignf(y, x);
#else
  return udf_asinf_fast(x, hard);
#endif
}

static UDF_COLD float udf_asinf_in_double(float x) {
  int hard;
  float y = udf_asinf_fast(x, &hard);
  return hard ? udf_asinf_accurate(x) : y;
}
