//===- sinf.c - Correctly rounded float32 sin -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: r = x - k pi, k the integer nearest to x/pi, |r| <= pi/2;
// sin(x) = (-1)^k r (1 + r^2 P(r^2)), P of six terms. With FMA pi is taken in
// two parts (x - k PI_HI is exact: both are multiples of 2^-51 and the
// difference is below 2); without, in three, the products of the first two
// exact for |k| < 2^25. Beyond |x| = 2^26 the accurate path reduces by integers
// (Payne and Hanek).
//
// Error of the fast path: below 2^-43.6 relative. P contributes 2^-43.66
// (certified, see constants.h). No float32 below 2^26 is nearer than 2^-26.8 to
// a multiple of pi other than zero (0x1.f9cbe2p+8; see search_closest.c), so
// that the reduction adds less than 2^-51, and the evaluation less than 2^-50,
// with or without FMA. The rounding test's margin of 2^10 units in the last
// place of the double covers 2^-43.
//
// Accurate path: 2392 inputs of 2566914048 (1 in 1073125), and all of the
// 1728053248 special ones (|x| >= 2^26, infinities and NaN).
//
// Hardest case: x = 0x1.487e0cp+103 (73243f06), result 0x1.287508p-2
// (3e943a84), next candidate 0x1.287506p-2 (3e943a83), 2^-54.2 relative from
// the boundary between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/trig_dd.h"

#include "constants.h"

// Beyond 2^26 (and for infinities and NaN) the reduction below is not enough.
#define SIN_LIMIT UINT32_C(0x4c800000)
#define SIN_MARGIN (UINT64_C(1) << 10)

UDF_INLINE float udf_sinf_fast(float x, int *hard) {
  double d = x;
  double kd = UDF_FMA(d, UDF_SIN_INV_PI, UDF_ROUND_MAGIC);
  double k = kd - UDF_ROUND_MAGIC;
#ifdef __FMA__
  double r = UDF_FMA(k, -UDF_SIN_PI_HI, d);
  r = UDF_FMA(k, -UDF_SIN_PI_LO, r);
#else
  double r = d - k * UDF_SIN_PI_A;
  r = r - k * UDF_SIN_PI_B;
  r = r - k * UDF_SIN_PI_C;
#endif
  const double *p = udf_sin_poly;
  double s = r * r;
  double s2 = s * s;
  double q = UDF_FMA(UDF_FMA(p[5], s, p[4]), s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  // The factor form r (1 + ...) keeps the sign of zero; an odd k flips it.
  double flipped = udf_f64_from_bits(udf_f64_bits(r) ^ udf_f64_bits(kd) << 63);
  double y = flipped * UDF_FMA(q, s, 1.0);

  int large = (udf_f32_bits(x) & UINT32_C(0x7fffffff)) >= SIN_LIMIT;
  *hard = large | udf_near_boundary(y, SIN_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_sinf_accurate(float x) {
  if (x - x != 0)
    return __builtin_nanf("");
  if (x == 0)
    return x;
  if (__builtin_fabsf(x) < 1)
    return udf_dd_round(udf_sin_dd((udf_dd){x, 0}));
  float y = udf_sin_of_angle(udf_angle_of(x));
  return x < 0 ? -y : y;
}
