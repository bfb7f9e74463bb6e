//===- exp2f_eight.c - Quick path of exp2 at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_eight.h. x = n/8 + d, n being read from the low bits of
// x + 1.5 * 2^20; d is exact. d ln(2) = r + s, with s below 2^-24 and known to
// 2^-48. Of the arguments with normal results 49,429 are left to the fast path
// by the rounding test.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_eight.h"

#ifdef __FMA__
// 2^EXP2_EIGHT_ZERO rounds to 0.
#define EXP2_EIGHT_ZERO -0x1.2ep+7f
#define EXP2_EIGHT_MAGIC 0x1.8p20f
// The square of 126: results are normal and finite up to it.
#define EXP2_EIGHT_MAX_SQUARE 15876.0f

UDF_INLINE float udf_exp2f_eight(float x, int *hard) {
  float nm = x + EXP2_EIGHT_MAGIC;
  float d = x - (nm - EXP2_EIGHT_MAGIC);
  uint32_t i = udf_f32_bits(nm);
  float r = d * UDF_EXP_EIGHT_LN2_HI;
  float s =
      __builtin_fmaf(d, UDF_EXP_EIGHT_LN2_HI, -r) +
      __builtin_fmaf(d, UDF_EXP_EIGHT_LN2_LO, udf_exp_eight_raised[i % 8]);
  int undecided;
  float y = udf_exp_eight(i, r, s, &undecided);
  // NaN is hard.
  _Bool zero = x < EXP2_EIGHT_ZERO;
  *hard = !zero & (undecided | !(x * x <= EXP2_EIGHT_MAX_SQUARE));
  return zero ? 0 : y;
}
#endif
