//===- exp2f_wide.c - Quick path of exp2 at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_wide.h. Arguments from EXP2_WIDE_MAX on are left to the fast path,
// but for those with the result 0, and by the rounding test one in 3,000 of the
// others. n/32 is read from the low bits of x + 1.5 * 2^18 + 127 - 1/32, and
// d = x - n/32 is exact.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_wide.h"

#ifdef __FMA__
// With subnormal numbers flushed wrong results begin at -95.
#define EXP2_WIDE_MAX 80.0f
#define EXP2_WIDE_MAGIC (UDF_EXP_WIDE_MAGIC / UDF_EXP_WIDE_STEPS)
// The rounding test leaves it undecided, also with subnormal numbers flushed.
#define EXP2_WIDE_HARD 0x1.2096fep+0f
// The result is 0 below.
#define EXP2_WIDE_ZERO -0x1.2ep+7f

UDF_INLINE float udf_exp2f_wide(float x, int *hard) {
  // NaN is hard.
  float c = __builtin_fabsf(x) < EXP2_WIDE_MAX ? x : EXP2_WIDE_HARD;
  float nm = c + EXP2_WIDE_MAGIC;
  float d = c - (nm - EXP2_WIDE_MAGIC);
  uint32_t i = udf_f32_bits(nm);
  float t = udf_exp_wide_power_of(i, x < EXP2_WIDE_ZERO);
  float p = __builtin_fmaf(d, UDF_EXP_WIDE_D4, UDF_EXP_WIDE_D3);
  p = __builtin_fmaf(d, p, UDF_EXP_WIDE_D2);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest_d[i % UDF_EXP_WIDE_STEPS]);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest[i % UDF_EXP_WIDE_STEPS]);
  return udf_exp_wide(t, t * UDF_EXP_WIDE_LN2, d, p, hard);
}
#endif
