//===- log1pf.c - Correctly rounded float32 log1p -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: 1 + x = 2^k m, with k taken from 1 + x rounded to float32, so that m
// is in [sqrt(1/2), sqrt(2)) up to 2^-23; r = m - 1 = 2^-k x + (2^-k - 1),
// which for k = 0 is x itself; s = r / (r + 2) and log1p(x) = k log(2) + s
// P(s^2), P of six terms.
//
// Error of the fast path: below 2^-44.9 relative. P contributes 2^-45.09
// (certified, see log_fast_constants.h). For k = 0 only roundings relative to
// the result follow (below 2^-50); for k != 0 the result is at least log(2)/2
// and r has an absolute error below 2^-51, with or without FMA. The rounding
// test's margin of 2^9 units in the last place of the double covers 2^-44.
//
// Quick path: see log_quick.h.
//
// Accurate path: 2913 inputs of 3187671040 (1 in 1094291), and all of the
// 1107296256 special ones (x <= -1, NaN, x >= 2^126).
//
// Hardest case: x = 0x1.800006p-21 (35400003), result 0x1.7ffffep-21
// (353fffff), next candidate 0x1.7ffffcp-21 (353ffffe), 2^-66.4 relative from
// the boundary between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_dd.h"
#include "../common/log_fast.h"
#include "../common/log_quick.h"

UDF_INLINE float udf_log1pf_fast(float x, int *hard) {
  // 1 + x rounded to float32 only chooses k.
  uint32_t u = udf_f32_bits(1.0f + x);
  uint32_t t = udf_log_offset(u);
  double k = udf_log_k(t);
  double scale = udf_log_scale(t);
  // With K = 0 the scale is 1 and r is x itself.
  double r = UDF_FMA(scale, (double)x, scale - 1.0);
  double y = udf_log_series(r, udf_log1p_poly, k, UDF_LOG_LN2);

  // x <= -1, NaN and 1 + x >= 2^126, where the scale would be subnormal, are
  // left to the accurate path.
  int special = u - UINT32_C(0x00800000) >= UINT32_C(0x7e000000);
  *hard = special | udf_near_boundary(y, UDF_LOG_MARGIN);
  // -0 came out as +0.
  return udf_f32_add_sign((float)y, x);
}

#ifdef __FMA__
// 1 + x = f + e exactly, and r = (m c - 1) + 2^-k c e, which for small x is x
// itself. The rounding error of that sum is not lost.
UDF_INLINE float udf_log1pf_quick(float x, int *hard) {
  float f = 1.0f + x;
  float larger = x > 1.0f ? x : 1.0f;
  float smaller = x > 1.0f ? 1.0f : x;
  float e = smaller - (f - larger);
  uint32_t u = udf_f32_bits(f);
  uint32_t t = udf_log_quick_offset(u);
  uint32_t j = udf_log_quick_interval(t);
  float k = udf_log_quick_k(t);
  float c = udf_log_quick_c(t);
  float first = udf_log_quick_r(u, t, c);
  float scale =
      udf_f32_from_bits(UINT32_C(0x3f800000) - (t & UINT32_C(0xff800000)));
  float second = e * (scale * c);
  float r = first + second;
  udf_log_pair g = udf_log_quick_series(r);
  // log(1 + r + d) = log(1 + r) + d (1 - r).
  float d = second - (r - first);
  g.lo += __builtin_fmaf(-d, r, d);
  float a = __builtin_fmaf(k, UDF_LOG_QUICK_LN2_HI,
                           udf_log_quick_high[j % UDF_LOG_QUICK_STEPS]);
  float low = __builtin_fmaf(k, UDF_LOG_QUICK_LN2_LO,
                             udf_log_quick_low[j % UDF_LOG_QUICK_STEPS]);
  int undecided;
  float y = udf_log_quick_sum(a, g, low, &undecided);
  // As in the fast path.
  int special = u - UINT32_C(0x00800000) >= UINT32_C(0x7e000000);
  *hard = special | undecided;
  return udf_f32_add_sign(y, x);
}
#endif

static UDF_COLD float udf_log1pf_accurate(float x) {
  if (!(x > -1.0f))
    return x == -1.0f ? -__builtin_inff() : __builtin_nanf("");
  if (x == 0 || x == __builtin_inff())
    return x;
  return udf_dd_round(udf_log1p_dd((udf_dd){x, 0}));
}
