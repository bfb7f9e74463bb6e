//===- erff_eight.c - Quick path of erf at AVX2 ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See odd_eight.h. Arguments other than 0 below ERF_EIGHT_TINY, where errors of
// roundings may be subnormal, are left to the fast path, and by the rounding
// test 1,585,006 of the others.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/odd_eight.h"

#include "eight_constants.h"

#ifdef __FMA__
// Where the tables end: the result is 1 from 0x1.f5a888p+1 on.
#define ERF_EIGHT_MAX 0x1.f6p+1f
#define ERF_EIGHT_TINY 0x1p-64f

UDF_INLINE float udf_erff_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  a = a > ERF_EIGHT_MAX ? ERF_EIGHT_MAX : a;
  uint32_t i = udf_odd_eight_index(a, UDF_ERF_EIGHT_SLOPE, UDF_ERF_EIGHT_CURVE);
  udf_eight_entries e = {
      udf_erf_eight_center[i % 8], udf_erf_eight_value[i % 8],
      udf_erf_eight_slope[i % 8],  udf_erf_eight_slope_low[i % 8],
      udf_erf_eight_p2[i % 8],     udf_erf_eight_p3[i % 8],
      udf_erf_eight_p4[i % 8],     udf_erf_eight_p5[i % 8],
      udf_erf_eight_p6[i % 8],     udf_erf_eight_p7[i % 8],
      udf_erf_eight_p8[i % 8],
  };
  int undecided;
  float y = udf_odd_eight(a - e.center, e, UDF_ERF_EIGHT_WIDTH, &undecided);
  // The encoding before that of 0 is NaN, which is not tiny.
  float before = udf_f32_from_bits(udf_f32_bits(a) - 1);
  *hard = undecided | (before < ERF_EIGHT_TINY);
  return udf_f32_add_sign(y, x);
}
#endif
