//===- log_dd.h - Double-double logarithm of the accurate paths -----------===//
// SPDX-License-Identifier: Apache-2.0
//
// log and atanh of a double-double, for the accurate paths of the logarithmic
// and inverse hyperbolic functions.  With m in [sqrt(1/2), sqrt(2)) and
// s = (m - 1) / (m + 1), log(2^k m) = k log(2) + 2 atanh(s) and |s| <= 0.1716,
// where the Taylor series of atanh gains five bits a term.
//
// Relative error below 2^-78: the series is cut at 2^-101, the terms that are
// evaluated in double weigh less than 2^-30, and the double-double operations
// add less than 2^-97.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_DD_H
#define UDF_LOG_DD_H

#include "corem.h"
#include "dd_horner.h"

#include "log_dd_constants.h"

// x > 0 as a double.  Subnormal numbers are converted as integers, so that
// they keep their value where the control register says that they be taken as
// zero.
UDF_INLINE double udf_positive_value(float x) {
  uint32_t u = udf_f32_bits(x);
  return u < UINT32_C(0x00800000) ? (double)u * 0x1p-149 : (double)x;
}

// atanh(s) for |s| <= 0.1717.  The leading s is added last, so that a tiny s
// keeps its cubic term in the low part.
UDF_INLINE udf_dd udf_atanh_dd(udf_dd s) {
  udf_dd s2 = udf_dd_mul(s, s);
  udf_dd p = udf_dd_horner_decreasing(
      s2, udf_atanh_dd_low, UDF_COUNT(udf_atanh_dd_low), udf_atanh_dd_high,
      UDF_COUNT(udf_atanh_dd_high));
  return udf_dd_add(s, udf_dd_mul(udf_dd_mul(s, s2), p));
}

// log(z) for z > 0 with a normal high part below 2^1000, as k * log(2) + the
// rest; *k is left to the caller, because log2 wants it as it is.
UDF_INLINE udf_dd udf_log_dd_split(udf_dd z, double *k) {
  const uint64_t sqrt_half = UINT64_C(0x3fe6a09e667f3bcd);
  int64_t e = (int64_t)(udf_f64_bits(z.hi) - sqrt_half) >> 52;
  double scale = udf_f64_from_bits((uint64_t)(1023 - e) << 52);
  udf_dd m = {z.hi * scale, z.lo * scale};
  udf_dd s = udf_dd_div(udf_dd_add_d(m, -1), udf_dd_add_d(m, 1));
  udf_dd a = udf_atanh_dd(s);
  *k = (double)e;
  return (udf_dd){2 * a.hi, 2 * a.lo};
}

UDF_INLINE udf_dd udf_log_dd(udf_dd z) {
  double k;
  udf_dd rest = udf_log_dd_split(z, &k);
  return udf_dd_add(udf_dd_mul_d(udf_dd_ln2, k), rest);
}

// log(1 + z) for z > -1, with no loss for small z.
UDF_INLINE udf_dd udf_log1p_dd(udf_dd z) {
  if (z.hi < -0.25 || z.hi > 0.25)
    return udf_log_dd(udf_dd_add_d(z, 1));
  udf_dd a = udf_atanh_dd(udf_dd_div(z, udf_dd_add_d(z, 2)));
  return (udf_dd){2 * a.hi, 2 * a.lo};
}

#endif // UDF_LOG_DD_H
