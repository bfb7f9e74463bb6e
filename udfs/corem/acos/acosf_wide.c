//===- acosf_wide.c - Quick path of acos at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See asin_wide.h: acos(x) = pi/2 - asin(x), and beyond UDF_ACOS_WIDE_END
// 2 asin(sqrt((1 - |x|) / 2)), or pi less that. The tables are acos's own: it
// can change the formula at 1/2, where the intervals are shorter, and its test
// has a width on either side, 1.375 2^-35 of the result. That is never below
// |t|, and covers the roundings of low parts where t vanishes. It leaves one
// argument in a thousand to the fast path, which also has those beyond 1 and
// NaN. A run of all arguments found no wrong result. With 2^-35 one was wrong
// among the positive ones.
//
//===----------------------------------------------------------------------===//

#include "../common/asin_wide.h"
#include "../common/corem.h"

#include "wide_constants.h"

#ifdef __FMA__
#define ACOS_WIDE_WIDTH 0x1.6p-35f

UDF_INLINE float udf_acosf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int upper = a > UDF_ACOS_WIDE_END;
  uint32_t sign = ~udf_f32_bits(x) & UINT32_C(0x80000000);
  udf_asin_wide_reduced reduced = udf_asin_wide_reduce(a, upper, sign);
  // -x, or twice the root with the sign of x.
  float t = upper ? -2.0f * reduced.root : reduced.root;
  t = udf_f32_from_bits(udf_f32_bits(t) ^ sign);
  float turn = upper ? UDF_ACOS_WIDE_HALF_PI : 0.0f;
  turn = udf_f32_from_bits(udf_f32_bits(turn) ^ sign);
  float base = UDF_ACOS_WIDE_HALF_PI + turn;
  uint32_t i = udf_asin_wide_index(reduced.s, UDF_ACOS_WIDE_SCALE);
  udf_asin_wide_entries e = {
      udf_acos_wide_center[i % 32], udf_acos_wide_value[i % 32],
      udf_acos_wide_p1[i % 32],     udf_acos_wide_p2[i % 32],
      udf_acos_wide_p3[i % 32],
  };
  udf_asin_wide_pair y =
      udf_asin_wide(reduced, t, base, UDF_ACOS_WIDE_PI_LOW, e, upper);
  float high = y.high + __builtin_fmaf(y.high, ACOS_WIDE_WIDTH, y.low);
  float other = y.high + __builtin_fmaf(y.high, -ACOS_WIDE_WIDTH, y.low);
  // Beyond 1 and for NaN the root is NaN, which the test finds.
  *hard = high != other;
  return high;
}
#endif
