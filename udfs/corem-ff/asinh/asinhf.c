//===- asinhf.c - Correctly rounded float32 asinh in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. asinh(a) = log(1 + a + a^2 / (1 + sqrt(1 + a^2))) for a = |x|, all
// terms being positive, see area_ff.h. Arguments below 2^-12, infinities and
// NaN give themselves.
//
// Error of hi + lo, relative: below 2^-39.23 (measured by measure_ff.c on every
// seventh input, the largest at -0x1.6a1d7cp-2). It is that of the logarithm,
// largest for k = 1 and m just above sqrt(1/2), where the terms cancel to half.
// The rounding test allows for ASINH_FF_ERROR = 0x1.4p-39.
//
// Of the inputs answered here the test leaves one in 2^14.2 to corem (18,426 of
// 335,544,320).
//
//===----------------------------------------------------------------------===//

#include "../../corem/asinh/asinhf.c"

#include "../common/area_ff.h"

#define ASINH_FF_ERROR 0x1.4p-39f

// asinh(x) = x - x^3/6 + ... rounds to x below.
#define ASINH_FF_TINY 0x1p-12f

UDF_INLINE float udf_asinhf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  udf_ff square = udf_ff_two_prod(a, a);
  udf_ff root = udf_ff_sqrt(udf_ff_sum((udf_ff){1, 0}, square));
  udf_ff quotient = udf_ff_div(square, udf_ff_add(root, (udf_ff){1, 0}));
  udf_ff y = udf_area_ff_of(a, udf_ff_add_f(a, quotient));
  int undecided;
  float rounded = udf_ff_round(y, ASINH_FF_ERROR, &undecided);
  _Bool same = (a < ASINH_FF_TINY) | !(a < __builtin_inff());
  *hard = !same & undecided;
  return same ? x : __builtin_copysignf(rounded, x);
#else
  return udf_asinhf_fast(x, hard);
#endif
}

static UDF_COLD float udf_asinhf_in_double(float x) {
  int hard;
  float y = udf_asinhf_fast(x, &hard);
  return hard ? udf_asinhf_accurate(x) : y;
}
