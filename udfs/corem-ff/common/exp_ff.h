//===- exp_ff.h - The exponential family in float-float -------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = n ln(2) + r + s, n the integer nearest to x / ln(2), |r| <= 0.3469. r,
// the fused x - n LN2_HI, is exact: it is a multiple of the last place of x
// below 2^-24, or of 2^-24. s is below 2^-22 and known to 2^-46.
// expm1(r) = r Q(r) with Q of degree 9, its upper half evaluated in float, and
// exp(r + s) = exp(r) (1 + s) up to 2^-45.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_EXP_FF_H
#define UDF_EXP_FF_H

#include "ff.h"

#include "exp_ff_constants.h"

#ifdef __FMA__

// expm1(r) / r for |r| <= 0.3469.
UDF_INLINE udf_ff udf_exp_ff_factor(float r) {
  float t = __builtin_fmaf(r, UDF_EXP_FF_C9, UDF_EXP_FF_C8);
  t = __builtin_fmaf(r, t, UDF_EXP_FF_C7);
  t = __builtin_fmaf(r, t, UDF_EXP_FF_C6);
  t = __builtin_fmaf(r, t, UDF_EXP_FF_C5);
  udf_ff q = udf_ff_add(UDF_FF(UDF_EXP_FF_C4), udf_ff_two_prod(t, r));
  q = udf_ff_step_f(q, r, UDF_FF(UDF_EXP_FF_C3));
  q = udf_ff_step_f(q, r, UDF_FF(UDF_EXP_FF_C2));
  q = udf_ff_add_f(0.5f, udf_ff_mul_f(q, r));
  return udf_ff_add_f(1, udf_ff_mul_f(q, r));
}

// exp(r + s).
UDF_INLINE udf_ff udf_exp_ff_of(float r, float s) {
  udf_ff e = udf_ff_add_f(1, udf_ff_mul_f(udf_exp_ff_factor(r), r));
  e.lo = __builtin_fmaf(e.hi, s, e.lo);
  return e;
}

// expm1(r + s); r + s = 0 gives 0.
UDF_INLINE udf_ff udf_expm1_ff_of(float r, float s) {
  udf_ff e = udf_ff_mul_f(udf_exp_ff_factor(r), r);
  e.lo += __builtin_fmaf(e.hi, s, s);
  return udf_ff_normal(e);
}

// The parts of an argument: n in the low bits of the encoding of n + magic.
UDF_INLINE void udf_exp_ff_split(float x, uint32_t *n, float *r, float *s) {
  float nm = __builtin_fmaf(x, UDF_EXP_FF_INV_LN2, UDF_FF_ROUND_MAGIC);
  float k = nm - UDF_FF_ROUND_MAGIC;
  *n = udf_f32_bits(nm);
  *r = __builtin_fmaf(k, -UDF_EXP_FF_LN2_HI, x);
  *s = k * -UDF_EXP_FF_LN2_LO;
}

// 2^n for -126 <= n <= 127, n being read from the low bits.
UDF_INLINE float udf_exp_ff_power(uint32_t n) {
  return udf_f32_from_bits((n + 127) << 23);
}

#endif

#endif // UDF_EXP_FF_H
