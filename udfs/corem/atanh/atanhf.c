//===- atanhf.c - Correctly rounded float32 atanh -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: with a = |x|, (1 + a) / (1 - a) = 2^k (1 + s) / (1 - s), k the
// rounded difference of the float32 encodings of 1 + a and 1 - a; s = ((1 + a)
// - 2^k (1 - a)) / ((1 + a) + 2^k (1 - a)), |s| <= 0.2004, and atanh(a) = k
// log(2)/2 + s P(s^2), P of six terms. For k = 0, s is a.
//
// Error of the fast path: below 2^-41.8 relative. P contributes 2^-42.36
// (certified, see constants.h); for k != 0 the result is at least 0.143 and the
// polynomial part at most 0.204, which costs half a bit. Everything else stays
// below 2^-49, with or without FMA. The rounding test's margin of 2^12 units in
// the last place of the double covers 2^-41.
//
// Accurate path: 3002 inputs of 2130706432 (1 in 709762), and all of the
// 2164260864 special ones (|x| >= 1 and NaN).
//
// Hardest case: x = 0x1.e3cf42p-11 (3a71e7a1), result 0x1.e3cf4cp-11
// (3a71e7a6), next candidate 0x1.e3cf4ap-11 (3a71e7a5), 2^-52.9 relative from
// the boundary between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_dd.h"

#include "constants.h"

#define ATANH_MARGIN (UINT64_C(1) << 12)

UDF_INLINE float udf_atanhf_fast(float x, int *hard) {
  // (1 + a) / (1 - a) = 2^k (1 + s) / (1 - s): atanh(a) = k log(2)/2 +
  // atanh(s).
  float a = __builtin_fabsf(x);
  uint32_t t = udf_f32_bits(1.0f + a) - udf_f32_bits(1.0f - a);
  uint32_t ki = (t + UINT32_C(0x00400000)) & UINT32_C(0xff800000);
  double power = udf_f32_from_bits(UINT32_C(0x3f800000) + ki);
  double k = (double)(int32_t)(ki >> 23);
  double d = a;
  // For k = 0 these are 2 a and 2: s is a itself.
  double plus = 1.0 + power, minus = 1.0 - power;
  double s = UDF_FMA(d, plus, minus) / UDF_FMA(d, minus, plus);

  const double *p = udf_atanh_poly;
  double w = s * s;
  double w2 = w * w;
  double q = UDF_FMA(UDF_FMA(p[5], w, p[4]), w2, UDF_FMA(p[3], w, p[2]));
  q = UDF_FMA(q, w2, UDF_FMA(p[1], w, p[0]));
  double y = UDF_FMA(k, UDF_ATANH_HALF_LN2, s * q);

  *hard = !(a < 1.0f) | udf_near_boundary(y, ATANH_MARGIN);
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_atanhf_accurate(float x) {
  float a = __builtin_fabsf(x);
  if (!(a < 1))
    return a == 1 ? __builtin_copysignf(__builtin_inff(), x)
                  : __builtin_nanf("");
  if (x == 0)
    return x;
  udf_dd y = {a, 0};
  if (a < 0.125f) {
    y = udf_atanh_dd(y);
  } else {
    y = udf_log_dd(udf_dd_div(udf_two_sum(1, a), udf_two_sum(1, -(double)a)));
    y = (udf_dd){0.5 * y.hi, 0.5 * y.lo};
  }
  return x < 0 ? -udf_dd_round(y) : udf_dd_round(y);
}
