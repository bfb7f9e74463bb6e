//===- softplus.h - log(1 + exp(-a)) for softplus and logsigmoid ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// For a >= 0. With exp(-a) = N / D (composite.h) and s = N / (2 D + N), which
// is at most 1/3, log(1 + exp(-a)) = 2 atanh(s) = s P(s^2), in double: one
// division, no cancellation.
//
// Error, relative: exp 2^-45.4, of which at most all reaches s; P 2^-47.5 (see
// softplus_constants.h); the evaluation less than 2^-50: 2^-45 in all.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_SOFTPLUS_H
#define UDF_SOFTPLUS_H

#include "common/log_dd.h"
#include "composite.h"

#include "softplus_constants.h"

// exp(-SOFTPLUS_MAX) < 2^-150.
#define SOFTPLUS_MAX 0x1.ap+6f
// 2^9.5 units in the last place of the double cover an error of 2^-43.5.
#define SOFTPLUS_MARGIN (UINT64_C(1) << 10)

UDF_INLINE double udf_log1p_exp(float a) {
  // Written so that NaN passes.
  a = a > SOFTPLUS_MAX ? SOFTPLUS_MAX : a;
  udf_quotient e = udf_exp_quotient(-(double)a);
  double s = e.num / UDF_FMA(e.den, 2.0, e.num);
  double w = s * s;
  double w2 = w * w;
  double even = UDF_FMA(w2, SOFTPLUS_P10, SOFTPLUS_P8);
  double odd = UDF_FMA(w2, SOFTPLUS_P9, SOFTPLUS_P7);
  even = UDF_FMA(even, w2, SOFTPLUS_P6);
  odd = UDF_FMA(odd, w2, SOFTPLUS_P5);
  even = UDF_FMA(even, w2, SOFTPLUS_P4);
  odd = UDF_FMA(odd, w2, SOFTPLUS_P3);
  even = UDF_FMA(even, w2, SOFTPLUS_P2);
  odd = UDF_FMA(odd, w2, SOFTPLUS_P1);
  even = UDF_FMA(even, w2, SOFTPLUS_P0);
  return s * UDF_FMA(odd, w, even);
}

// max(x, 0) + log(1 + exp(-|x|)) for |x| < SOFTPLUS_MAX, in double-double:
// relative error below 2^-75.
UDF_INLINE udf_dd udf_softplus_dd(double x) {
  udf_dd rest = udf_log1p_dd(udf_exp_dd(-__builtin_fabs(x)));
  return udf_dd_add((udf_dd){x > 0 ? x : 0, 0}, rest);
}

#endif // UDF_SOFTPLUS_H
