//===- exp_wide.h - Quick paths of exp and exp2 at AVX-512 ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// 2^(n/32) exp(r + s) in pairs of floats as in exp_quick.h, with fewer vector
// instructions.
//
// t is 2^(n/32) (1 - 2^-21), rounded, from the start. The low bits of the
// rounded multiple have n + 127 * 32 - 1; shifted left by 18 they are the
// encoding of 2^(n/32) but for the bits below the exponent, which an exclusive
// or with the table's entry sets. So two instructions scale. A result must be
// above 2^-80 then, or the CPU may flush low parts that count, where it flushes
// subnormal numbers. The callers give arguments beyond their range one whose
// rounding is undecided, and results that are zero a t of zero: no mask is
// combined with that of the rounding test.
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
// low: 5. s r^2/2 is in C2 with its mean only, and n STEP_LO takes 4 units for
// |x| < 75, of which 55 is used, and the roundings of T 1: 5. The polynomial:
// below 1. s itself is known to 2^-46 of 1, and low is 2^-22.5 at least, of
// which half of WIDTH is 2^-43. The sum is 11, half of WIDTH 12. WIDTH = 10
// gave wrong results, 16 none.
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

#include "exp_wide_constants.h"

#ifdef __FMA__

// Added to n/32, in units of 1/32.
#define UDF_EXP_WIDE_MAGIC (0x1.8p23f + 127 * UDF_EXP_WIDE_STEPS - 1)

// t, from n plus the magic number.
UDF_INLINE float udf_exp_wide_power_of(uint32_t i, _Bool zero) {
  float entry = udf_exp_wide_power[i % UDF_EXP_WIDE_STEPS];
  uint32_t b = udf_f32_bits(entry) ^ (i << 18);
  return udf_f32_from_bits(zero ? 0 : b);
}

// t + slope r + t p rounded, where slope is t but for exp2.
UDF_INLINE float udf_exp_wide(float t, float slope, float r, float p,
                              int *undecided) {
  float high = __builtin_fmaf(slope, r, t);
  float low = __builtin_fmaf(t, p, __builtin_fmaf(slope, r, t - high));
  float upper = high + low;
  float lower = __builtin_fmaf(low, UDF_EXP_WIDE_LESS, high);
  *undecided = upper != lower;
  return upper;
}

#endif

#endif // UDF_EXP_WIDE_H
