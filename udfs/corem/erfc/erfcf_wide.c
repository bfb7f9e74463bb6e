//===- erfcf_wide.c - Quick path of erfc for AVX-512 ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// erfc(x) = exp(P(x)), P = log(erfc(x)), in pairs of floats, for the vector and
// array forms at AVX-512. P is smooth on the whole axis, so that one polynomial
// of degree seven per interval serves both signs of x, and the result keeps its
// relative accuracy however small it is. SLOPE x - CURVE x^2, rounded to an
// integer, numbers 31 intervals of [-3.84375, 9.14]; arguments below have the
// result 2, those above are hard, through a NaN in the last place of a table.
//
// Around the center c of an interval, with d = x - c, which is exact,
//
//   P(c + d) = steps log(2)/32 + value + rest + slope d + p2 d^2 + ...
//
// q = p3 + p4 d + ... is rounded as usual. u = p2 + q d, t = slope + u d and
// high = value + t d are rounded once each; fused multiply-adds give the errors
// of these roundings, which begin the low part. p2 is a float but for little,
// by the choice of the center (erfc_wide.py). In the interval of 0 the center
// has to be 0; there SHIFT, which is added to d in one of the products of q,
// makes p2 a float. value is zero where the center can be such that rest is
// small; else it is at least twice the other terms of high, so that value -
// high is exact.
//
// Then exp as in exp_quick.h, with a width of its own: high = k log(2)/32 + r,
// exactly.
//
// Error of P, which is the relative one of the result, in units of 2^-38: the
// polynomials 0.6, near 0 1.5; q, relative 2^-24 of a term below 2^-10.8, up
// to 9.2; slope_low and t_low 1; the parts of s, below 2^-12, 2;
// udf_exp_quick 4.7. Half of the width is 2^-35, or 8 units; such sums are
// hardly ever reached: the run of all 2^32 arguments found no wrong result, nor
// with 7 units in the ranges where they are largest, but some with 6.
// wide.gappa and wide_exp.gappa have the proof for more than half of all parts;
// tests/native/test_erfc_wide_bounds.py runs the others. Less than one argument
// in 1,000 is left to the fast path from -9 to 9.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_quick.h"

#include "wide_constants.h"

// In the last interval, that of hard arguments.
#define ERFC_WIDE_LAST 0x1.34p+3f

#define ERFC_WIDE_ENTRY(table, i) udf_erfc_wide_##table[(i) % 32]

UDF_INLINE float udf_erfcf_wide(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > ERFC_WIDE_LAST ? ERFC_WIDE_LAST : x;
  c = c < UDF_ERFC_WIDE_FIRST ? UDF_ERFC_WIDE_FIRST : c;
  float b = __builtin_fmaf(c, -UDF_ERFC_WIDE_CURVE, UDF_ERFC_WIDE_SLOPE);
  uint32_t i = udf_f32_bits(__builtin_fmaf(c, b, 0x1.8p23f));
  float d = c - ERFC_WIDE_ENTRY(center, i);
  float slope = ERFC_WIDE_ENTRY(slope, i);
  float p2 = ERFC_WIDE_ENTRY(p2, i);
  float q = __builtin_fmaf(d, ERFC_WIDE_ENTRY(p7, i), ERFC_WIDE_ENTRY(p6, i));
  q = __builtin_fmaf(d, q, ERFC_WIDE_ENTRY(p5, i));
  q = __builtin_fmaf(d, q, ERFC_WIDE_ENTRY(p4, i));
  q = __builtin_fmaf(d, q, ERFC_WIDE_ENTRY(p3, i));
  float u = __builtin_fmaf(q, d, p2);
  float u_low = __builtin_fmaf(q, d + UDF_ERFC_WIDE_SHIFT, p2 - u);
  float t = __builtin_fmaf(u, d, slope);
  float t_low = __builtin_fmaf(u, d, slope - t);
  t_low += __builtin_fmaf(u_low, d, ERFC_WIDE_ENTRY(slope_low, i));
  float value = ERFC_WIDE_ENTRY(value, i);
  float high = __builtin_fmaf(t, d, value);
  float low = __builtin_fmaf(t, d, value - high);
  low = __builtin_fmaf(t_low, d, low);
  // As in exp; the low bits of n number the steps of the result.
  float steps = ERFC_WIDE_ENTRY(steps, i);
  float nm = __builtin_fmaf(high, UDF_EXP_QUICK_INV_STEP, steps);
  float k = nm - steps;
  uint32_t n = udf_f32_bits(nm);
  float r = __builtin_fmaf(k, -UDF_EXP_QUICK_STEP_HI, high);
  float rest = ERFC_WIDE_ENTRY(rest, i);
  float s = __builtin_fmaf(k, -UDF_EXP_QUICK_STEP_LO, rest);
  s = (s + udf_exp_quick_rest(n)) + low;
  // As in udf_exp_quick, with another width.
  float power = udf_exp_quick_power[n % UDF_EXP_QUICK_STEPS];
  float a = r + s;
  float e = __builtin_fmaf(
      a, __builtin_fmaf(a, UDF_EXP_QUICK_C4, UDF_EXP_QUICK_C3), 0.5f);
  float p = __builtin_fmaf(a * a, e, s);
  float y = __builtin_fmaf(power, r, power);
  float y_low = __builtin_fmaf(power, p, __builtin_fmaf(power, r, power - y));
  float upper = y + y_low;
  float lower = y + __builtin_fmaf(power, UDF_ERFC_WIDE_WIDTH, y_low);
  // NaN is hard, and all of the last interval.
  *hard = !(upper == lower);
  return udf_f32_from_bits(udf_f32_bits(upper) +
                           (n / UDF_EXP_QUICK_STEPS << 23));
}
