//===- expf_wide.c - Quick path of exp at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_wide.h. Arguments from EXP_WIDE_MAX in size on are left to the fast
// path, but for those with the result 0, and by the rounding test one in 3,000
// of the others.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_wide.h"

#ifdef __FMA__
// Wrong results begin at -78.8, and with subnormal numbers flushed at -65.
#define EXP_WIDE_MAX 55.0f
// The rounding test leaves it undecided, also with subnormal numbers flushed.
#define EXP_WIDE_HARD 0x1.212604p+0f
// The result is 0 below.
#define EXP_WIDE_ZERO -0x1.ap+6f

UDF_INLINE float udf_expf_wide(float x, int *hard) {
  // NaN is hard.
  float c = __builtin_fabsf(x) < EXP_WIDE_MAX ? x : EXP_WIDE_HARD;
  float nm = __builtin_fmaf(c, UDF_EXP_WIDE_INV_STEP, UDF_EXP_WIDE_MAGIC);
  float n = nm - UDF_EXP_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(nm);
  float r = __builtin_fmaf(n, -UDF_EXP_WIDE_STEP_HI, c);
  float s = __builtin_fmaf(n, -UDF_EXP_WIDE_STEP_LO,
                           udf_exp_wide_rest[i % UDF_EXP_WIDE_STEPS]);
  float t = udf_exp_wide_power_of(i, x < EXP_WIDE_ZERO);
  float p = __builtin_fmaf(r, UDF_EXP_WIDE_C4, UDF_EXP_WIDE_C3);
  p = __builtin_fmaf(r, p, UDF_EXP_WIDE_C2);
  p = __builtin_fmaf(r, p, s);
  p = __builtin_fmaf(r, p, s);
  return udf_exp_wide(t, t, r, p, hard);
}
#endif
