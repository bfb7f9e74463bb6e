//===- acosf.c - Correctly rounded float32 acos ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: for a = |x| <= 1/2, acos(x) = pi/2 - x P(x^2), P of ten terms; above,
// with t = sqrt((1 - a) / 2), exact but for the root, acos(a) = 2 t P(t^2) and
// acos(-a) = pi - acos(a). The root is taken in both cases (of x^2 it is
// exactly |x|), which leaves nothing to branch on.
//
// Error of the fast path: below 2^-43.9 relative. P contributes 2^-44.01
// (certified, see constants.h); the polynomial part is never larger than the
// result. Everything else stays below 2^-49, with or without FMA. The rounding
// test's margin of 2^10 units in the last place of the double covers 2^-43.
//
// Accurate path: 1621 inputs of 4294967296 (1 in 2649579).
//
// Hardest case: x = 0x1.04c444p-12 (39826222), result 0x1.920f6ap+0 (3fc907b5),
// next candidate 0x1.920f68p+0 (3fc907b4), 2^-57.1 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/atan_dd.h"
#include "../common/corem.h"

#include "constants.h"

#define ACOS_MARGIN (UINT64_C(1) << 10)

UDF_INLINE float udf_acosf_fast(float x, int *hard) {
  // |x| <= 1/2: pi/2 - asin(x); above, acos(a) = 2 asin(sqrt((1 - a) / 2)) and
  // acos(-a) = pi - acos(a).
  float a = __builtin_fabsf(x);
  int upper = a > 0.5f;
  double z = 0.5f - 0.5f * a;
  double d = x;
  double s = upper ? z : d * d;
  // The root is exactly |x| in the lower range, where -x is wanted.
  uint32_t factor = udf_f32_bits(upper ? 2.0f : -1.0f) ^
                    (udf_f32_bits(x) & UINT32_C(0x80000000));
  double t = __builtin_sqrt(s) * udf_f32_from_bits(factor);
  double base = upper ? (x < 0 ? UDF_ACOS_PI : 0.0) : UDF_ACOS_HALF_PI;

  const double *p = udf_acos_poly;
  double s2 = s * s;
  double q = UDF_FMA(p[9], s, p[8]);
  q = UDF_FMA(q, s2, UDF_FMA(p[7], s, p[6]));
  q = UDF_FMA(q, s2, UDF_FMA(p[5], s, p[4]));
  q = UDF_FMA(q, s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  double y = UDF_FMA(t, q, base);

  // Beyond 1 and for NaN, y is NaN and needs no test.
  *hard = udf_near_boundary(y, ACOS_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_acosf_accurate(float x) {
  float a = __builtin_fabsf(x);
  if (!(a <= 1))
    return __builtin_nanf("");
  if (x == 1)
    return 0;
  // The sine of the result, sqrt((1 - a)(1 + a)).
  udf_dd c = udf_dd_mul(udf_two_sum(1, -(double)a), udf_two_sum(1, a));
  udf_dd y = {0, 0};
  if (a < 1)
    y = udf_atan_dd(udf_dd_sqrt(c), (udf_dd){a, 0});
  if (x < 0)
    y = udf_dd_sub((udf_dd){2 * udf_dd_half_pi.hi, 2 * udf_dd_half_pi.lo}, y);
  return udf_dd_round(y);
}
