//===- gelu_erff.c - Correctly rounded float32 gelu, form with erf --------===//
// SPDX-License-Identifier: Apache-2.0
//
// gelu_erf(x) = x/2 (1 + erf(x / sqrt(2))) for real x, with the real number
// sqrt(2); -0 at -infinity, its limit.
//
// Method. With a = |x| / sqrt(2), erfc(a) = exp(-x^2/2) q F(q) with q = 1 /
// (a + 4), F and exp as in erfcf.c; x^2/2 is exact in double. gelu_erf(x) is
// x/2 erfc(a) for x < 0 and x/2 (2 - erfc(a)) for x > 0.
//
// Error of the fast path, relative, for x < 0. exp: 2^-39.9, F: 2^-44 (the
// argument reaches 1.003 times as far as in erfcf.c, where the result is below
// 2^-148); a is known to 2^-52, of which at most all reaches q F(q). The
// reduction adds less than 2^-46.4, the evaluation less than 2^-48: 2^-39.8 in
// all, at most 2^13.2 units in the last place of the double; less for x > 0.
// The rounding test sends everything within GELU_ERF_MARGIN = 2^14 units of a
// boundary to the accurate path; subnormal results are tested at their own
// spacing.
//
// Accurate path. Below a = 2.5: x/2 (1 + erf) with the accurate polynomial of
// erf in x^2/2, relative error below 2^-71. From there on erfc(a) = exp(-x^2/2)
// u G(u), u = 1/a, in double-double, relative error below 2^-75. Near zero x/2
// + x^2 / sqrt(2 pi), because x/2 is a tie for odd subnormal x.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "../common/composite.h"
#include "common/dd_horner.h"

#include "erf/constants.h"
#include "erfc/constants.h"
#include "exp/constants.h"

#include "constants.h"

// gelu_erf(GELU_ERF_MIN) > -2^-150 rounds to -0.
#define GELU_ERF_MIN -0x1.cdp+3f
#define GELU_ERF_MARGIN (UINT64_C(1) << 14)

UDF_INLINE float udf_gelu_erff_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  double d = x < GELU_ERF_MIN ? GELU_ERF_MIN : x;
  double b = d > -GELU_ERF_MIN ? -GELU_ERF_MIN : d;
  double a = __builtin_fabs(b);
  double q = 1 / UDF_FMA(a, GELU_ERF_SQRT_HALF, ERFC_SHIFT);
  double v = q - ERFC_MIDDLE;
  double v2 = v * v;
  double even = UDF_FMA(v2, ERFC_F14, ERFC_F12);
  double odd = UDF_FMA(v2, ERFC_F15, ERFC_F13);
  even = UDF_FMA(v2, even, ERFC_F10);
  odd = UDF_FMA(v2, odd, ERFC_F11);
  even = UDF_FMA(v2, even, ERFC_F8);
  odd = UDF_FMA(v2, odd, ERFC_F9);
  even = UDF_FMA(v2, even, ERFC_F6);
  odd = UDF_FMA(v2, odd, ERFC_F7);
  even = UDF_FMA(v2, even, ERFC_F4);
  odd = UDF_FMA(v2, odd, ERFC_F5);
  even = UDF_FMA(v2, even, ERFC_F2);
  odd = UDF_FMA(v2, odd, ERFC_F3);
  even = UDF_FMA(v2, even, ERFC_F0);
  odd = UDF_FMA(v2, odd, ERFC_F1);
  double f = UDF_FMA(v, odd, even);
  // exp(-x^2/2) as in exp.  The square is exact.
  double z = 0.5 * (b * b);
  double kd = UDF_FMA(z, -EXP_LOG2E, UDF_ROUND_MAGIC);
  double k = kd - UDF_ROUND_MAGIC;
  double r = UDF_FMA(k, -EXP_LN2, -z);
  double r2 = r * r;
  double r4 = r2 * r2;
  double p01 = UDF_FMA(r, EXP_C1, EXP_C0);
  double p23 = UDF_FMA(r, EXP_C3, EXP_C2);
  double p45 = UDF_FMA(r, EXP_C5, EXP_C4);
  double p67 = UDF_FMA(r, EXP_C7, EXP_C6);
  double low = UDF_FMA(r2, p23, p01);
  double high = UDF_FMA(r2, UDF_FMA(r2, EXP_C8, p67), p45);
  double p = UDF_FMA(r4, high, low);
  double c =
      udf_f64_from_bits(udf_f64_bits(p * (q * f)) + (udf_f64_bits(kd) << 52));
  double twice = d > 0 ? 2 - c : c;
  double y = (0.5 * d) * twice;
  *hard = udf_near_any_boundary(y, GELU_ERF_MARGIN);
  return (float)y;
}

// erfc(|x| / sqrt(2)) for |x| / sqrt(2) >= ERFC_SPLIT.
UDF_INLINE udf_dd udf_gelu_erff_tail_dd(double x) {
  double a = __builtin_fabs(x);
  udf_dd u = udf_dd_div(udf_gelu_erf_dd_sqrt2, (udf_dd){a, 0});
  udf_dd g = udf_dd_horner(udf_dd_add_d(u, -ERFC_AMIDDLE), udf_erfc_dd_low,
                           UDF_COUNT(udf_erfc_dd_low), udf_erfc_dd_high,
                           UDF_COUNT(udf_erfc_dd_high));
  return udf_dd_mul(udf_exp_dd(-0.5 * (a * a)), udf_dd_mul(u, g));
}

static UDF_COLD float udf_gelu_erff_accurate(float x) {
  if (x != x)
    return x + x;
  if (x <= GELU_ERF_MIN)
    return -0.0f;
  if (x >= -GELU_ERF_MIN || x == 0)
    return x;
  double d = x;
  if (__builtin_fabs(d) < 0x1p-40)
    return udf_half_near_zero(d, GELU_ERF_PHI_0);
  udf_dd twice;
  if (__builtin_fabs(d) < GELU_ERF_SPLIT) {
    udf_dd t = udf_two_sum(0.5 * (d * d), -ERF_CENTER);
    udf_dd p = udf_dd_horner(t, udf_erf_dd_low, UDF_COUNT(udf_erf_dd_low),
                             udf_erf_dd_high, UDF_COUNT(udf_erf_dd_high));
    udf_dd a = udf_dd_mul_d(udf_gelu_erf_dd_sqrt_half, d);
    twice = udf_dd_add((udf_dd){1, 0}, udf_dd_mul(p, a));
  } else {
    twice = udf_gelu_erff_tail_dd(d);
    if (d > 0)
      twice = udf_dd_sub((udf_dd){2, 0}, twice);
  }
  return udf_dd_round(udf_dd_mul_d(twice, 0.5 * d));
}
