//===- sigmoidf.c - Correctly rounded float32 sigmoid ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// sigmoid(x) = 1 / (1 + exp(-x)) for real x; 0 and 1 at the infinities.
//
// Method. With exp(-x) = N / D (composite.h), sigmoid(x) = D / (D + N), in
// double: one division, no cancellation.
//
// Error of the fast path, relative: exp(-x) 2^-45.4, of which at most all
// reaches the result; the sum and the division less than 2^-52: 2^-45.3 in
// all, at most 2^7.7 units in the last place of the double. The rounding test
// sends everything within SIGMOID_MARGIN = 2^9 units of a boundary to the
// accurate path.
//
// Accurate path. The same in double-double, relative error below 2^-75; near
// zero 1/2 + x/4 - x^3/48, as x = -2^-24 and 2^-23 lie that near to a tie.
//
// Inputs that take the accurate path: 2,212 of 2^32 with FMA.
// Hardest case, 2^-74.6 from the boundary:
//   x      0x1p-23 (0x34000000)
//   result 0x1p-1 (0x3f000000)
//   next   0x1.000002p-1 (0x3f000001)
//
//===----------------------------------------------------------------------===//

#include "../common/composite.h"

// sigmoid(SIGMOID_MIN) < 2^-150 rounds to +0.
#define SIGMOID_MIN -0x1.ap+6f
// 1 + exp(-SIGMOID_ONE) is 1 in double.
#define SIGMOID_ONE 0x1.9p+5f
#define SIGMOID_MARGIN (UINT64_C(1) << 9)

UDF_INLINE float udf_sigmoidf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x < SIGMOID_MIN ? SIGMOID_MIN : x;
  c = c > SIGMOID_ONE ? SIGMOID_ONE : c;
  udf_quotient e = udf_exp_quotient(-(double)c);
  double y = e.den / (e.den + e.num);
  *hard = udf_near_any_boundary(y, SIGMOID_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_sigmoidf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x <= SIGMOID_MIN)
    return 0;
  if (x >= SIGMOID_ONE)
    return 1;
  double d = x;
  if (__builtin_fabs(d) < 0x1p-20) {
    udf_dd s = udf_two_sum(0.5, 0.25 * d);
    return udf_dd_round((udf_dd){s.hi, s.lo - d * d * d / 48});
  }
  return udf_dd_round(udf_logistic_dd((udf_dd){-d, 0}));
}
