//===- expm1_dd.h - Accurate exp and expm1 of the exponential family ------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = k ln(2) + r with |r| <= 0.3469, r in double-double, and expm1(r) =
// r Q(r) with Q of degree 14, its first eight coefficients double-double.
// Total relative error of expm1(r): below 2^-78 (approximation 2^-81, leading
// terms of the double-double evaluation a few 2^-102, the double coefficients
// enter with r^8/9! < 2^-30 and their rounding with 2^-53 of that; r itself is
// known to 2^-88 absolute, and exactly when k = 0).
//
//===----------------------------------------------------------------------===//

#ifndef UDF_EXPM1_DD_H
#define UDF_EXPM1_DD_H

#include "corem.h"
#include "dd_horner.h"

#include "expm1_dd_constants.h"

// The multiple k of ln(2) nearest to x, |x| < 150.  Two roundings on purpose:
// k must not depend on the CPU level.
UDF_INLINE double udf_exp_dd_k(double x) {
  double t = x * UDF_EXPM1_DD_LOG2E;
  return (t + UDF_ROUND_MAGIC) - UDF_ROUND_MAGIC;
}

// x - k ln(2).  k * LN2_HI is exact (44 bits after the point, |k| < 2^8) and so
// is its difference with x, a float or a small multiple of one.
UDF_INLINE udf_dd udf_exp_dd_reduce(double x, double k) {
  return udf_two_sum(x - k * UDF_EXPM1_DD_LN2_HI, -(k * UDF_EXPM1_DD_LN2_MID));
}

// expm1(r) for |r| <= 0.3469.
UDF_INLINE udf_dd udf_expm1_dd_poly(udf_dd r) {
  udf_dd q = udf_dd_horner(r, udf_expm1_dd_low, UDF_COUNT(udf_expm1_dd_low),
                           udf_expm1_dd_high, UDF_COUNT(udf_expm1_dd_high));
  return udf_dd_mul(q, r);
}

// 2^k for an integer k in [-1022, 1023].
UDF_INLINE double udf_pow2(double k) {
  return udf_f64_from_bits((uint64_t)((int64_t)k + 1023) << 52);
}

// exp(x) for |x| < 150, relative error below 2^-78.
UDF_INLINE udf_dd udf_exp_dd(double x) {
  double k = udf_exp_dd_k(x);
  udf_dd e = udf_expm1_dd_poly(udf_exp_dd_reduce(x, k));
  e = udf_dd_add((udf_dd){1, 0}, e);
  double scale = udf_pow2(k);
  return (udf_dd){e.hi * scale, e.lo * scale};
}

// expm1(x) for |x| < 150, relative error below 2^-76 (the sum with 2^k - 1
// loses at most two bits, at x near -ln(2)/2).
UDF_INLINE udf_dd udf_expm1_dd(double x) {
  double k = udf_exp_dd_k(x);
  udf_dd e = udf_expm1_dd_poly(udf_exp_dd_reduce(x, k));
  double scale = udf_pow2(k);
  udf_dd one = udf_two_sum(scale, -1);
  return udf_dd_add(one, (udf_dd){e.hi * scale, e.lo * scale});
}

#endif // UDF_EXPM1_DD_H
