//===- atanf.c - Correctly rounded float32 atan in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. atan(a) for a = |x| up to 1, and pi/2 - atan(1/a) beyond, see
// atan_ff.h. Arguments below 2^-12 give themselves; those above 2^30 are
// clamped, which does not change the result. NaN is left to corem.
//
// Error of hi + lo, relative: below 2^-42.88 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.001064p-4). The rounding test allows for
// ATAN_FF_ERROR = 0x1.4p-42, and all 2^32 inputs give the digest of corem's
// certificate.
//
// Of the inputs answered here the test leaves one in 2^16.8 to corem (880 of
// 100,663,297).
//
//===----------------------------------------------------------------------===//

#include "../../corem/atan/atanf.c"

#include "../common/atan_ff.h"

#define ATAN_FF_ERROR 0x1.4p-42f

// atan(x) = x - x^3/3 + ... rounds to x below.
#define ATAN_FF_TINY 0x1p-12f
// pi/2 rounds as pi/2 - 1/ATAN_FF_MAX does.
#define ATAN_FF_MAX 0x1p30f

UDF_INLINE float udf_atanf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  a = a > ATAN_FF_MAX ? ATAN_FF_MAX : a;
  _Bool inverse = a > 1;
  udf_ff w = udf_atan_ff_of(inverse ? 1 : a, inverse ? a : 1);
  udf_ff minus =
      udf_ff_add(UDF_FF(UDF_ATAN_FF_HALF_PI), (udf_ff){-w.hi, -w.lo});
  w.hi = inverse ? minus.hi : w.hi;
  w.lo = inverse ? minus.lo : w.lo;
  int undecided;
  float y = udf_ff_round(w, ATAN_FF_ERROR, &undecided);
  _Bool tiny = a < ATAN_FF_TINY;
  *hard = !tiny & undecided;
  return tiny ? x : __builtin_copysignf(y, x);
#else
  return udf_atanf_fast(x, hard);
#endif
}

static UDF_COLD float udf_atanf_in_double(float x) {
  int hard;
  float y = udf_atanf_fast(x, &hard);
  return hard ? udf_atanf_accurate(x) : y;
}
