//===- log10f.c - Correctly rounded float32 log10 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: x = 2^k m with m in [sqrt(1/2), sqrt(2)); s = (m - 1) / (m + 1),
// |s| <= 0.1717, and log10(x) = k log10(2) + s P(s^2), P of six terms. m - 1
// and m + 1 are exact in double.
//
// Error of the fast path: below 2^-44.9 relative. P contributes 2^-45.09
// (certified, see constants.h); quotient, Horner steps and the final sum below
// 2^-49, with or without FMA. For k != 0 the polynomial part is not larger than
// the result, so that its relative error does not grow. The rounding test's
// margin of 2^9 units in the last place of the double covers 2^-44.
//
// Quick path: see log_quick.h.
//
// Accurate path: 4040 inputs of 2130706432 (1 in 527403), and all of the
// 2164260864 special ones (zero, subnormal, negative, infinite and NaN inputs).
//
// Hardest case: x = 0x1.4d83bap+70 (62a6c1dd), result 0x1.52fdd8p+4 (41a97eec),
// next candidate 0x1.52fddap+4 (41a97eed), 2^-55.8 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_dd.h"
#include "../common/log_fast.h"
#include "../common/log_quick.h"

#include "constants.h"

UDF_INLINE float udf_log10f_fast(float x, int *hard) {
  uint32_t u = udf_f32_bits(x);
  uint32_t t = udf_log_offset(u);
  double k = udf_log_k_by_sum(t);
  double y =
      udf_log_series(udf_log_r(u, t), udf_log10_poly, k, UDF_LOG10_LOG10_2);
  *hard = udf_log_special(u) | udf_near_boundary(y, UDF_LOG_MARGIN);
  return (float)y;
}

#ifdef __FMA__
UDF_INLINE float udf_log10f_quick(float x, int *hard) {
  uint32_t u = udf_f32_bits(x);
  uint32_t t = udf_log_quick_offset(u);
  uint32_t j = udf_log_quick_interval(t);
  float k = udf_log_quick_k(t);
  udf_log_pair g =
      udf_log_quick_series(udf_log_quick_r(u, t, udf_log_quick_c(t)));
  g = udf_log_quick_scale(g, UDF_LOG_QUICK_LOG10E_HI, UDF_LOG_QUICK_LOG10E_LO);
  float a = __builtin_fmaf(k, UDF_LOG_QUICK_LOG10_2_HI,
                           udf_log10_quick_high[j % UDF_LOG_QUICK_STEPS]);
  float low = __builtin_fmaf(k, UDF_LOG_QUICK_LOG10_2_LO,
                             udf_log10_quick_low[j % UDF_LOG_QUICK_STEPS]);
  int undecided;
  float y = udf_log_quick_sum(a, g, low, &undecided);
  *hard = udf_log_special(u) | undecided;
  return y;
}
#endif

static UDF_COLD float udf_log10f_accurate(float x) {
  float y;
  if (udf_log_at_limit(x, &y))
    return y;
  if (x == 1.0f)
    return 0.0f;
  return udf_dd_round(udf_dd_mul(udf_log_dd((udf_dd){udf_positive_value(x), 0}),
                                 udf_dd_log10e));
}
