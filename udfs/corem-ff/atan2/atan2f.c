//===- atan2f.c - Correctly rounded float32 atan2 in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. With n the smaller and d the larger of |x| and |y|, scaled by a power
// of two so that d is in [2, 4): w = atan(n/d), see atan_ff.h, and the angle of
// (x, |y|) is w, pi - w (x < 0), pi/2 - w (|x| < |y|) or pi/2 + w. The sign is
// that of y. Quotients below 2^-100 to which nothing is added, pairs of zeros,
// pairs whose larger number is subnormal or infinite, and NaN are left to
// corem.
//
// Error of hi + lo, relative: below 2^-42.92 (measured by measure_ff.c on six
// million pairs): that of atan_ff.h, as the result is never smaller than w
// where a multiple of pi/2 is added. The rounding test allows for
// ATAN2_FF_ERROR = 0x1p-41, and leaves one in 2^16.6 of those pairs to corem.
//
//===----------------------------------------------------------------------===//

#include "../../corem/atan2/atan2f.c"

#include "../common/atan_ff.h"

#define ATAN2_FF_ERROR 0x1p-41f
// Below it the arithmetic could underflow.
#define ATAN2_FF_TINY 0x1p-99f

UDF_INLINE float udf_atan2f_ff(float y, float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  _Bool steep = b > a, negative = udf_f32_bits(x) >> 31;
  float n = steep ? a : b, d = steep ? b : a;
  // 2^(1 - e) for d in [2^e, 2^(e+1)); where d is subnormal, infinite or NaN,
  // infinity or 0, which makes a NaN of the result.
  uint32_t field = udf_f32_bits(d) & UINT32_C(0x7f800000);
  float inverse = udf_f32_from_bits(UINT32_C(0x7f800000) - field);
  float scaled = n * inverse;
  udf_ff w = udf_atan_ff_of(scaled, d * inverse);
  udf_ff base = {negative ? UDF_ATAN_FF_PI_HI : 0,
                 negative ? UDF_ATAN_FF_PI_LO : 0};
  base.hi = steep ? UDF_ATAN_FF_HALF_PI_HI : base.hi;
  base.lo = steep ? UDF_ATAN_FF_HALF_PI_LO : base.lo;
  _Bool minus = steep != negative;
  w.hi = minus ? -w.hi : w.hi;
  w.lo = minus ? -w.lo : w.lo;
  int undecided;
  float r = udf_ff_round(udf_ff_add(base, w), ATAN2_FF_ERROR, &undecided);
  _Bool tiny = (scaled < ATAN2_FF_TINY) & (n != 0) & !(steep | negative);
  *hard = undecided | tiny;
  return __builtin_copysignf(r, y);
#else
  return udf_atan2f_fast(y, x, hard);
#endif
}

static UDF_COLD float udf_atan2f_in_double(float y, float x) {
  int hard;
  float r = udf_atan2f_fast(y, x, &hard);
  return hard ? udf_atan2f_accurate(y, x) : r;
}
