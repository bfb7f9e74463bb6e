//===- expm1_wide.h - Quick paths of expm1, sinh and cosh at AVX-512 ------===//
// SPDX-License-Identifier: Apache-2.0
//
// exp in pairs of floats, for AVX-512, where a table of 32 entries is two
// registers and a look-up in it one permutation. x = n ln(2)/32 + r + s as in
// exp_quick.h, with |r| <= 2^-6.53: n is read from the low bits of
// x 32 / ln(2) + 1.5 * 2^23 + 32 BIAS, and r, the fused x - n STEP_HI, is
// exact, because for n != 0 it is a multiple of 2^-30 below 2^-6. s is below
// 2^-21.5 and known to 2^-46.
//
// A step is a 32nd of an octave, and so is 2^18 of an encoding. With BIAS the
// shifted n has the exponent of a result and, below it, j 2^18, which the
// tables take away: by exclusive or for 2^(n/32), by subtraction for 2^(-n/32).
//
// The terms from r^2 on are below 2^-14, so that their errors of roundings are
// 2^-38 each. Only T (1 + r) keeps an error, and low begins with it.
//
// expm1: t - 1 is a pair. Up to 2^24 it has lost bits of t only, which one
// addition and one subtraction give; beyond, it is t and -1. For n = 0 it is
// zero, and the result keeps its relative accuracy.
//
// sinh and cosh: with U = 2^(n/32)/2 and V = 2^(-n/32)/2, rounded,
//
//   sinh(r + n ln(2)/32) = (U - V) cosh(r) + (U + V) sinh(r),
//   cosh(r + n ln(2)/32) = (U + V) cosh(r) + (U - V) sinh(r).
//
// U + V is rounded to sum, and what of V it has, sum - U, is exact; so is U
// less that. What V has beyond is lost: it is added to sum, taken from
// difference and multiplied by exp(-r). U and V are multiples of 2^-23 while
// |n| < 32, so that nothing is lost where the result is small. What they lack
// is a shift of the argument and a factor: two tables. For n = 0 U - V is zero.
// What rounding takes from the shift would count in sinh for n = 1 and 2, where
// r is so small that low is: the factor makes up for it.
//
// The errors of low are in proportion to its largest term, which is r^2/2 of
// the result or less. The rounding test therefore has a width in proportion to
// low itself, and two fused multiply-adds with a comparison suffice. When low
// is small beside half a unit in the last place of high, high is the rounding
// whatever the error; else no term is much larger than low. Four or five
// roundings weigh 2^-24 each. sinh and cosh have the terms from r^2 on in r +
// s; expm1 leaves out s r^2/2, which is s of the term with r^2: 2^-24 where |x|
// < 16, 2^-21.6 at the end of the range.
//
// The width is 2^-21 of low. expm1_wide.gappa has the proof where n is 0, and
// of expm1 up to 16 (tests/native/test_expm1_wide_bounds.py). Elsewhere the
// worst roundings together exceed the width, and the test runs all arguments.
// Each path has been compared with its function for all arguments. 2^-22 gave
// wrong results in all three, in expm1 only for x > 32.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_EXPM1_WIDE_H
#define UDF_EXPM1_WIDE_H

#include "corem.h"

#include "expm1_wide_constants.h"

#ifdef __FMA__

// x = n ln(2)/32 + r less the rest of n ln(2)/32, with n in the low bits of i.
typedef struct {
  uint32_t i;
  float n, r;
} udf_expm1_wide_reduced;

// i is bias octaves above n.
UDF_INLINE udf_expm1_wide_reduced udf_expm1_wide_reduce(float x, int bias) {
  float magic = 0x1.8p23f + (float)(bias * UDF_EXPM1_WIDE_STEPS);
  float nm = __builtin_fmaf(x, UDF_EXPM1_WIDE_INV_STEP, magic);
  float n = nm - magic;
  float r = __builtin_fmaf(n, -UDF_EXPM1_WIDE_STEP_HI, x);
  return (udf_expm1_wide_reduced){udf_f32_bits(nm), n, r};
}

// The float whose encoding is entry's exclusive or with i 2^18. Without fabs
// LLVM loads an integer, and udf-tables knows only look-ups of floats.
UDF_INLINE float udf_expm1_wide_scaled(float entry, uint32_t i) {
  return udf_f32_from_bits(udf_f32_bits(__builtin_fabsf(entry)) ^ (i << 18));
}

typedef struct {
  float high, low;
} udf_expm1_wide_pair;

// The sum rounded, when its error is below width times low.
UDF_INLINE float udf_expm1_wide_round(udf_expm1_wide_pair y, float width,
                                      int *undecided) {
  float upper = __builtin_fmaf(y.low, 1 + width, y.high);
  float lower = __builtin_fmaf(y.low, 1 - width, y.high);
  *undecided = upper != lower;
  return upper;
}

// U + V is sum + lost, U - V is difference - lost.
typedef struct {
  uint32_t j;
  float r, s, sum, difference, lost;
} udf_expm1_wide_halves;

UDF_INLINE udf_expm1_wide_halves udf_expm1_wide_halve(float a) {
  udf_expm1_wide_reduced e = udf_expm1_wide_reduce(a, 126);
  uint32_t j = e.i % UDF_EXPM1_WIDE_STEPS;
  float up = udf_expm1_wide_scaled(udf_expm1_wide_direct[j], e.i);
  float down = udf_f32_from_bits(
      udf_f32_bits(__builtin_fabsf(udf_expm1_wide_inverse[j])) - (e.i << 18));
  float s =
      __builtin_fmaf(e.n, -UDF_EXPM1_WIDE_STEP_LO, udf_expm1_wide_shift[j]);
  float sum = up + down;
  float added = sum - up;
  float lost = down - added;
  return (udf_expm1_wide_halves){j, e.r, s, sum, up - added, lost};
}

#endif

#endif // UDF_EXPM1_WIDE_H
