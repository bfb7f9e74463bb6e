//===- dd_horner.h - Polynomials in double-double -------------------------===//
// SPDX-License-Identifier: Apache-2.0

#ifndef UDF_DD_HORNER_H
#define UDF_DD_HORNER_H

#include "corem.h"

#define UDF_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

// low[0] + low[1] x + ... + high[0] x^n_low + ...: the high coefficients in
// double, the low ones in double-double.  Not fused, so that the bits are the
// same at every CPU level.
UDF_INLINE udf_dd udf_dd_horner(udf_dd x, const udf_dd *low, int n_low,
                                const double *high, int n_high) {
  double tail = high[n_high - 1];
  for (int i = n_high - 2; i >= 0; --i)
    tail = tail * x.hi + high[i];
  udf_dd sum = udf_dd_add(low[n_low - 1], udf_dd_mul_d(x, tail));
  for (int i = n_low - 2; i >= 0; --i)
    sum = udf_dd_add(low[i], udf_dd_mul(x, sum));
  return sum;
}

// The same for terms that decrease, |low[i]| >= |x times the rest|, as those of
// the series of atanh, atan and sin do: three times faster, and the relative
// error of a step is still below 2^-100.
UDF_INLINE udf_dd udf_dd_horner_decreasing(udf_dd x, const udf_dd *low,
                                           int n_low, const double *high,
                                           int n_high) {
  double tail = high[n_high - 1];
  for (int i = n_high - 2; i >= 0; --i)
    tail = tail * x.hi + high[i];
  udf_dd sum = {tail, 0};
  for (int i = n_low - 1; i >= 0; --i) {
    udf_dd p = udf_two_prod(x.hi, sum.hi);
    p.lo += x.hi * sum.lo + x.lo * sum.hi;
    sum = udf_fast_two_sum(low[i].hi, p.hi);
    sum.lo += low[i].lo + p.lo;
  }
  return sum;
}

#endif // UDF_DD_HORNER_H
