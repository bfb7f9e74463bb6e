//===- gelu_tanhf.c - Correctly rounded float32 gelu, form with tanh ------===//
// SPDX-License-Identifier: Apache-2.0
//
// gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) for real x, with
// the real number sqrt(2/pi) and the rational number 44715/1000000; -0 at
// -infinity, its limit.
//
// Method. It is x / (1 + exp(d)) with d = x (A + B x^2), A = -2 sqrt(2/pi) and
// B = 0.044715 A: x D / (D + N) with exp(d) = N / D (composite.h), in double.
//
// Error of the fast path, relative: d 2^-51.4, which is 2^-44.5 of exp(d) for
// |d| <= 118, exp 2^-45.4, the rest less than 2^-51: 2^-43.8 in all, at most
// 2^9.2 units in the last place of the double. The rounding test sends
// everything within GELU_TANH_MARGIN = 2^11 units of a boundary to the accurate
// path; subnormal results are tested at their own spacing.
//
// Accurate path. The same in double-double, relative error below 2^-74; near
// zero x/2 - A x^2/4, because x/2 is a tie for odd subnormal x.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "../common/composite.h"

#include "constants.h"

// gelu_tanh(GELU_TANH_MIN) > -2^-150 rounds to -0.
#define GELU_TANH_MIN -0x1.6p+3f
// 1 + exp(-GELU_TANH_ALL) is 1 in double: gelu_tanh(x) is x there.
#define GELU_TANH_ALL 50.0
#define GELU_TANH_MARGIN (UINT64_C(1) << 11)

UDF_INLINE float udf_gelu_tanhf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  double c = x < GELU_TANH_MIN ? GELU_TANH_MIN : x;
  double d = c * UDF_FMA(c * c, GELU_TANH_B, GELU_TANH_A);
  d = d < -GELU_TANH_ALL ? -GELU_TANH_ALL : d;
  udf_quotient e = udf_exp_quotient(d);
  double y = c * (e.den / (e.den + e.num));
  *hard = udf_near_any_boundary(y, GELU_TANH_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_gelu_tanhf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x <= GELU_TANH_MIN)
    return -0.0f;
  if (x >= -GELU_TANH_MIN || x == 0)
    return x;
  double v = x;
  if (__builtin_fabs(v) < 0x1p-40)
    return udf_half_near_zero(v, GELU_TANH_A * -0.25);
  // v * v is exact.
  udf_dd inner = udf_dd_mul_d(udf_gelu_tanh_dd_b, v * v);
  udf_dd d = udf_dd_mul_d(udf_dd_add(udf_gelu_tanh_dd_a, inner), v);
  if (d.hi < -GELU_TANH_ALL)
    return x;
  return udf_dd_round(udf_dd_mul_d(udf_logistic_dd(d), v));
}
