//===- asinf_wide.c - Quick path of asin at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See asin_wide.h. The tables are multiplied by 1 plus the margin, 1.5 2^-35,
// so that the sum is too large, in the direction of t, by twice the margin at
// most. UDF_ASIN_WIDE_END is so large that pi/2 less the high part is a float.
// The rounding test leaves one argument in a thousand to the fast path, which
// also has those beyond 1 and NaN. A run of all arguments found no wrong
// result. With a margin of 2^-35 38 positive ones were wrong.
//
//===----------------------------------------------------------------------===//

#include "../common/asin_wide.h"
#include "../common/corem.h"

#include "wide_constants.h"

#ifdef __FMA__
UDF_INLINE float udf_asinf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > UDF_ASIN_WIDE_END;
  udf_asin_wide_reduced reduced = udf_asin_wide_reduce(a, upper, 0);
  float t = upper ? -2.0f * reduced.root : reduced.root;
  float base = upper ? UDF_ASIN_WIDE_HALF_PI : 0.0f;
  uint32_t i = udf_asin_wide_index(reduced.s, UDF_ASIN_WIDE_SCALE);
  udf_asin_wide_entries e = {
      udf_asin_wide_center[i % 32], udf_asin_wide_value[i % 32],
      udf_asin_wide_p1[i % 32],     udf_asin_wide_p2[i % 32],
      udf_asin_wide_p3[i % 32],
  };
  udf_asin_wide_pair y =
      udf_asin_wide(reduced, t, base, UDF_ASIN_WIDE_PI_LOW, e, upper);
  float high = y.high + y.low;
  float other = y.high + __builtin_fmaf(t, -2.0f * UDF_ASIN_WIDE_MARGIN, y.low);
  // Beyond 1 and for NaN the root is NaN, which the test finds.
  *hard = high != other;
  return udf_f32_add_sign(high, x);
}
#endif
