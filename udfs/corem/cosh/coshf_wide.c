//===- coshf_wide.c - Quick path of cosh at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See expm1_wide.h. Arguments beyond 87.3, where 2^(-n/32)/2 is no number, are
// left to the fast path, and by the rounding test 48,690 others.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_wide.h"

#ifdef __FMA__
#define COSH_WIDE_WIDTH 0x1p-21f
// 2^(n/32)/2 of it is a NaN, too.
#define COSH_WIDE_MAX 90.0f

UDF_INLINE float udf_coshf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  a = a > COSH_WIDE_MAX ? COSH_WIDE_MAX : a;
  udf_expm1_wide_halves e = udf_expm1_wide_halve(a);
  float r = e.r;
  float high = __builtin_fmaf(r, e.difference, e.sum);
  float rest = e.sum - high;
  float low = __builtin_fmaf(r, e.difference, rest) + e.lost;
  low = __builtin_fmaf(-r, e.lost, low);
  float b = r + e.s;
  float square = b * b;
  float even = __builtin_fmaf(square, UDF_EXPM1_WIDE_COSH_C4, 0.5f);
  float q = __builtin_fmaf(rest, -UDF_EXPM1_WIDE_SINH_C3, even * e.sum);
  low = __builtin_fmaf(square, q, low);
  low = __builtin_fmaf(e.s, e.difference, low);
  low = __builtin_fmaf(udf_expm1_wide_gain[e.j], high, low);
  return udf_expm1_wide_round((udf_expm1_wide_pair){high, low}, COSH_WIDE_WIDTH,
                              hard);
}
#endif
