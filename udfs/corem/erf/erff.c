//===- erff.c - Correctly rounded float32 erf -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. erf(x) = x P(x^2 - 7.75) with P of degree 22 on 0 <= x^2 <= 15.5, in
// double, its even and odd halves evaluated side by side; beyond, the argument
// is clamped to where the result is 1. One polynomial for the whole range
// costs less than any selection between shorter ones, and the shift of x^2 to
// the middle of its range keeps the sum of the terms' magnitudes below five
// times their sum.
//
// Error of the fast path, relative. P: 2^-42.6 (certified by supnorm), the
// evaluation less than 2^-48: 2^-42.5 in all, which is at most 2^10.5 units in
// the last place of the double. The rounding test sends everything within
// ERF_MARGIN = 2^11 units of a boundary to the accurate path; subnormal
// results are tested at their own spacing.
//
// Quick path, at AVX-512: see odd_quick.h. Arguments other than 0 below
// ERF_QUICK_TINY, where errors of roundings may be subnormal, are left to the
// fast path, and by the rounding test 529,940 of the others.
//
// Accurate path. The same with a polynomial of degree 36 in double-double,
// relative error below 2^-82.
//
// Inputs that take the accurate path: 16,462 of 2^32 with FMA.
// Hardest case, 2^-56.3 relative from the boundary:
//   x      0x1.81d5acp-13 (0x3940ead6)
//   result 0x1.b35e28p-13 (0x3959af14)
//   next   0x1.b35e26p-13 (0x3959af13)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/dd_horner.h"
#include "../common/odd_quick.h"

#include "constants.h"
#include "quick_constants.h"

// erf(ERF_MAX) rounds to 1, so that clamping the argument changes no result.
#define ERF_MAX 0x1.f8p+1f
// Arguments below it have subnormal results.
#define ERF_SUBNORMAL 0x1.c5bf8ap-127
#define ERF_MARGIN (UINT64_C(1) << 11)

UDF_INLINE float udf_erff_fast(float x, int *hard) {
  float c = __builtin_fabsf(x);
  // Written so that NaN passes.
  c = c > ERF_MAX ? ERF_MAX : c;
  double a = c;
  double t = UDF_FMA(a, a, -ERF_CENTER);
  double t2 = t * t;
  double even = UDF_FMA(t2, ERF_P22, ERF_P20);
  double odd = UDF_FMA(t2, ERF_P21, ERF_P19);
  even = UDF_FMA(t2, even, ERF_P18);
  odd = UDF_FMA(t2, odd, ERF_P17);
  even = UDF_FMA(t2, even, ERF_P16);
  odd = UDF_FMA(t2, odd, ERF_P15);
  even = UDF_FMA(t2, even, ERF_P14);
  odd = UDF_FMA(t2, odd, ERF_P13);
  even = UDF_FMA(t2, even, ERF_P12);
  odd = UDF_FMA(t2, odd, ERF_P11);
  even = UDF_FMA(t2, even, ERF_P10);
  odd = UDF_FMA(t2, odd, ERF_P9);
  even = UDF_FMA(t2, even, ERF_P8);
  odd = UDF_FMA(t2, odd, ERF_P7);
  even = UDF_FMA(t2, even, ERF_P6);
  odd = UDF_FMA(t2, odd, ERF_P5);
  even = UDF_FMA(t2, even, ERF_P4);
  odd = UDF_FMA(t2, odd, ERF_P3);
  even = UDF_FMA(t2, even, ERF_P2);
  odd = UDF_FMA(t2, odd, ERF_P1);
  even = UDF_FMA(t2, even, ERF_P0);
  double p = UDF_FMA(t, odd, even);
  double y = a * p;
  *hard = udf_near_boundary_subnormal(y, a < ERF_SUBNORMAL, ERF_MARGIN);
  return udf_f32_add_sign((float)y, x);
}

#ifdef UDF_ERF_QUICK_STEPS
// The encoding of 2^-64.
#define ERF_QUICK_TINY UINT32_C(0x1f800000)

UDF_INLINE float udf_erff_quick(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  a = a > ERF_MAX ? ERF_MAX : a;
  float b = __builtin_fmaf(a, UDF_ERF_QUICK_SCALE, UDF_ERF_QUICK_ORIGIN);
  uint32_t i = udf_f32_bits(b) >> UDF_ERF_QUICK_SHIFT;
  udf_odd_entries e = {
      udf_erf_quick_center[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_value[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_slope[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_slope_low[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_p2[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_p3[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_p4[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_p5[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_p6[i % UDF_ERF_QUICK_STEPS],
      udf_erf_quick_width[i % UDF_ERF_QUICK_STEPS],
  };
  udf_odd_pair p = udf_odd_quick_series(a - e.center, e);
  int undecided;
  float y = udf_odd_quick_round(p, e.width, &undecided);
  // Zero, whose encoding is 0, is not tiny.
  *hard = undecided | (udf_f32_bits(a) - 1 < ERF_QUICK_TINY - 1);
  return udf_f32_add_sign(y, x);
}
#endif

static UDF_COLD float udf_erff_accurate(float x) {
  if (x != x)
    return x + x;
  if (__builtin_fabsf(x) >= ERF_MAX)
    return __builtin_copysignf(1, x);
  if (x == 0)
    return x;
  double d = x;
  // d * d is exact.
  udf_dd t = udf_two_sum(d * d, -ERF_CENTER);
  udf_dd p = udf_dd_horner(t, udf_erf_dd_low, UDF_COUNT(udf_erf_dd_low),
                           udf_erf_dd_high, UDF_COUNT(udf_erf_dd_high));
  return udf_dd_round(udf_dd_mul_d(p, d));
}
