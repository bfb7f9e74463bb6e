//===- siluf.c - Correctly rounded float32 silu ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// silu(x) = x / (1 + exp(-x)) for real x; -0 at -infinity, its limit.
//
// Method. x D / (D + N) with exp(-x) = N / D (composite.h), in double.
//
// Error of the fast path, relative: exp(-x) 2^-45.4, product, sum and division
// less than 2^-51: 2^-45.3 in all, at most 2^7.7 units in the last place of the
// double. The rounding test sends everything within SILU_MARGIN = 2^9 units of
// a boundary to the accurate path; subnormal results are tested at their own
// spacing.
//
// Accurate path. x times the logistic function in double-double, relative
// error below 2^-74; near zero x/2 + x^2/4, because x/2 is a tie for odd
// subnormal x.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "../common/composite.h"

// silu(SILU_MIN) > -2^-150 rounds to -0.
#define SILU_MIN -0x1.b8p+6f
// 1 + exp(-SILU_ALL) is 1 in double: silu(x) is x there.
#define SILU_ALL 0x1.9p+5
#define SILU_MARGIN (UINT64_C(1) << 9)

UDF_INLINE float udf_siluf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  double c = x < SILU_MIN ? SILU_MIN : x;
  double d = c > SILU_ALL ? SILU_ALL : c;
  udf_quotient e = udf_exp_quotient(-d);
  double y = c * (e.den / (e.den + e.num));
  *hard = udf_near_any_boundary(y, SILU_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_siluf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x <= SILU_MIN)
    return -0.0f;
  double d = x;
  if (d >= SILU_ALL || d == 0)
    return x;
  if (__builtin_fabs(d) < 0x1p-40)
    return udf_half_near_zero(d, 0.25);
  return udf_dd_round(udf_dd_mul_d(udf_logistic_dd((udf_dd){-d, 0}), d));
}
