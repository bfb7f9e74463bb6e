//===- sinhf_wide.c - Quick path of sinh at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See expm1_wide.h. Arguments beyond 87.3, where 2^(-n/32)/2 is no number, are
// left to the fast path, and by the rounding test 56,624 others.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_wide.h"

#ifdef __FMA__
#define SINH_WIDE_WIDTH 0x1p-21f
// 2^(n/32)/2 of it is a NaN, too.
#define SINH_WIDE_MAX 90.0f

UDF_INLINE float udf_sinhf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  a = a > SINH_WIDE_MAX ? SINH_WIDE_MAX : a;
  udf_expm1_wide_halves e = udf_expm1_wide_halve(a);
  float b = e.r + e.s;
  float b_low = (e.r - b) + e.s;
  float high = __builtin_fmaf(b, e.sum, e.difference);
  float rest = e.difference - high;
  float low = __builtin_fmaf(b, e.sum, rest) - e.lost;
  low = __builtin_fmaf(b, e.lost, low);
  float square = b * b;
  float odd =
      __builtin_fmaf(square, -UDF_EXPM1_WIDE_SINH_C5, -UDF_EXPM1_WIDE_SINH_C3);
  float even = __builtin_fmaf(square, UDF_EXPM1_WIDE_COSH_C4, 0.5f);
  float q = __builtin_fmaf(rest, odd, even * e.difference);
  low = __builtin_fmaf(square, q, low);
  low = __builtin_fmaf(b_low, e.sum, low);
  low = __builtin_fmaf(udf_expm1_wide_sinh_gain[e.j], high, low);
  float y = udf_expm1_wide_round((udf_expm1_wide_pair){high, low},
                                 SINH_WIDE_WIDTH, hard);
  return udf_f32_add_sign(y, x);
}
#endif
