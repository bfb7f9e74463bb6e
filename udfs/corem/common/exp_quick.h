//===- exp_quick.h - Quick paths of the exponential family ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// 2^(n/J) exp(r + s) in pairs of floats, twice as many to a register as
// doubles, for the vector and array forms where there is FMA. J = 32, or 16 at
// AVX2, is what a table of two registers holds. With n = J k + j the result is
// 2^k T[j] exp(r + s), where T[j] is the float nearest to 2^(j/J) and s has the
// rest of the argument, and what T[j] lacks (udf_exp_quick_rest).
//
// T (1 + r) rounds to high; its error, itself a float exact to 2^-48, begins
// low, to which T (exp(r + s) - 1 - r) is added in float.
//
// Error, relative to 2^k T, in units of 2^-38 for J = 32 and of 2^-36 for J
// = 16. With a = r + s, |a| <= 2^-6.53 (2^-5.53) and |s| < 2^-21: rounding a
// moves a^2/2 by 1.4, a^2 itself errs by 0.5, the factor next to 1/2 by 1.0,
// their product with s added by 0.5, low by 1.0, the polynomial by 0.1
// (0.4): 4.7 in all. Every result is moved up by 6 units, through s, and a
// second low is made smaller by WIDTH = 12 units, which errs by one more. So
// the true value lies between the two sums of high and low, and when both round
// to the same float that is its rounding. Of the arguments of exp with normal
// results 300,041 are left to the fast path by this test, 1,202,329 at AVX2.
//
// Scaling by 2^k is exact. Subnormal results and overflows are left to the fast
// path: the callers count them as hard.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_EXP_QUICK_H
#define UDF_EXP_QUICK_H

#include "corem.h"

#include "exp_quick_constants.h"

#ifdef __FMA__

// log(2^(j/J) / T[j]) and the shift by half of WIDTH, for n = i modulo 2^32.
UDF_INLINE float udf_exp_quick_rest(uint32_t i) {
  return udf_exp_quick_offset[i % UDF_EXP_QUICK_STEPS];
}

UDF_INLINE float udf_exp_quick(uint32_t i, float r, float s, int *undecided) {
  float t = udf_exp_quick_power[i % UDF_EXP_QUICK_STEPS];
  float a = r + s;
  float q = __builtin_fmaf(
      a, __builtin_fmaf(r, UDF_EXP_QUICK_C4, UDF_EXP_QUICK_C3), 0.5f);
  float p = __builtin_fmaf(a * a, q, s);
  float high = __builtin_fmaf(t, r, t);
  float low = __builtin_fmaf(t, p, __builtin_fmaf(t, r, t - high));
  float upper = high + low;
  float lower = high + __builtin_fmaf(t, -UDF_EXP_QUICK_WIDTH, low);
  *undecided = upper != lower;
  // Of k modulo 2^27 the exponent takes the low bits.
  return udf_f32_from_bits(udf_f32_bits(upper) +
                           (i / UDF_EXP_QUICK_STEPS << 23));
}

#endif

#endif // UDF_EXP_QUICK_H
