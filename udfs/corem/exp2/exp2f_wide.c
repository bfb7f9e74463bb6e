//===- exp2f_wide.c - Quick path of exp2 at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_wide.h. Arguments with infinite or subnormal results are left to the
// fast path, and a few before them; and by the rounding test one in 3,000 of
// the others. n/32 is read from the low bits of x + 1.5 * 2^18, and
// d = x - n/32 is exact.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_wide.h"

#ifdef __FMA__
// The rounding test leaves both undecided.
#define EXP2_WIDE_MOST 0x1.ffeee6p+6f
#define EXP2_WIDE_LEAST -0x1.f7f25ap+6f
// The result is 0 below.
#define EXP2_WIDE_ZERO -0x1.2ep+7f

UDF_INLINE float udf_exp2f_wide(float x, int *hard) {
  // NaN is hard.
  float c = x < EXP2_WIDE_MOST ? x : EXP2_WIDE_MOST;
  c = c > EXP2_WIDE_LEAST ? c : EXP2_WIDE_LEAST;
  float nm = c + UDF_EXP_WIDE_MAGIC;
  float n = nm - UDF_EXP_WIDE_MAGIC;
  float d = c - n;
  uint32_t i = udf_f32_bits(nm) % UDF_EXP_WIDE_STEPS;
  float t = udf_exp_wide_power[i];
  float p = __builtin_fmaf(d, UDF_EXP_WIDE_D4, UDF_EXP_WIDE_D3);
  p = __builtin_fmaf(d, p, UDF_EXP_WIDE_D2);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest_d[i]);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest[i]);
  return udf_exp_wide(t, t * UDF_EXP_WIDE_LN2, d, p, n, x < EXP2_WIDE_ZERO,
                      hard);
}
#endif
