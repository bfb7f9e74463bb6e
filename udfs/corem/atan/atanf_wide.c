//===- atanf_wide.c - Quick path of atan at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See rows_wide.h: atan(v) for v = |x| up to 1, and pi/2 - atan(v) for v =
// 1/|x| beyond it, with 16 rows each. A fused multiply-add gives the remainder
// of the quotient, and with it d.
//
// The rounding test leaves 1,133,862 of 4,278,190,080 arguments to the fast
// path, most of them below 1: one in 120 from 1/32 to 1/8, one in 1,500 from 1
// on. Infinities and NaN make NaN of the remainder, which the test finds.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/rows_wide.h"

#include "wide_constants.h"

#ifdef __FMA__
UDF_INLINE float udf_atanf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int inverse = a > 1.0f;
  float v = inverse ? 1.0f / a : a;
  // 1/a = v + v rest, but for the square of rest.
  float rest = inverse ? __builtin_fmaf(-v, a, 1.0f) : 0.0f;
  float first = inverse ? UDF_ROWS_WIDE_MAGIC + 16 : UDF_ROWS_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(__builtin_fmaf(v, UDF_ATAN_WIDE_SCALE, first));
  float r = v - udf_atan_wide_center[i % 32];
  udf_rows_wide_row e = {
      udf_atan_wide_value[i % 32], udf_atan_wide_slope[i % 32],
      udf_atan_wide_p2[i % 32],    udf_atan_wide_p3[i % 32],
      udf_atan_wide_p4[i % 32],    udf_atan_wide_p5[i % 32],
      udf_atan_wide_width[i % 32],
  };
  float d = v * rest;
  float more = inverse ? __builtin_fmaf(e.slope, d, UDF_ATAN_WIDE_MORE) : 0.0f;
  return udf_f32_add_sign(udf_rows_wide(r, d, more, e, hard), x);
}
#endif
