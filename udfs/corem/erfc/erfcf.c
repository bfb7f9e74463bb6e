//===- erfcf.c - Correctly rounded float32 erfc ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. With a = |x| and q = 1 / (a + 4), erfc(a) = exp(-a^2) q F(q), F of
// degree 15, and exp(-a^2) as in exp (a^2 is exact in double); erfc(-a) = 2 -
// erfc(a). The argument is clamped to where the result is 2 or 0.
//
// Error of the fast path, relative, for x > 0. exp: 2^-39.9, F: 2^-44.5. The
// reduction adds less than 2^-46.4 (k times the error of the double nearest to
// ln(2), and without FMA the rounding of their product), the evaluation less
// than 2^-48: 2^-39.8 in all, which is at most 2^13.2 units in the last place
// of the double; less for x < 0. The rounding test sends everything within
// ERFC_MARGIN = 2^14 units of a boundary to the accurate path; subnormal
// results are tested at their own spacing.
//
// Accurate path. Below 2.5: 1 - erf(x) with the accurate polynomial of erf,
// relative error below 2^-73. From there on: exp(-x^2) u G(u), u = 1 / x, G of
// degree 27, in double-double, relative error below 2^-76.
//
// Inputs that take the accurate path: 30,545 of 2^32 with FMA.
// Hardest case, 2^-55.7 relative from the boundary:
//   x      -0x1.d93ec4p-17 (0xb76c9f62)
//   result 0x1.00010ap+0 (0x3f800085)
//   next   0x1.00010cp+0 (0x3f800086)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/dd_horner.h"
#include "../common/expm1_dd.h"

#include "../erf/constants.h"
#include "../exp/constants.h"
#include "constants.h"

// erfc(ERFC_MAX) < 2^-150 rounds to +0 and erfc(ERFC_MIN) to 2, so that
// clamping the argument changes no result.
#define ERFC_MAX 0x1.44p+3f
#define ERFC_MIN -0x1.f8p+1f
// Arguments above it have subnormal results.
#define ERFC_SUBNORMAL 0x1.2639bep+3
#define ERFC_MARGIN (UINT64_C(1) << 14)

UDF_INLINE float udf_erfcf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > ERFC_MAX ? ERFC_MAX : x;
  c = c < ERFC_MIN ? ERFC_MIN : c;
  double d = c;
  double a = __builtin_fabs(d);
  double q = 1 / (a + ERFC_SHIFT);
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
  // exp(-d^2) as in exp.  d * d is exact.
  double z = d * d;
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
  double y =
      udf_f64_from_bits(udf_f64_bits(p * (q * f)) + (udf_f64_bits(kd) << 52));
  // erfc(-a) = 2 - erfc(a): the sign bit of d, moved by one, is the encoding
  // of 2.
  uint64_t sign = udf_f64_bits(d) & (UINT64_C(1) << 63);
  y = udf_f64_from_bits(sign >> 1) + udf_f64_from_bits(udf_f64_bits(y) ^ sign);
  *hard = udf_near_boundary_subnormal(y, d > ERFC_SUBNORMAL, ERFC_MARGIN);
  return (float)y;
}

// erf(a) for 0 <= a <= ERFC_SPLIT; a * a is exact.
UDF_INLINE udf_dd udf_erfcf_erf_dd(double a) {
  udf_dd t = udf_two_sum(a * a, -ERF_CENTER);
  udf_dd p = udf_dd_horner(t, udf_erf_dd_low, UDF_COUNT(udf_erf_dd_low),
                           udf_erf_dd_high, UDF_COUNT(udf_erf_dd_high));
  return udf_dd_mul_d(p, a);
}

static UDF_COLD float udf_erfcf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x >= ERFC_MAX)
    return 0;
  if (x <= ERFC_MIN)
    return 2;
  // erfc(x) = 1 - 1.13 x + ... rounds to 1.
  if (__builtin_fabsf(x) < 0x1p-27f)
    return 1;
  double d = x;
  if (d < ERFC_SPLIT) {
    udf_dd e = udf_erfcf_erf_dd(__builtin_fabs(d));
    if (d > 0)
      e = (udf_dd){-e.hi, -e.lo};
    return udf_dd_round(udf_dd_add((udf_dd){1, 0}, e));
  }
  udf_dd u = udf_dd_div((udf_dd){1, 0}, (udf_dd){d, 0});
  udf_dd g = udf_dd_horner(udf_dd_add_d(u, -ERFC_AMIDDLE), udf_erfc_dd_low,
                           UDF_COUNT(udf_erfc_dd_low), udf_erfc_dd_high,
                           UDF_COUNT(udf_erfc_dd_high));
  return udf_dd_round(udf_dd_mul(udf_exp_dd(-(d * d)), udf_dd_mul(u, g)));
}
