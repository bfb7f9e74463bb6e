//===- acosf_eight.c - Quick path of acos at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See asin_eight.h: acos(x) = pi/2 - asin(x), and beyond UDF_ASIN_EIGHT_END
// 2 asin(sqrt((1 - |x|) / 2)), or pi less that. The rounding test leaves 83,950
// of the 2,130,706,434 arguments up to 1 to the fast path, which also has those
// beyond 1 and NaN.
//
//===----------------------------------------------------------------------===//

#include "../common/asin_eight.h"
#include "../common/corem.h"

#ifdef __FMA__
UDF_INLINE float udf_acosf_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > UDF_ASIN_EIGHT_END;
  udf_asin_eight_root root = udf_asin_eight_root_of(a);
  float square = a * a;
  float s = upper ? 0.25f * root.square : square;
  float s_low = upper ? 0.0f : __builtin_fmaf(a, a, -square);
  // t is -x or the root with the sign of x.
  uint32_t sign = ~udf_f32_bits(x) & UINT32_C(0x80000000);
  float t = udf_f32_from_bits(udf_f32_bits(upper ? root.root : a) ^ sign);
  float t_low =
      upper ? udf_f32_from_bits(udf_f32_bits(root.root_low) ^ sign) : 0.0f;
  float turn = x < 0 ? UDF_ASIN_EIGHT_PI : 0.0f;
  float turn_low = x < 0 ? UDF_ASIN_EIGHT_PI_LOW : 0.0f;
  float base = upper ? turn : UDF_ASIN_EIGHT_HALF_PI;
  float base_low = upper ? turn_low : UDF_ASIN_EIGHT_HALF_PI_LOW;
  // Beyond 1 and for NaN the root is NaN, which the test finds.
  return udf_asin_eight(t, t_low, s, s_low, base, base_low,
                        udf_f32_add_sign(UDF_ASIN_EIGHT_MORE, t), hard);
}
#endif
