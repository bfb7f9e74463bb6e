//===- cosf.c - Correctly rounded float32 cos -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: r = x - k pi with k an integer and a half, the one nearest to x/pi,
// |r| <= pi/2; cos(x) = -(-1)^(k - 1/2) r (1 + r^2 P(r^2)), P of six terms,
// that is sine shifted by pi/2, with no loss near the zeros. With FMA pi is
// taken in two parts (x - k PI_HI is exact); without, in three, the products of
// the first two exact for |2k| < 2^26. Beyond |x| = 2^26 the accurate path
// reduces by integers (Payne and Hanek).
//
// Error of the fast path: below 2^-43.6 relative. P contributes 2^-43.66
// (certified, see constants.h). No float32 below 2^26 is nearer than 2^-27.8 to
// an odd multiple of pi/2 (0x1.f9cbe2p+7; see search_closest.c), so that the
// reduction adds less than 2^-51, and the evaluation less than 2^-50, with or
// without FMA. The rounding test's margin of 2^10 units in the last place of
// the double covers 2^-43.
//
// Accurate path: 2454 inputs of 2566914048 (1 in 1046012), and all of the
// 1728053248 special ones (|x| >= 2^26, infinities and NaN).
//
// Hardest case: x = 0x1.2b9622p+67 (6115cb11), result 0x1.f0285ep-1 (3f78142f),
// next candidate 0x1.f0285cp-1 (3f78142e), 2^-55.9 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/trig_dd.h"

#include "constants.h"

// Beyond 2^26 (and for infinities and NaN) the reduction below is not enough.
#define COS_LIMIT UINT32_C(0x4c800000)
#define COS_MARGIN (UINT64_C(1) << 10)

UDF_INLINE float udf_cosf_fast(float x, int *hard) {
  double d = x;
  // cos(x) = (-1)^j sin(r) with j = round(x/pi - 1/2), r = (j + 1/2) pi - x
  // up to the sign: r is taken as x - (j + 1/2) pi, and sin is odd.
  double jd = UDF_FMA(d, UDF_COS_INV_PI, -0.5) + UDF_ROUND_MAGIC;
  double k = (jd - UDF_ROUND_MAGIC) + 0.5;
#ifdef __FMA__
  double r = UDF_FMA(k, -UDF_COS_PI_HI, d);
  r = UDF_FMA(k, -UDF_COS_PI_LO, r);
#else
  double r = d - k * UDF_COS_PI_A;
  r = r - k * UDF_COS_PI_B;
  r = r - k * UDF_COS_PI_C;
#endif
  const double *p = udf_cos_poly;
  double s = r * r;
  double s2 = s * s;
  double q = UDF_FMA(UDF_FMA(p[5], s, p[4]), s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  double flipped = udf_f64_from_bits(udf_f64_bits(r) ^ ~udf_f64_bits(jd) << 63);
  double y = flipped * UDF_FMA(q, s, 1.0);

  int large = (udf_f32_bits(x) & UINT32_C(0x7fffffff)) >= COS_LIMIT;
  *hard = large | udf_near_boundary(y, COS_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_cosf_accurate(float x) {
  if (x - x != 0)
    return __builtin_nanf("");
  if (__builtin_fabsf(x) < 1) {
    udf_dd half_pi = {0.5 * udf_dd_pi.hi, 0.5 * udf_dd_pi.lo};
    return udf_dd_round(
        udf_sin_dd(udf_dd_add_d(half_pi, -(double)__builtin_fabsf(x))));
  }
  // cos(x) = sin(|x| + pi/2).
  udf_angle a = udf_angle_of(x);
  a.hi += UINT64_C(1) << 62;
  return udf_sin_of_angle(a);
}
