//===- composite.h - What the composites share ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// exp(d) as a quotient of two positive doubles, for functions that divide once
// in the end. d = k ln(2) + r with |r| <= 0.3469, and with H = (r/2) coth(r/2)
//
//   exp(d) = 2^k (H + r/2) / (H - r/2),
//
// H being the polynomial of tanh (2^-49.5, which weighs 0.35 times in either
// sum). For |d| <= 160 the reduction adds less than 2^-45.6: |k| <= 231 times
// the error of the double nearest to ln(2), and without FMA the rounding of
// their product; the evaluation adds less than 2^-50. So num / den is exp(d)
// with a relative error below 2^-45.4.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_COMPOSITE_H
#define UDF_COMPOSITE_H

#include "common/corem.h"
#include "common/expm1_dd.h"

#include "tanh/constants.h"

// UDF_ROUND_MAGIC plus the exponent bias: see tanhf.c.
#define UDF_COMPOSITE_MAGIC (UDF_ROUND_MAGIC + 1023)

// num / den = exp(d); den - 0.5 and num / 2^k are in [0.8, 1.3].
typedef struct {
  double num, den;
} udf_quotient;

UDF_INLINE udf_quotient udf_exp_quotient(double d) {
  double kd = UDF_FMA(d, TANH_LOG2E, UDF_COMPOSITE_MAGIC);
  double k = kd - UDF_COMPOSITE_MAGIC;
  double r = UDF_FMA(k, -TANH_LN2, d);
  double z = r * r;
  double p34 = UDF_FMA(z, TANH_C4, TANH_C3);
  double p24 = UDF_FMA(z, p34, TANH_C2);
  double p14 = UDF_FMA(z, p24, TANH_C1);
  double h = UDF_FMA(z, p14, TANH_C0);
  double scale = udf_f64_from_bits(udf_f64_bits(kd) << 52);
  return (udf_quotient){scale * UDF_FMA(r, 0.5, h), UDF_FMA(r, -0.5, h)};
}

// The rounding test where a result of either sign may be subnormal in float32.
UDF_INLINE int udf_near_any_boundary(double y, uint64_t margin) {
  double a = __builtin_fabs(y);
  return udf_near_boundary_subnormal(a, a < 0x1p-126, margin);
}

// exp of a double-double, |x.hi| < 150 and |x.lo| < 2^-45: relative error below
// 2^-77.
UDF_INLINE udf_dd udf_exp_dd_of_dd(udf_dd x) {
  udf_dd rest = {1, x.lo + 0.5 * x.lo * x.lo};
  return udf_dd_mul(udf_exp_dd(x.hi), rest);
}

// 1 / (1 + exp(d)), relative error below 2^-75.
UDF_INLINE udf_dd udf_logistic_dd(udf_dd d) {
  return udf_dd_div((udf_dd){1, 0}, udf_dd_add_d(udf_exp_dd_of_dd(d), 1));
}

// x / 2 + c x^2, rounded once. Below 2^-40 this is what silu and both forms of
// gelu round to: the next term is smaller than the second by x^2, and x / 2 is
// a boundary or a float32.
UDF_INLINE float udf_half_near_zero(double x, double c) {
  return udf_dd_round((udf_dd){0.5 * x, c * (x * x)});
}

#endif // UDF_COMPOSITE_H
