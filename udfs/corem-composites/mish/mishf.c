//===- mishf.c - Correctly rounded float32 mish ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// mish(x) = x tanh(log(1 + exp(x))) for real x; -0 at -infinity, its limit.
//
// Method. tanh(log(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2). With e = exp(x) =
// N / D (composite.h) and T = N (N + 2 D), mish(x) = x T / (T + 2 D^2), in
// double: one division, no cancellation.
//
// Error of the fast path, relative: exp(x) 2^-45.4, which is at most that of
// the quotient (its derivative is below 1 in relative terms), the evaluation
// less than 2^-50: 2^-45.3 in all, at most 2^7.7 units in the last place of the
// double. The rounding test sends everything within MISH_MARGIN = 2^9 units of
// a boundary to the accurate path; subnormal results are tested at their own
// spacing.
//
// Accurate path. The same in double-double, relative error below 2^-73. Near
// zero mish(x) = 3/5 x + ..., which is no tie.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "../common/composite.h"

// mish(MISH_MIN) > -2^-150 rounds to -0.
#define MISH_MIN -0x1.b8p+6f
// From here on the quotient is 1 in double: mish(x) is x.
#define MISH_ALL 0x1.9p+5
#define MISH_MARGIN (UINT64_C(1) << 9)

UDF_INLINE float udf_mishf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  double c = x < MISH_MIN ? MISH_MIN : x;
  double d = c > MISH_ALL ? MISH_ALL : c;
  udf_quotient e = udf_exp_quotient(d);
  double t = e.num * (e.num + 2 * e.den);
  double y = c * (t / (t + 2 * (e.den * e.den)));
  *hard = udf_near_any_boundary(y, MISH_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_mishf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x <= MISH_MIN)
    return -0.0f;
  double d = x;
  if (d >= MISH_ALL || d == 0)
    return x;
  udf_dd e = udf_exp_dd(d);
  udf_dd t = udf_dd_mul(e, udf_dd_add_d(e, 2));
  udf_dd share = udf_dd_div(t, udf_dd_add_d(t, 2));
  return udf_dd_round(udf_dd_mul_d(share, d));
}
