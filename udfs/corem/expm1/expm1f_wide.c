//===- expm1f_wide.c - Quick path of expm1 at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See expm1_wide.h. Results that overflow are left to the fast path, and by the
// rounding test 2,189,287 others: one in 25 with |x| near 0.01, one in 3,000 at
// 1, ever fewer towards zero.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_wide.h"

#ifdef __FMA__
#define EXPM1_WIDE_WIDTH 0x1p-21f
// The scale of results above it is a NaN.
#define EXPM1_WIDE_MAX 89.0f
// The result is -1 below.
#define EXPM1_WIDE_MIN -17.5f
// Up to it 2^(n/32) - 1 loses bits of 2^(n/32) only.
#define EXPM1_WIDE_LARGE 16.0f

UDF_INLINE float udf_expm1f_wide(float x, int *hard) {
  // Written so that NaN passes.
  float c = x < EXPM1_WIDE_MIN ? EXPM1_WIDE_MIN : x;
  c = c > EXPM1_WIDE_MAX ? EXPM1_WIDE_MAX : c;
  udf_expm1_wide_reduced e = udf_expm1_wide_reduce(c, 127);
  uint32_t j = e.i % UDF_EXPM1_WIDE_STEPS;
  float r = e.r;
  float s =
      __builtin_fmaf(e.n, -UDF_EXPM1_WIDE_STEP_LO, udf_expm1_wide_rest[j]);
  float t = udf_expm1_wide_scaled(udf_expm1_wide_power[j], e.i);
  // As integers LLVM keeps the order of the alternatives, and masks operations.
  _Bool small =
      (int32_t)udf_f32_bits(x) < (int32_t)udf_f32_bits(EXPM1_WIDE_LARGE);
  float a = small ? t - 1 : t;
  float a_low = small ? t - (a + 1) : -1;
  float q = __builtin_fmaf(r, UDF_EXPM1_WIDE_C4, UDF_EXPM1_WIDE_C3);
  q = __builtin_fmaf(r, q, 0.5f);
  q = __builtin_fmaf(r, q, s);
  q = __builtin_fmaf(r, q, s);
  float high = __builtin_fmaf(t, r, a);
  float error = __builtin_fmaf(t, r, a - high) + a_low;
  udf_expm1_wide_pair y = {high, __builtin_fmaf(t, q, error)};
  // Only the sign of -0 is missing.
  return udf_f32_add_sign(udf_expm1_wide_round(y, EXPM1_WIDE_WIDTH, hard), x);
}
#endif
