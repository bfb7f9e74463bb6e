//===- sinf_wide.c - Quick path of sin at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in trig_wide.h. The width of the rounding test is 1.75 2^-38, but
// 2^-29 x^2 where n is 0: high is x there, and the error at most 2^-24 of
// x^3/6, in three roundings. So small arguments are hardly ever left to the
// fast path, and x is right where x^2 underflows.
//
//===----------------------------------------------------------------------===//

#include "../common/trig_wide.h"

#ifdef __FMA__

// Times x^2 near zero, times the other constant elsewhere.
#define SIN_WIDE_WIDTH 0x1p-29f
#define SIN_WIDE_ELSEWHERE 0x1.cp-9f

UDF_INLINE float udf_sinf_wide(float x, int *hard) {
  float t = __builtin_fmaf(x, UDF_TRIG_WIDE_INVERSE, UDF_TRIG_WIDE_MAGIC);
  uint32_t i = udf_f32_bits(t);
  udf_trig_wide_pair y = udf_trig_wide_series(x, t - UDF_TRIG_WIDE_MAGIC, i);
  float w = i == UDF_TRIG_WIDE_ZERO ? y.square : SIN_WIDE_ELSEWHERE;
  float upper = y.high + __builtin_fmaf(w, SIN_WIDE_WIDTH, y.low);
  // Of -0, the upper one is +0.
  float lower = y.high + __builtin_fmaf(w, -SIN_WIDE_WIDTH, y.low);
  *hard = udf_trig_wide_hard(upper, lower, i);
  return udf_trig_wide_sign(lower, i);
}

#endif
