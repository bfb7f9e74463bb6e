//===- ff.h - Float-float arithmetic with FMA -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Numbers as unevaluated sums of two floats, 48 bits, for processors whose
// float arithmetic is much faster than their double arithmetic (most GPUs).
// Only float additions, products and fused multiply-adds, each rounded to
// nearest, so that every processor computes the same bits. Divisions and square
// roots are IEEE's too.
//
// The functions of this library compute hi + lo with a relative error below
// 2^-38 and round it when both ends of the error interval round alike
// (udf_ff_round); if not, they say "hard", and what corem does in double is
// done. Ranges where the arithmetic below would meet overflow or underflow are
// hard as well, or answered without it.
//
// Without FMA (the CPU level baseline) everything is left to corem.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_FF_H
#define UDF_FF_H

#include "../../corem/common/corem.h"

#ifdef __FMA__

typedef struct {
  float hi, lo;
} udf_ff;

// Adding 1.5 * 2^23 rounds a float below 2^22 in magnitude to the nearest
// integer, and leaves that integer in the low bits of the encoding.
#define UDF_FF_ROUND_MAGIC 0x1.8p23f

#define UDF_FF(name) ((udf_ff){name##_HI, name##_LO})

// Exact sums and product; see corem.h for their sources.
UDF_INLINE udf_ff udf_ff_two_sum(float a, float b) {
  float s = a + b;
  float bb = s - a;
  return (udf_ff){s, (a - (s - bb)) + (b - bb)};
}

// For |a| >= |b| or a == 0.
UDF_INLINE udf_ff udf_ff_fast_two_sum(float a, float b) {
  float s = a + b;
  return (udf_ff){s, b - (s - a)};
}

UDF_INLINE udf_ff udf_ff_two_prod(float a, float b) {
  float p = a * b;
  return (udf_ff){p, __builtin_fmaf(a, b, -p)};
}

// a + b for |a.hi| >= |b.hi| or a.hi == 0.
UDF_INLINE udf_ff udf_ff_add(udf_ff a, udf_ff b) {
  udf_ff s = udf_ff_fast_two_sum(a.hi, b.hi);
  return (udf_ff){s.hi, s.lo + (a.lo + b.lo)};
}

// The same for a float a.
UDF_INLINE udf_ff udf_ff_add_f(float a, udf_ff b) {
  udf_ff s = udf_ff_fast_two_sum(a, b.hi);
  return (udf_ff){s.hi, s.lo + b.lo};
}

// a + b, whatever their magnitudes.
UDF_INLINE udf_ff udf_ff_sum(udf_ff a, udf_ff b) {
  udf_ff s = udf_ff_two_sum(a.hi, b.hi);
  return (udf_ff){s.hi, s.lo + (a.lo + b.lo)};
}

UDF_INLINE udf_ff udf_ff_mul(udf_ff a, udf_ff b) {
  udf_ff p = udf_ff_two_prod(a.hi, b.hi);
  p.lo = __builtin_fmaf(a.hi, b.lo, __builtin_fmaf(a.lo, b.hi, p.lo));
  return p;
}

UDF_INLINE udf_ff udf_ff_mul_f(udf_ff a, float b) {
  udf_ff p = udf_ff_two_prod(a.hi, b);
  p.lo = __builtin_fmaf(a.lo, b, p.lo);
  return p;
}

// One step of Horner's rule, c + q x, for |c| >= |q x|.
UDF_INLINE udf_ff udf_ff_step(udf_ff q, udf_ff x, udf_ff c) {
  return udf_ff_add(c, udf_ff_mul(q, x));
}

UDF_INLINE udf_ff udf_ff_step_f(udf_ff q, float x, udf_ff c) {
  return udf_ff_add(c, udf_ff_mul_f(q, x));
}

// a / b. The quotient of the high parts is corrected by its remainder.
UDF_INLINE udf_ff udf_ff_div(udf_ff a, udf_ff b) {
  float inverse = 1.0f / b.hi;
  float q = a.hi * inverse;
  float rest = __builtin_fmaf(-q, b.hi, a.hi);
  rest = __builtin_fmaf(-q, b.lo, rest + a.lo);
  return (udf_ff){q, rest * inverse};
}

// The same number with |lo| <= ulp(hi)/2, for |hi| >= |lo|.
UDF_INLINE udf_ff udf_ff_normal(udf_ff a) {
  return udf_ff_fast_two_sum(a.hi, a.lo);
}

// Rounds a once. It is hard when a (1 + error) and a (1 - error) do not round
// alike, and for NaN.
UDF_INLINE float udf_ff_round(udf_ff a, float error, int *hard) {
  float y = a.hi + __builtin_fmaf(a.hi, error, a.lo);
  *hard = y != a.hi + __builtin_fmaf(a.hi, -error, a.lo);
  return y;
}

#endif

#endif // UDF_FF_H
