//===- powf_wide.c - Quick path of pow at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_wide.h"
#include "../common/log_wide.h"

#ifdef __FMA__
#ifndef W_LOG
#define W_LOG 0x1p-22f
#define W_EXP 0x1p-21f
#define W_ALL 0x1p-38f
#endif
#define POW_WIDE_D2 0x1.ebfbep-3f
#define POW_WIDE_MAX 108.0f
#define POW_WIDE_MAGIC (UDF_EXP_WIDE_MAGIC / UDF_EXP_WIDE_STEPS)

UDF_INLINE float udf_powf_wide(float x, float y, int *hard) {
  udf_log_wide_reduced e = udf_log_wide_reduce(x);
  float base = __builtin_fmaf(e.k, 0x1p-23f, udf_log2_quick_high[e.i]);
  float first = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base);
  float more = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base - first) +
               udf_log2_quick_low[e.i];
  float q = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C5, UDF_LOG2_WIDE_C4);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C3);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C2);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C1_LO);
  more = __builtin_fmaf(e.r, q, more);
  // log2(x) = log + log_low.
  float log = first + more;
  float log_low = (first - log) + more;
  float t = y * log;
  float t_low = __builtin_fmaf(y, log_low, __builtin_fmaf(y, log, -t));

  float nm = t + POW_WIDE_MAGIC;
  float d = t - (nm - POW_WIDE_MAGIC);
  uint32_t i = udf_f32_bits(nm);
  float power = udf_exp_wide_power_of(i, 0);
  float p = __builtin_fmaf(d, UDF_EXP_WIDE_D4, UDF_EXP_WIDE_D3);
  p = __builtin_fmaf(d, p, POW_WIDE_D2);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest_d[i % UDF_EXP_WIDE_STEPS]);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest[i % UDF_EXP_WIDE_STEPS]);
  float slope = power * UDF_EXP_WIDE_LN2;
  float high = __builtin_fmaf(slope, d, power);
  float low = __builtin_fmaf(power, p, __builtin_fmaf(slope, d, power - high));
  low = __builtin_fmaf(high, t_low * UDF_EXP_WIDE_LN2, low);

  float size = __builtin_fabsf(y);
  float width = __builtin_fmaf(d * d, W_EXP / W_LOG, W_ALL / W_LOG);
  width = __builtin_fmaf(e.r * e.r, size, width);
  float unit = power * W_LOG;
  float upper = high + __builtin_fmaf(width, unit, low);
  float lower = high + __builtin_fmaf(-width, unit, low);
  uint32_t outside = udf_f32_bits(x) - UINT32_C(0x00800000);
  *hard = !((upper == lower) & (__builtin_fabsf(t) < POW_WIDE_MAX) &
            (outside < UINT32_C(0x7f000000)));
  return upper;
}
#endif
