//===- exp_eight.h - Quick paths of expm1, sinh and cosh at AVX2 ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// exp in pairs of floats, for AVX2, where a table of eight entries is one
// register and a look-up in it one permutation. x = n ln(2)/8 + r + s as in
// exp_quick.h, with |r| <= 2^-4.52: n is read from the low bits of
// x 8 / ln(2) + 1.5 * 2^23, and r, the fused x - n STEP_HI, is exact, because
// for n != 0 it is a multiple of 2^-28 below 2^-4. s is known to 2^-50.
//
// A step is an eighth of an octave, and so is 2^20 of an encoding. So the
// tables have encodings less j 2^20, to which n 2^20 is added: two
// instructions scale.
//
// exp(r + s) - 1 = p + low. p = r + r^2/2 is rounded once, a fused multiply-add
// gives the error of that, and low has it with s (1 + p) and with the terms
// from r^3 on, whose errors of roundings are 2^-41 each. Two more fused
// multiply-adds keep t (1 + p) as high and error.
//
// expm1: t - 1 is a sum without error. For n = 0 it is zero, and the result
// keeps its relative accuracy.
//
// cosh: exp(x)/2, and exp(-x)/2 by a quotient whose remainder is exact. Two
// terms of (1 + lack), as low may be 2^-16 of the result.
//
// sinh: with U = 2^(n/8)/2 and V = 2^(-n/8)/2, rounded, the difference
// U - V and the sum U + V are pairs, and
//
//   sinh(r + n ln(2)/8) = (U - V) cosh(r) + (U + V) sinh(r),
//
// whose first three terms are two steps of Horner's scheme without error. What
// U and V lack is a shift of the argument and a factor: two tables. For n = 0
// U - V is zero.
//
// The errors that count are those of the terms from r^3 on: they shrink with
// |r|, and relative to a small result they are largest at the end of n = 0 and
// the begin of n = 1. So expm1 and sinh test the rounding with a width in
// proportion to rest, which is t p or what stands for it in sinh: 2^-33.4 of
// it. Results of cosh are not small, and it tests with 2^-37.4 of them. These
// widths are no proved bounds; each path has been compared with its function
// for all arguments, and a narrower width gave wrong results: 2^-34 for expm1,
// 2^-33.7 for sinh, 2^-38.4 for cosh.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_EXP_EIGHT_H
#define UDF_EXP_EIGHT_H

#include "corem.h"

#include "exp_eight_constants.h"

#ifdef __FMA__

// x = n ln(2)/8 + r less the rest of n ln(2)/8, with n in the low bits of i.
typedef struct {
  uint32_t i;
  float n, r;
} udf_exp_eight_reduced;

// magic less 1.5 * 2^23 is what i has above n.
UDF_INLINE udf_exp_eight_reduced udf_exp_eight_reduce(float x, float magic) {
  float nm = __builtin_fmaf(x, UDF_EXP_EIGHT_INV_STEP, magic);
  float n = nm - magic;
  float r = __builtin_fmaf(n, -UDF_EXP_EIGHT_STEP_HI, x);
  return (udf_exp_eight_reduced){udf_f32_bits(nm), n, r};
}

// The encoding of an entry, all of which are positive. Without fabs LLVM loads
// an integer, and udf-tables knows only look-ups of floats.
UDF_INLINE uint32_t udf_exp_eight_bits(float entry) {
  return udf_f32_bits(__builtin_fabsf(entry));
}

typedef struct {
  float high, low;
} udf_exp_eight_pair;

// exp(r + s) - 1, r = 2 half.
UDF_INLINE udf_exp_eight_pair udf_exp_eight_series(float r, float half,
                                                   float s) {
  float p = __builtin_fmaf(r, half, r);
  float error = __builtin_fmaf(r, half, r - p);
  float q = __builtin_fmaf(r, UDF_EXP_EIGHT_C5, UDF_EXP_EIGHT_C4);
  q = __builtin_fmaf(r, q, UDF_EXP_EIGHT_C3);
  float low = __builtin_fmaf(p, s, s) + __builtin_fmaf(r * r * r, q, error);
  return (udf_exp_eight_pair){p, low};
}

// rest is for the rounding test.
typedef struct {
  float high, low, rest;
} udf_exp_eight_sum;

// exp(x) - 1 for x > -18.
UDF_INLINE udf_exp_eight_sum udf_exp_eight_minus_one(float x) {
  udf_exp_eight_reduced e = udf_exp_eight_reduce(x, 0x1.8p23f);
  float s =
      __builtin_fmaf(e.n, -UDF_EXP_EIGHT_STEP_LO, udf_exp_eight_rest[e.i % 8]);
  udf_exp_eight_pair p = udf_exp_eight_series(e.r, 0.5f * e.r, s);
  float t = udf_f32_from_bits(udf_exp_eight_bits(udf_exp_eight_power[e.i % 8]) +
                              (e.i << 20));
  // t - 1 without error.
  float a = t - 1;
  float b = a - t;
  float a_low = (t - (a - b)) - (1 + b);
  float high = __builtin_fmaf(t, p.high, a);
  float rest = a - high;
  float error = __builtin_fmaf(t, p.high, rest);
  float low = __builtin_fmaf(t, p.low, error + a_low);
  return (udf_exp_eight_sum){high, low, rest};
}

// sinh(x) for x >= 0.
UDF_INLINE udf_exp_eight_sum udf_exp_eight_sinh(float x) {
  udf_exp_eight_reduced e = udf_exp_eight_reduce(x, 0x1.8p23f - 8);
  float up = udf_f32_from_bits(
      udf_exp_eight_bits(udf_exp_eight_power[e.i % 8]) + (e.i << 20));
  float down = udf_f32_from_bits(
      udf_exp_eight_bits(udf_exp_eight_inverse[e.i % 8]) - (e.i << 20));
  float s =
      __builtin_fmaf(e.n, -UDF_EXP_EIGHT_STEP_LO, udf_exp_eight_shift[e.i % 8]);
  float gain = udf_exp_eight_gain[e.i % 8];
  float difference = up - down;
  float difference_low = (up - difference) - down;
  float sum = up + down;
  float sum_low = (up - sum) + down;
  float r = e.r;
  float half = 0.5f * r;
  float square = r * r;
  float v = __builtin_fmaf(half, difference, sum);
  float v_low = __builtin_fmaf(half, difference_low, sum_low) +
                __builtin_fmaf(half, difference, sum - v);
  float high = __builtin_fmaf(r, v, difference);
  float rest = difference - high;
  float error = __builtin_fmaf(r, v, rest) + difference_low;
  float q = __builtin_fmaf(square, UDF_EXP_EIGHT_C5, UDF_EXP_EIGHT_C3);
  q = __builtin_fmaf(q, sum, r * UDF_EXP_EIGHT_C4 * difference);
  q = __builtin_fmaf(square, q, v_low);
  float slope = __builtin_fmaf(r, __builtin_fmaf(half, sum, difference), sum);
  float low = __builtin_fmaf(r, q, error);
  low = __builtin_fmaf(s, slope, low);
  low = __builtin_fmaf(gain, high, low);
  return (udf_exp_eight_sum){high, low, rest};
}

// cosh(x) for x >= 0.
UDF_INLINE udf_exp_eight_pair udf_exp_eight_cosh(float x) {
  udf_exp_eight_reduced e = udf_exp_eight_reduce(x, 0x1.8p23f - 8);
  float s =
      __builtin_fmaf(e.n, -UDF_EXP_EIGHT_STEP_LO, udf_exp_eight_rest[e.i % 8]);
  udf_exp_eight_pair p = udf_exp_eight_series(e.r, 0.5f * e.r, s);
  float t = udf_f32_from_bits(udf_exp_eight_bits(udf_exp_eight_power[e.i % 8]) +
                              (e.i << 20));
  float up = __builtin_fmaf(t, p.high, t);
  float up_low = __builtin_fmaf(t, p.low, __builtin_fmaf(t, p.high, t - up));
  float inverse = 1 / up;
  float lack = __builtin_fmaf(-inverse, up, 1);
  lack = __builtin_fmaf(-inverse, up_low, lack);
  lack = __builtin_fmaf(lack, lack, lack);
  float down = 0.25f * inverse;
  float high = up + down;
  float low = (up - high) + down;
  low += __builtin_fmaf(lack, down, up_low);
  return (udf_exp_eight_pair){high, low};
}

#endif

#endif // UDF_EXP_EIGHT_H
