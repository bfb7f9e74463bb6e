//===- atanf.c - Correctly rounded float32 atan ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: t = |x| up to 1, else t = -1/|x| and atan|x| = pi/2 + atan(t);
// atan(t) = t P(t^2), P of fourteen terms. One polynomial on [-1, 1] costs less
// than a second reduction with its selects.
//
// Error of the fast path: below 2^-39.2 relative. P contributes 2^-39.28
// (certified, see constants.h); beyond 1 the polynomial part is at most pi/4
// and the result at least that. Quotient and evaluation stay below 2^-49, with
// or without FMA. The rounding test's margin of 2^14 units in the last place of
// the double covers 2^-39.
//
// Accurate path: 51320 inputs of 4278190080 (1 in 83363), and all of the
// 16777216 special ones (infinities and NaN).
//
// Hardest case: x = 0x1.1ad646p-4 (3d8d6b23), result 0x1.1a6386p-4 (3d8d31c3),
// next candidate 0x1.1a6384p-4 (3d8d31c2), 2^-55.1 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/atan_dd.h"
#include "../common/corem.h"

#include "constants.h"

#define ATAN_MARGIN (UINT64_C(1) << 14)

UDF_INLINE float udf_atanf_fast(float x, int *hard) {
  // t = |x|, or -1/|x| beyond 1, where atan|x| = pi/2 + atan(-1/|x|).
  float a = __builtin_fabsf(x);
  int inverse = a > 1.0f;
  double n = inverse ? -1.0f : a;
  double d = inverse ? a : 1.0f;
  double t = n / d;

  const double *p = udf_atan_poly;
  double s = t * t;
  double s2 = s * s;
  double q = UDF_FMA(p[13], s, p[12]);
  q = UDF_FMA(q, s2, UDF_FMA(p[11], s, p[10]));
  q = UDF_FMA(q, s2, UDF_FMA(p[9], s, p[8]));
  q = UDF_FMA(q, s2, UDF_FMA(p[7], s, p[6]));
  q = UDF_FMA(q, s2, UDF_FMA(p[5], s, p[4]));
  q = UDF_FMA(q, s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  double y = UDF_FMA(t, q, t < 0 ? UDF_ATAN_HALF_PI : 0.0);

  *hard = !(a < __builtin_inff()) | udf_near_boundary(y, ATAN_MARGIN);
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_atanf_accurate(float x) {
  if (x != x)
    return __builtin_nanf("");
  if (x == 0)
    return x;
  float a = __builtin_fabsf(x);
  udf_dd y = a == __builtin_inff()
                 ? udf_dd_half_pi
                 : udf_atan_dd((udf_dd){a, 0}, (udf_dd){1, 0});
  return x < 0 ? -udf_dd_round(y) : udf_dd_round(y);
}
