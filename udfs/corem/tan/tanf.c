//===- tanf.c - Correctly rounded float32 tan -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: r = x - k pi/2, k the integer nearest to 2x/pi, |r| <= pi/4;
// tan(r) = r P(r^2) / Q(r^2) with P of three and Q of four terms, and for odd k
// the negative inverse; one division. pi/2 in two parts with FMA, in three
// without, as in sinf.c. Beyond |x| = 2^26 the accurate path reduces by
// integers (Payne and Hanek).
//
// Error of the fast path: below 2^-38.7 relative. P / Q contributes 2^-38.79
// (certified, see constants.h). No float32 below 2^26 is nearer than 2^-27.8 to
// a multiple of pi/2 other than zero (0x1.f9cbe2p+7; see search_closest.c), so
// that the reduction adds less than 2^-51, and the evaluation less than 2^-49,
// with or without FMA. The rounding test's margin of 2^15 units in the last
// place of the double covers 2^-38.
//
// Accurate path: 77328 inputs of 2566914048 (1 in 33195), and all of the
// 1728053248 special ones (|x| >= 2^26, infinities and NaN).
//
// Hardest case: x = 0x1.fa6748p+64 (5ffd33a4), result 0x1.a0d918p+0 (3fd06c8c),
// next candidate 0x1.a0d916p+0 (3fd06c8b), 2^-54.5 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/trig_dd.h"

#include "constants.h"

// Beyond 2^26 (and for infinities and NaN) the reduction below is not enough.
#define TAN_LIMIT UINT32_C(0x4c800000)
#define TAN_MARGIN (UINT64_C(1) << 15)

UDF_INLINE float udf_tanf_fast(float x, int *hard) {
  double d = x;
  double kd = UDF_FMA(d, UDF_TAN_TWO_OVER_PI, UDF_ROUND_MAGIC);
  double k = kd - UDF_ROUND_MAGIC;
#ifdef __FMA__
  double r = UDF_FMA(k, -UDF_TAN_HALF_PI_HI, d);
  r = UDF_FMA(k, -UDF_TAN_HALF_PI_LO, r);
#else
  double r = d - k * UDF_TAN_HALF_PI_A;
  r = r - k * UDF_TAN_HALF_PI_B;
  r = r - k * UDF_TAN_HALF_PI_C;
#endif
  const double *p = udf_tan_p, *q = udf_tan_q;
  double s = r * r;
  double n = r * UDF_FMA(UDF_FMA(p[2], s, p[1]), s, p[0]);
  double m = UDF_FMA(UDF_FMA(UDF_FMA(q[3], s, q[2]), s, q[1]), s, q[0]);
  // tan(r + pi/2) = -1 / tan(r).
  uint64_t odd = udf_f64_bits(kd) << 63;
  double top = udf_f64_from_bits(udf_f64_bits(odd ? m : n) ^ odd);
  double bottom = odd ? n : m;
  double y = top / bottom;

  int large = (udf_f32_bits(x) & UINT32_C(0x7fffffff)) >= TAN_LIMIT;
  *hard = large | udf_near_boundary(y, TAN_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_tanf_accurate(float x) {
  if (x - x != 0)
    return __builtin_nanf("");
  if (x == 0)
    return x;
  if (__builtin_fabsf(x) < 1)
    return udf_dd_round(
        udf_dd_div(udf_sin_dd((udf_dd){x, 0}),
                   udf_sin_dd(udf_dd_add_d(
                       (udf_dd){0.5 * udf_dd_pi.hi, 0.5 * udf_dd_pi.lo},
                       -(double)__builtin_fabsf(x)))));
  // tan(x) = sin(x) / sin(x + pi/2).
  udf_angle a = udf_angle_of(x), b = a;
  b.hi += UINT64_C(1) << 62;
  int odd_a, odd_b;
  a = udf_angle_fold(a, &odd_a);
  b = udf_angle_fold(b, &odd_b);
  double y = udf_sin_in_double(udf_angle_double(a)) /
             udf_sin_in_double(udf_angle_double(b));
  float rounded = (float)y;
  if (udf_near_boundary(y, 256))
    rounded = udf_dd_round(
        udf_dd_div(udf_sin_dd(udf_angle_dd(a)), udf_sin_dd(udf_angle_dd(b))));
  return (odd_a ^ odd_b ^ (x < 0)) ? -rounded : rounded;
}
