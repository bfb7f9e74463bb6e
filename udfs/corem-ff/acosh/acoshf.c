//===- acoshf.c - Correctly rounded float32 acosh in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. acosh(x) = log(1 + d + sqrt(d (x + 1))) with d = x - 1, all terms
// being positive, see area_ff.h. Arguments below 1 give NaN, infinity itself;
// NaN is left to corem.
//
// Error of hi + lo, relative: below 2^-39.33 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.0f8b4p+0). It is that of the logarithm, as
// in asinh. The rounding test allows for ACOSH_FF_ERROR = 0x1.4p-39.
//
// Of the inputs answered here the test leaves one in 2^14.2 to corem (8,300 of
// 153,391,689).
//
//===----------------------------------------------------------------------===//

#include "../../corem/acosh/acoshf.c"

#include "../common/area_ff.h"

#define ACOSH_FF_ERROR 0x1.4p-39f

UDF_INLINE float udf_acoshf_ff(float x, int *hard) {
#ifdef __FMA__
  udf_ff d = udf_ff_two_sum(x, -1);
  udf_ff root = udf_ff_sqrt(udf_ff_mul(d, udf_ff_two_sum(x, 1)));
  udf_ff y = udf_area_ff_of(x, udf_ff_add(root, d));
  int undecided;
  float rounded = udf_ff_round(y, ACOSH_FF_ERROR, &undecided);
  _Bool below = x < 1, infinite = x == __builtin_inff();
  *hard = !(below | infinite) & undecided;
  return below ? __builtin_nanf("") : infinite ? x : rounded;
#else
  return udf_acoshf_fast(x, hard);
#endif
}

static UDF_COLD float udf_acoshf_in_double(float x) {
  int hard;
  float y = udf_acoshf_fast(x, &hard);
  return hard ? udf_acoshf_accurate(x) : y;
}
