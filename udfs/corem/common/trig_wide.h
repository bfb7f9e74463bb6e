//===- trig_wide.h - Quick paths of sin and cos at AVX-512 ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Pairs of floats, twice as many to a register as doubles. n is the integer
// nearest to 32 x/pi, and a table has an entry for each of the 32 steps of half
// a circle:
//
//   sin(x) = sin(c + r),  c = n pi/32 + shift,  r = x - n pi/32 - shift
//          = S + C r - S r^2/2 + r^3 (C (C3 + C5 r^2) + T4 t),  t = C - S r/2
//
// but for the sign of an odd number of half circles. cos looks up 16 steps
// further. The shifts, below 2^-12, are chosen (trig_wide.py) so that S and C
// are both floats but for little, as Gal did in 1986; where S or C is zero the
// shift is, too. That saves the low parts of two tables.
//
// x - n HIGH is exact: HIGH is pi/32 rounded to a multiple of 2^-27, and so is,
// or of 2^-28, any x that is not nearest to 0. What is left of n pi/32, with
// the shift, is one float, and r the rounded difference; its error is r_low. t
// and high = S + t r are rounded once each, and fused multiply-adds give the
// errors. The term of r^4 is a multiple of t less C, which needs no table.
//
// Error, absolute: below 2^-37.2. The roundings of the terms from r^3 on, up to
// 2^-15.6, add 2^-38.3, the polynomial 2^-38.9, the tables 2^-38.8 (2^-40 in
// most intervals), what is left of n pi/32 2^-39.7 at the end of the range, and
// where c is an odd multiple of pi/4, whose shift is 2^-12.4, 2^-37.5. Not all
// are large in one interval. trig_wide.gappa has the proof for four fifths of
// the intervals and remainders (tests/native/test_trig_wide_bounds.py); the
// test runs all arguments with the others, most of which are long remainders.
// All arguments were run: none that a test decides is wrong. With 6/7 of the
// width some are.
//
// The sum with n is in [2, 4), and its last bit is n's: an argument beyond the
// range changes bits that are zero in all others.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_TRIG_WIDE_H
#define UDF_TRIG_WIDE_H

#include "corem.h"

#include "trig_wide_constants.h"

#ifdef __FMA__

// Plus n 2^-22, for n from -2^14 to 2^14 - 1: |x| is below 1608 then.
#define UDF_TRIG_WIDE_MAGIC 0x1.008p+1f
// The encoding of this sum for n = 0.
#define UDF_TRIG_WIDE_ZERO UINT32_C(0x40004000)
// Bits that are zero in the encodings of all sums, from 2 to 2 + 2^-7.
#define UDF_TRIG_WIDE_OUTSIDE UINT32_C(0xbfff8000)

// An unevaluated sum of two floats, and r^2.
typedef struct {
  float high, low, square;
} udf_trig_wide_pair;

// sin(x + (i - n) pi/32) without its sign; the constants have n times 2^-22.
// Signs of zeros are such that -0 gives high and low -0 for i = 0.
UDF_INLINE udf_trig_wide_pair udf_trig_wide_series(float x, float n,
                                                   uint32_t i) {
  float shift = udf_trig_wide_shift[i % UDF_TRIG_WIDE_STEPS];
  float s = udf_trig_wide_sin[i % UDF_TRIG_WIDE_STEPS];
  float half = udf_trig_wide_half[i % UDF_TRIG_WIDE_STEPS];
  float c = udf_trig_wide_cos[i % UDF_TRIG_WIDE_STEPS];
  float first = __builtin_fmaf(n, -UDF_TRIG_WIDE_HIGH, x);
  float rest = __builtin_fmaf(n, UDF_TRIG_WIDE_LOW, shift);
  float r = first - rest;
  // The argument is r less this.
  float r_low = rest + (r - first);
  float t = __builtin_fmaf(half, r, c);
  float change = c - t;
  float t_low = __builtin_fmaf(half, r, change);
  float high = __builtin_fmaf(t, r, s);
  float low = __builtin_fmaf(t, r, -(high - s));
  float square = r * r;
  float q = __builtin_fmaf(square, UDF_TRIG_WIDE_C5, UDF_TRIG_WIDE_C3);
  q = __builtin_fmaf(t, UDF_TRIG_WIDE_T4, c * q);
  low = __builtin_fmaf(r, __builtin_fmaf(square, q, t_low), low);
  // The derivative is nearly t less the change.
  low = __builtin_fmaf(change - t, r_low, low);
  return (udf_trig_wide_pair){high, low, square};
}

// Whether two sums differ or the argument is beyond the range.
UDF_INLINE int udf_trig_wide_hard(float upper, float lower, uint32_t i) {
  return (udf_f32_bits(upper - lower) | (i & UDF_TRIG_WIDE_OUTSIDE)) != 0;
}

// y with the sign of an odd number of half circles.
UDF_INLINE float udf_trig_wide_sign(float y, uint32_t i) {
  return udf_f32_from_bits(udf_f32_bits(y) ^ (i << 26 & UINT32_C(0x80000000)));
}

#endif

#endif // UDF_TRIG_WIDE_H
