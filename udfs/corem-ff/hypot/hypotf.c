//===- hypotf.c - Correctly rounded float32 hypot in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. sqrt(x^2 + y^2) with both scaled by the power of two that brings the
// larger one into [2, 4). The squares are exact, unless the smaller one is so
// small that it does not count. There are no constants, and so no generator of
// constants. Pairs with an infinity give infinity and those of zeros 0; pairs
// of subnormal numbers and zeros, and NaN, are left to corem.
//
// Error of hi + lo, relative, with u = 2^-24: the low part of the sum of the
// squares is rounded twice, 3 u^2 of the sum, of which the root leaves half;
// the remainder of the root, at most 4 u of the square, is rounded once, 2 u^2
// of the root; the quotient, at most 2 u of it, once, 2 u^2; the first-order
// correction leaves 2 u^2: below 8 u^2 in all (measured by measure_ff.c:
// 2^-46.0, 4 u^2). udf_ff_round adds 2 u^2. The rounding test allows for
// HYPOT_FF_ERROR = 0x1p-44, 16 u^2. A subnormal result needs both arguments to
// be so.
//
//===----------------------------------------------------------------------===//

#include "../../corem/hypot/hypotf.c"

#include "../common/sqrt_ff.h"

#define HYPOT_FF_ERROR 0x1p-44f

UDF_INLINE float udf_hypotf_ff(float x, float y, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  float large = a > b ? a : b, small = a > b ? b : a;
  // 2^e and 2^(1 - e) for large in [2^e, 2^(e+1)); where large is subnormal,
  // infinite or NaN, infinity or 0, which makes a NaN of the result.
  uint32_t field = udf_f32_bits(large) & UINT32_C(0x7f800000);
  float power = udf_f32_from_bits(field);
  float inverse = udf_f32_from_bits(UINT32_C(0x7f800000) - field);
  large *= inverse;
  small *= inverse;
  udf_ff sum =
      udf_ff_add(udf_ff_two_prod(large, large), udf_ff_two_prod(small, small));
  int undecided;
  float r = udf_ff_round(udf_ff_sqrt(sum), HYPOT_FF_ERROR, &undecided);
  _Bool infinite = (a == __builtin_inff()) | (b == __builtin_inff());
  _Bool zero = (a == 0) & (b == 0);
  *hard = !(infinite | zero) & undecided;
  return infinite ? __builtin_inff() : zero ? 0 : 0.5f * r * power;
#else
  return udf_hypotf_fast(x, y, hard);
#endif
}

static UDF_COLD float udf_hypotf_in_double(float x, float y) {
  int hard;
  float r = udf_hypotf_fast(x, y, &hard);
  return hard ? udf_hypotf_accurate(x, y) : r;
}
