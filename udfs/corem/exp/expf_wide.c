//===- expf_wide.c - Quick path of exp at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_wide.h. Arguments with infinite or subnormal results are left to the
// fast path, and a few before them; and by the rounding test one in 3,000 of
// the others.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_wide.h"

#ifdef __FMA__
// The rounding test leaves both undecided.
#define EXP_WIDE_MOST 0x1.62b62cp+6f
#define EXP_WIDE_LEAST -0x1.5d38d6p+6f
// The result is 0 below.
#define EXP_WIDE_ZERO -0x1.ap+6f

UDF_INLINE float udf_expf_wide(float x, int *hard) {
  // NaN is hard.
  float c = x < EXP_WIDE_MOST ? x : EXP_WIDE_MOST;
  c = c > EXP_WIDE_LEAST ? c : EXP_WIDE_LEAST;
  float nm = __builtin_fmaf(c, UDF_EXP_WIDE_LOG2E, UDF_EXP_WIDE_MAGIC);
  float n = nm - UDF_EXP_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(nm) % UDF_EXP_WIDE_STEPS;
  float r = __builtin_fmaf(n, -UDF_EXP_WIDE_LN2_HI, c);
  float s = __builtin_fmaf(n, -UDF_EXP_WIDE_LN2_LO, udf_exp_wide_rest[i]);
  float t = udf_exp_wide_power[i];
  float p = __builtin_fmaf(r, UDF_EXP_WIDE_C4, UDF_EXP_WIDE_C3);
  p = __builtin_fmaf(r, p, UDF_EXP_WIDE_C2);
  p = __builtin_fmaf(r, p, s);
  p = __builtin_fmaf(r, p, s);
  return udf_exp_wide(t, t, r, p, n, x < EXP_WIDE_ZERO, hard);
}
#endif
