//===- coshf_eight.c - Quick path of cosh at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_eight.h. Arguments beyond COSH_EIGHT_MAX are left to the fast path,
// and by the rounding test 33,906 of the others.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_eight.h"

#ifdef __FMA__
#define COSH_EIGHT_WIDTH 0x1.8p-38f
// Up to it exp(-x)/2 is normal.
#define COSH_EIGHT_MAX 86.0f

UDF_INLINE float udf_coshf_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  udf_exp_eight_pair e = udf_exp_eight_cosh(a);
  float upper = e.high + __builtin_fmaf(e.high, COSH_EIGHT_WIDTH, e.low);
  float lower = e.high + __builtin_fmaf(e.high, -COSH_EIGHT_WIDTH, e.low);
  *hard = (upper != lower) | !(a <= COSH_EIGHT_MAX);
  return upper;
}
#endif
