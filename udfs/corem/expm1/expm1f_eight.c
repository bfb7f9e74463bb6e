//===- expm1f_eight.c - Quick path of expm1 at AVX2 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_eight.h. Arguments above EXPM1_EIGHT_MAX are left to the fast path,
// and by the rounding test 806,767 of the others: one in 400 with |x| < 0.04,
// one in 20,000 above 0.25.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_eight.h"

#ifdef __FMA__
#define EXPM1_EIGHT_WIDTH 0x1.8p-34f
// Results are finite up to it.
#define EXPM1_EIGHT_MAX 88.0f
// The result is -1 below.
#define EXPM1_EIGHT_MIN -17.5f

UDF_INLINE float udf_expm1f_eight(float x, int *hard) {
  // Written so that NaN passes.
  float c = x < EXPM1_EIGHT_MIN ? EXPM1_EIGHT_MIN : x;
  udf_exp_eight_sum e = udf_exp_eight_minus_one(c);
  float upper = e.high + __builtin_fmaf(e.rest, EXPM1_EIGHT_WIDTH, e.low);
  float lower = e.high + __builtin_fmaf(e.rest, -EXPM1_EIGHT_WIDTH, e.low);
  *hard = (upper != lower) | !(x <= EXPM1_EIGHT_MAX);
  // Only the sign of -0 is missing.
  return udf_f32_add_sign(upper, x);
}
#endif
