//===- atan_dd.h - Double-double arc tangent of the accurate paths --------===//
// SPDX-License-Identifier: Apache-2.0
//
// atan of a quotient, for the accurate paths of atan, asin and acos.  With
// c = i/16 nearest to t = n/d in [0, 1], atan(t) = atan(c) + atan(w) where
// w = (n - c d) / (d + c n), |w| <= 1/32.  Relative error below 2^-90.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ATAN_DD_H
#define UDF_ATAN_DD_H

#include "corem.h"
#include "dd_horner.h"

#include "atan_dd_constants.h"

// atan(n / d) for n >= 0, d >= 0, not both zero.
UDF_INLINE udf_dd udf_atan_dd(udf_dd n, udf_dd d) {
  int inverse = n.hi > d.hi;
  if (inverse) {
    udf_dd swap = n;
    n = d;
    d = swap;
  }
  int i = (int)(n.hi / d.hi * UDF_ATAN_DD_STEPS + 0.5);
  double c = (double)i / UDF_ATAN_DD_STEPS;
  udf_dd w = udf_dd_div(udf_dd_sub(n, udf_dd_mul_d(d, c)),
                        udf_dd_add(d, udf_dd_mul_d(n, c)));
  udf_dd w2 = udf_dd_mul(w, w);
  udf_dd p =
      udf_dd_horner_decreasing(w2, udf_atan_dd_low, UDF_COUNT(udf_atan_dd_low),
                               udf_atan_dd_high, UDF_COUNT(udf_atan_dd_high));
  udf_dd a = udf_dd_add(w, udf_dd_mul(udf_dd_mul(w, w2), p));
  if (i != 0)
    a = udf_dd_add(udf_atan_dd_table[i], a);
  return inverse ? udf_dd_sub(udf_dd_half_pi, a) : a;
}

#endif // UDF_ATAN_DD_H
