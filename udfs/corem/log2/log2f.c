//===- log2f.c - Correctly rounded float32 log2 ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: x = 2^k m with m in [sqrt(1/2), sqrt(2)); s = (m - 1) / (m + 1),
// |s| <= 0.1717, and log2(x) = k + s P(s^2), P of six terms. m - 1 and m + 1
// are exact in double. Powers of two give s = 0 and an exact k.
//
// Error of the fast path: below 2^-44.9 relative. P contributes 2^-45.09
// (certified, see constants.h); quotient, Horner steps and the final sum below
// 2^-49, with or without FMA. For k != 0 the polynomial part is not larger than
// the result, so that its relative error does not grow. The rounding test's
// margin of 2^9 units in the last place of the double covers 2^-44.
//
// Accurate path: 4545 inputs of 2130706432 (1 in 468802), and all of the
// 2164260864 special ones (zero, subnormal, negative, infinite and NaN inputs).
//
// Hardest case: x = 0x1.40f572p-2 (3ea07ab9), result -0x1.ac7b44p+0 (bfd63da2),
// next candidate -0x1.ac7b42p+0 (bfd63da1), 2^-51.3 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_dd.h"

#include "constants.h"

#define LOG2_MARGIN (UINT64_C(1) << 9)

UDF_INLINE float udf_log2f_fast(float x, int *hard) {
  uint32_t u = udf_f32_bits(x);
  uint32_t t = u - UDF_LOG2_SQRT_HALF;
  double k = (double)((int32_t)t >> 23);
  float m = udf_f32_from_bits(u - (t & UINT32_C(0xff800000)));
  double n = m - 1.0f; // exact
  double s = n / (n + 2.0);

  const double *p = udf_log2_poly;
  double w = s * s;
  double q = UDF_FMA(p[5], w, p[4]);
  q = UDF_FMA(q, w, p[3]);
  q = UDF_FMA(q, w, p[2]);
  q = UDF_FMA(q, w, p[1]);
  q = UDF_FMA(q, w, p[0]);
  double y = UDF_FMA(s, q, k);

  // Zero, subnormal, negative, infinite and NaN inputs are left to the
  // accurate path.
  int special = u - UINT32_C(0x00800000) >= UINT32_C(0x7f000000);
  *hard = special | udf_near_boundary(y, LOG2_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_log2f_accurate(float x) {
  uint32_t u = udf_f32_bits(x);
  if (u - 1 >= UINT32_C(0x7f800000) - 1) {
    if ((u << 1) == 0)
      return -__builtin_inff();
    if (u == UINT32_C(0x7f800000))
      return x;
    return __builtin_nanf("");
  }
  double k;
  udf_dd rest = udf_log_dd_split((udf_dd){udf_positive_value(x), 0}, &k);
  if (rest.hi == 0)
    return (float)k;
  return udf_dd_round(udf_dd_add_d(udf_dd_mul(rest, udf_dd_log2e), k));
}
