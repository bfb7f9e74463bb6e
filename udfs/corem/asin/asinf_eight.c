//===- asinf_eight.c - Quick path of asin at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See asin_eight.h. The rounding test leaves 230,270 of the 2,130,706,434
// arguments up to 1 to the fast path, which also has those beyond 1 and NaN.
//
//===----------------------------------------------------------------------===//

#include "../common/asin_eight.h"
#include "../common/corem.h"

#ifdef __FMA__
UDF_INLINE float udf_asinf_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > UDF_ASIN_EIGHT_END;
  udf_asin_eight_root root = udf_asin_eight_root_of(a);
  float square = a * a;
  float s = upper ? 0.25f * root.square : square;
  float s_low = upper ? 0.0f : __builtin_fmaf(a, a, -square);
  float t = upper ? root.root : a;
  float t_low = upper ? root.root_low : 0.0f;
  float base = upper ? UDF_ASIN_EIGHT_HALF_PI : 0.0f;
  float base_low = upper ? UDF_ASIN_EIGHT_HALF_PI_LOW : 0.0f;
  // Beyond 1 and for NaN the root is NaN, which the test finds.
  float y = udf_asin_eight(t, t_low, s, s_low, base, base_low,
                           t * UDF_ASIN_EIGHT_MORE, hard);
  return udf_f32_add_sign(y, x);
}
#endif
