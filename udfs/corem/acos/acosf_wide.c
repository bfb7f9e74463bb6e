//===- acosf_wide.c - Quick path of acos at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See rows_wide.h: acos(v) for v = x up to 1/2 in magnitude, with 15 rows, and
// 2 asin(v) or pi less that for v = sqrt((1 - |x|) / 2) beyond it, with eight
// rows each. Rows are twice as long as those of asin and have a degree more. A
// table holds what the value of a row lacks, as pi and pi/2 are no floats.
//
// The rounding test leaves 78,551 of the 2,130,706,434 arguments up to 1 to the
// fast path, which also has those beyond 1 and NaN.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/root_wide.h"
#include "../common/rows_wide.h"

#include "wide_constants.h"

#ifdef __FMA__
UDF_INLINE float udf_acosf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > 0.5f;
  float s = __builtin_fmaf(a, -0.5f, 0.5f);
  float v = upper ? __builtin_sqrtf(s) : x;
  // Zero for the middle branch.
  float rest = upper ? __builtin_fmaf(-v, v, s) : 0.0f;
  float d = rest * udf_root_wide_half_inverse(v);
  // The rows beyond 1/2 begin at 8, those beyond -1/2 at 16.
  float side = UDF_ROWS_WIDE_MAGIC + 12 - __builtin_copysignf(4.0f, x);
  float first = upper ? side : UDF_ROWS_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(__builtin_fmaf(v, UDF_ACOS_WIDE_SCALE, first));
  float r = v - udf_acos_wide_center[i % 32];
  udf_rows_wide_row e = {
      udf_acos_wide_value[i % 32],
      udf_acos_wide_slope[i % 32],
      udf_acos_wide_p2[i % 32],
      udf_acos_wide_p3[i % 32],
      udf_acos_wide_p4[i % 32],
      __builtin_fmaf(r, udf_acos_wide_p6[i % 32], udf_acos_wide_p5[i % 32]),
      udf_acos_wide_width[i % 32],
  };
  float more = __builtin_fmaf(e.slope, d, udf_acos_wide_low[i % 32]);
  // Beyond 1 and for NaN the root is NaN, which the test finds.
  return udf_rows_wide(r, d, more, e, hard);
}
#endif
