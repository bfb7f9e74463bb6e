//===- erfcf_eight.c - Quick path of erfc at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// With a = |x|, erfc(a) = exp(P(a)), P = log(erfc(a)), in pairs of floats, for
// the vector and array forms at AVX2, where a table of eight entries is one
// register and a look-up in it one permutation; erfc(-a) = 2 - erfc(a).
//
// SLOPE a - CURVE a^2, rounded to an integer, numbers eight intervals, which
// grow with the distance from the zeros of erfc, near -1.35 +- 1.99 i: there
// the series of P end. Around the center c of an interval, with d = a - c,
// which is exact,
//
//   P(c + d) = steps log(2)/8 + log(1 + rest) + slope d + p2 d^2 + ...
//
// Horner's scheme is exact for four steps: v = p3 + q d, u = p2 + v d,
// t = slope + u d and high = t d are rounded once each, and fused multiply-adds
// give the errors of these roundings. The center is chosen (erfc_eight.py) so
// that erfc(c) is nearly a step of the exponential, which only counts steps,
// and p2 nearly a float; in the first interval c is 0, and so is P. All entries
// but the last are halves.
//
// Then exp as in exp_eight.h: high = k log(2)/8 + r exactly, and exp(r) - 1 is
// twice h + h^2 with h = r/2, which needs no product with 1/2; e is that sum
// rounded. What is left of the argument, s, multiplies the whole result.
//
// Error of P, which is the relative one of the result, in units of 2^-38: the
// polynomials 1.9; q, 2^-24 of terms below 2^-12, 4; s, below 2^-15, and its
// sums 1, but up to 5 in the last interval, where s multiplies rest; the series
// of exp 1. The half of the width is 2^-35, 8 units. eight.gappa and
// eight_exp.gappa prove most parts; tests/native/test_erfc_eight_bounds.py runs
// the others. Such sums are hardly ever reached: the run of all 2^32 arguments
// found no wrong result, nor did one of [1/32, 8) with 4.8 units, but some
// with 4. With x < 0 the error is 2^-35 of erfc(a), less than that of the
// result.
//
// Arguments from ERFC_EIGHT_LAST on, whose low parts would be subnormal, are
// left to the fast path: the rounding test leaves that one undecided, and takes
// all others for it. Of those below it leaves 338,424 of 3,228,787,455; that is
// one in 1,000 near 0, and one in 2,500 from -3 to 3.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_eight.h"

#include "eight_constants.h"

#ifdef __FMA__
// Undecided; for x < 0 the result is 2 long before.
#define ERFC_EIGHT_LAST 0x1.e6c5fcp+2f

#define ERFC_EIGHT_ENTRY(table, i) udf_erfc_eight_##table[(i) % 8]

UDF_INLINE float udf_erfcf_eight(float x, int *hard) {
  // Written so that NaN passes.
  float a = __builtin_fabsf(x);
  a = a > ERFC_EIGHT_LAST ? ERFC_EIGHT_LAST : a;
  float b = __builtin_fmaf(a, -UDF_ERFC_EIGHT_CURVE, UDF_ERFC_EIGHT_SLOPE);
  uint32_t i = udf_f32_bits(__builtin_fmaf(a, b, 0x1.8p23f));
  float d = a - ERFC_EIGHT_ENTRY(center, i);
  float slope = ERFC_EIGHT_ENTRY(slope, i);
  float p2 = ERFC_EIGHT_ENTRY(p2, i);
  float p3 = ERFC_EIGHT_ENTRY(p3, i);
  float square = d * d;
  float q = __builtin_fmaf(d, ERFC_EIGHT_ENTRY(p5, i), ERFC_EIGHT_ENTRY(p4, i));
  float q6 =
      __builtin_fmaf(d, ERFC_EIGHT_ENTRY(p7, i), ERFC_EIGHT_ENTRY(p6, i));
  q6 = __builtin_fmaf(square, ERFC_EIGHT_ENTRY(p8, i), q6);
  q = __builtin_fmaf(square, q6, q);
  float v = __builtin_fmaf(q, d, p3);
  float v_low = __builtin_fmaf(q, d, p3 - v);
  float u = __builtin_fmaf(v, d, p2);
  float u_low = __builtin_fmaf(v, d, p2 - u);
  u_low = __builtin_fmaf(v_low, d, u_low);
  float t = __builtin_fmaf(u, d, slope);
  float t_low = __builtin_fmaf(u, d, slope - t);
  t_low += __builtin_fmaf(u_low, d, ERFC_EIGHT_ENTRY(slope_low, i));
  float high = t * d;
  float low = __builtin_fmaf(t, d, -high);
  low = __builtin_fmaf(t_low, d, low);
  // high is the half of k log(2)/8 + r; the low bits of n number the steps.
  float steps = ERFC_EIGHT_ENTRY(steps, i);
  float nm = __builtin_fmaf(high, 2 * UDF_EXP_EIGHT_INV_STEP, steps);
  float k = nm - steps;
  uint32_t n = udf_f32_bits(nm);
  float h = __builtin_fmaf(k, -0.5f * UDF_EXP_EIGHT_STEP_HI, high);
  float s =
      __builtin_fmaf(k, -UDF_EXP_EIGHT_STEP_LO, ERFC_EIGHT_ENTRY(rest, i));
  s = __builtin_fmaf(low, 2.0f, s) + udf_exp_eight_rest[n % 8];
  // The half of exp(r) - 1.
  float e = __builtin_fmaf(h, h, h);
  float e_low = __builtin_fmaf(h, h, h - e);
  float c = __builtin_fmaf(h, 16 * UDF_EXP_EIGHT_C5, 8 * UDF_EXP_EIGHT_C4);
  c = __builtin_fmaf(h, c, 4 * UDF_EXP_EIGHT_C3);
  e_low = __builtin_fmaf(h * h * h, c, e_low);
  uint32_t sign = udf_f32_bits(x) & UINT32_C(0x80000000);
  uint32_t bits = udf_exp_eight_bits(udf_exp_eight_power[n % 8]) + (n << 20);
  bits |= sign;
  float power = udf_f32_from_bits(bits);
  float twice = udf_f32_from_bits(bits + (UINT32_C(1) << 23));
  float y = __builtin_fmaf(twice, e, power);
  float y_low = __builtin_fmaf(twice, e, power - y);
  y_low = __builtin_fmaf(twice, e_low, y_low);
  // 2 or 0.
  float base = udf_f32_from_bits(sign >> 1);
  float z = base + y;
  float z_low = y_low + ((base - z) + y);
  z_low = __builtin_fmaf(s, y + y_low, z_low);
  float upper = z + z_low;
  float lower = z + __builtin_fmaf(power, UDF_ERFC_EIGHT_WIDTH, z_low);
  *hard = upper != lower;
  return upper;
}
#endif
