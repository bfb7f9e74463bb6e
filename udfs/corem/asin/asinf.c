//===- asinf.c - Correctly rounded float32 asin ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: for a = |x| <= 1/2, asin(a) = a P(a^2), P of ten terms; above,
// asin(a) = pi/2 - 2 t P(t^2) with t = sqrt((1 - a) / 2), exact but for the
// root. The root is taken in both cases (of a^2 it is exactly a), which leaves
// nothing to branch on.
//
// Error of the fast path: below 2^-42.9 relative. P contributes 2^-44.01
// (certified, see constants.h), doubled just above 1/2, where pi/3 is taken off
// pi/2 and leaves pi/6. Everything else stays below 2^-49, with or without FMA.
// The rounding test's margin of 2^11 units in the last place of the double
// covers 2^-42.
//
// Accurate path: 1598 inputs of 4294967296 (1 in 2687714).
//
// Hardest case: x = 0x1.107434p-1 (3f083a1a), result 0x1.1f4b64p-1 (3f0fa5b2),
// next candidate 0x1.1f4b66p-1 (3f0fa5b3), 2^-53.6 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/atan_dd.h"
#include "../common/corem.h"

#include "constants.h"

#define ASIN_MARGIN (UINT64_C(1) << 11)

UDF_INLINE float udf_asinf_fast(float x, int *hard) {
  // Above 1/2: asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)).
  float a = __builtin_fabsf(x);
  int upper = a > 0.5f;
  double z = 0.5f - 0.5f * a;
  double d = a;
  double s = upper ? z : d * d;
  // The root is exactly |x| in the lower range.
  double t = __builtin_sqrt(s) * (upper ? -2.0f : 1.0f);

  const double *p = udf_asin_poly;
  double s2 = s * s;
  double q = UDF_FMA(p[9], s, p[8]);
  q = UDF_FMA(q, s2, UDF_FMA(p[7], s, p[6]));
  q = UDF_FMA(q, s2, UDF_FMA(p[5], s, p[4]));
  q = UDF_FMA(q, s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  double y = UDF_FMA(t, q, upper ? UDF_ASIN_HALF_PI : 0.0);

  // Beyond 1 and for NaN, y is NaN and needs no test.
  *hard = udf_near_boundary(y, ASIN_MARGIN);
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_asinf_accurate(float x) {
  float a = __builtin_fabsf(x);
  if (!(a <= 1))
    return __builtin_nanf("");
  if (x == 0)
    return x;
  // The cosine of the result, sqrt((1 - a)(1 + a)).
  udf_dd y = udf_dd_half_pi;
  if (a < 1) {
    udf_dd c = udf_dd_mul(udf_two_sum(1, -(double)a), udf_two_sum(1, a));
    y = udf_atan_dd((udf_dd){a, 0}, udf_dd_sqrt(c));
  }
  return x < 0 ? -udf_dd_round(y) : udf_dd_round(y);
}
