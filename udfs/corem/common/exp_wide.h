//===- exp_wide.h - Quick paths of exp and exp2 at AVX-512 ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// 2^(n/32) exp(r + s) in pairs of floats as in exp_quick.h, with fewer vector
// instructions.
//
// t is 2^(j/32) (1 - 2^-21), rounded, with j = n modulo 32, from the start. All
// sums are near 1, and one instruction scales the result (lanes.h). So no low
// part is subnormal, and scaling to a normal result is exact. The ends of the
// range, whose rounding is undecided, take the place of arguments beyond it. A
// mask gives the result 0 where that is due.
//
// high is t (1 + r) rounded, low its error and t p. s has what t lacks, which
// is near 2^-21 and positive; s (1 + r) is two steps of Horner's scheme.
//
// So p > 2^-22.5, and low > 0, because the error of high is at most 2^-24 t.
// That allows for a rounding test of one fused multiply-add: low times 1 -
// WIDTH is the lower bound. C2, r^2's factor, and s are larger by half of
// WIDTH.
//
// Error, in units of 2^-24 r^2/2, with t = 1. Four roundings of p and that of
// low: 5. s r^2/2 is in C2 with its mean only, and n LN2_LO takes 5 units for
// |x| < 89, and the roundings of T 1: 6. The polynomial: below 1. s itself is
// known to 2^-46 of 1, and low is 2^-22.5 at least, of which half of WIDTH is
// 2^-43. The sum is 12, half of WIDTH 12. WIDTH = 10 gave wrong results, 16
// none.
//
// exp2 has t d ln(2) in place of t r. S, the product of t and ln(2) rounded,
// takes the place of t, and two tables have what S and t lack.
//
// exp_wide.gappa has the proof for exp2, and for exp up to 16 in magnitude
// (tests/native/test_exp_wide_bounds.py); the test runs all other arguments of
// exp. Each path has been compared with its function for all arguments.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_EXP_WIDE_H
#define UDF_EXP_WIDE_H

#include "corem.h"
#include "lanes.h"

#include "exp_wide_constants.h"

#ifdef __FMA__

// Added to n/32 it leaves n in the low bits.
#define UDF_EXP_WIDE_MAGIC 0x1.8p18f

// 2^floor(n) (t + slope r + t p) rounded, where slope is t but for exp2.
UDF_INLINE float udf_exp_wide(float t, float slope, float r, float p, float n,
                              _Bool zero, int *undecided) {
  float high = __builtin_fmaf(slope, r, t);
  float low = __builtin_fmaf(t, p, __builtin_fmaf(slope, r, t - high));
  float upper = high + low;
  float lower = __builtin_fmaf(low, UDF_EXP_WIDE_LESS, high);
  *undecided = zero ? 0 : upper != lower;
  return zero ? 0 : udf_lane_scale(upper, n);
}

#endif

#endif // UDF_EXP_WIDE_H
