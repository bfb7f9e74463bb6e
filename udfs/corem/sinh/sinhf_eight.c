//===- sinhf_eight.c - Quick path of sinh at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_eight.h. Arguments beyond SINH_EIGHT_MAX are left to the fast path,
// and by the rounding test 339,526 of the others: one in 400 with |x| < 0.04,
// one in 20,000 above 0.25.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_eight.h"

#ifdef __FMA__
#define SINH_EIGHT_WIDTH 0x1.8p-34f
// Up to it exp(-x)/2 is normal.
#define SINH_EIGHT_MAX 86.0f

UDF_INLINE float udf_sinhf_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  udf_exp_eight_sum e = udf_exp_eight_sinh(a);
  float upper = e.high + __builtin_fmaf(e.rest, SINH_EIGHT_WIDTH, e.low);
  float lower = e.high + __builtin_fmaf(e.rest, -SINH_EIGHT_WIDTH, e.low);
  *hard = (upper != lower) | !(a <= SINH_EIGHT_MAX);
  return udf_f32_add_sign(upper, x);
}
#endif
