//===- expf_eight.c - Quick path of exp at AVX2 ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See exp_eight.h. Of the arguments with normal results 50,089 are left to the
// fast path by the rounding test.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_eight.h"

#ifdef __FMA__
// exp(EXP_EIGHT_ZERO) rounds to 0.
#define EXP_EIGHT_ZERO -0x1.ap+6f
// The square of 87.29: results are normal and finite below it.
#define EXP_EIGHT_MAX_SQUARE 7620.0f

UDF_INLINE float udf_expf_eight(float x, int *hard) {
  udf_exp_eight_reduced e = udf_exp_eight_reduce(x, 0x1.8p23f);
  float s = __builtin_fmaf(e.n, -UDF_EXP_EIGHT_STEP_LO,
                           udf_exp_eight_raised[e.i % 8]);
  int undecided;
  float y = udf_exp_eight(e.i, e.r, s, &undecided);
  // NaN is hard.
  _Bool zero = x < EXP_EIGHT_ZERO;
  *hard = !zero & (undecided | !(x * x <= EXP_EIGHT_MAX_SQUARE));
  return zero ? 0 : y;
}
#endif
