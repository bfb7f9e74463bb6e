//===- asinf_wide.c - Quick path of asin at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See rows_wide.h: asin(v) for v = |x| up to 1/2, and pi/2 - 2 asin(v) for v =
// sqrt((1 - |x|) / 2) beyond it, with 16 rows each. (1 - |x|) / 2 is exact.
//
// The rounding test leaves 128,038 of the 2,130,706,434 arguments up to 1 to
// the fast path, which also has those beyond 1 and NaN.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/root_wide.h"
#include "../common/rows_wide.h"

#include "wide_constants.h"

#ifdef __FMA__
UDF_INLINE float udf_asinf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > 0.5f;
  float s = __builtin_fmaf(a, -0.5f, 0.5f);
  float v = upper ? __builtin_sqrtf(s) : a;
  // Zero for the lower branch.
  float rest = upper ? __builtin_fmaf(-v, v, s) : 0.0f;
  float d = rest * udf_root_wide_half_inverse(v);
  float first = upper ? UDF_ROWS_WIDE_MAGIC + 16 : UDF_ROWS_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(__builtin_fmaf(v, UDF_ASIN_WIDE_SCALE, first));
  float r = v - udf_asin_wide_center[i % 32];
  udf_rows_wide_row e = {
      udf_asin_wide_value[i % 32], udf_asin_wide_slope[i % 32],
      udf_asin_wide_p2[i % 32],    udf_asin_wide_p3[i % 32],
      udf_asin_wide_p4[i % 32],    udf_asin_wide_p5[i % 32],
      udf_asin_wide_width[i % 32],
  };
  float more = upper ? __builtin_fmaf(e.slope, d, UDF_ASIN_WIDE_MORE) : 0.0f;
  // Beyond 1 and for NaN the root is NaN, which the test finds.
  return udf_f32_add_sign(udf_rows_wide(r, d, more, e, hard), x);
}
#endif
