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
// Quick path: see log_quick.h.
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
#include "../common/log_fast.h"
#include "../common/log_quick.h"

#include "constants.h"

UDF_INLINE float udf_log2f_fast(float x, int *hard) {
  uint32_t u = udf_f32_bits(x);
  uint32_t t = udf_log_offset(u);
  double k = udf_log_k(t);
  double y = udf_log_series(udf_log_r(u, t), udf_log2_poly, k, 1.0);
  *hard = udf_log_special(u) | udf_near_boundary(y, UDF_LOG_MARGIN);
  return (float)y;
}

#ifdef __FMA__
UDF_INLINE float udf_log2f_quick(float x, int *hard) {
  uint32_t u = udf_f32_bits(x);
  uint32_t t = udf_log_quick_offset(u);
  uint32_t j = udf_log_quick_interval(t);
  float k = udf_log_quick_k(t);
  udf_log_pair g =
      udf_log_quick_series(udf_log_quick_r(u, t, udf_log_quick_c(t)));
  g = udf_log_quick_scale(g, UDF_LOG_QUICK_LOG2E_HI, UDF_LOG_QUICK_LOG2E_LO);
  float a = k + udf_log2_quick_high[j % UDF_LOG_QUICK_STEPS];
  float low = udf_log2_quick_low[j % UDF_LOG_QUICK_STEPS];
  int undecided;
  float y = udf_log_quick_sum(a, g, low, &undecided);
  *hard = udf_log_special(u) | undecided;
  return y;
}
#endif

static UDF_COLD float udf_log2f_accurate(float x) {
  float y;
  if (udf_log_at_limit(x, &y))
    return y;
  double k;
  udf_dd rest = udf_log_dd_split((udf_dd){udf_positive_value(x), 0}, &k);
  if (rest.hi == 0)
    return (float)k;
  return udf_dd_round(udf_dd_add_d(udf_dd_mul(rest, udf_dd_log2e), k));
}
