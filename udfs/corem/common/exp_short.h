//===- exp_short.h - Short paths of the exponential family ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// 2^(n/J) f(r) in double, J = 128, where f is exp or 2^r and |r| at most half a
// step: one look-up and a polynomial of degree 3. For the scalar forms, which
// may load from a table.
//
// The encodings in the table lack j 2^45, so that adding n 2^45 for n = J k + j
// makes 2^(j/J) the double 2^k 2^(j/J). Each is rounded once, which errs by
// 2^-53 relative at most.
//
// Error, relative, with or without FMA (exp_short.gappa has the roundings): the
// polynomial's, 2^-41.2, and less than 2^-45.5 for the rest, the reduction of
// exp included. That is less than 2^12 units in the last place of the result,
// UDF_EXP_SHORT_MARGIN.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_EXP_SHORT_H
#define UDF_EXP_SHORT_H

#include "corem.h"

#include "exp_short_constants.h"

#define UDF_EXP_SHORT_MARGIN (UINT64_C(1) << 12)
// Adding it rounds to a multiple of 1/J, whose numerator is in the low bits.
#define UDF_EXP_SHORT_MAGIC (UDF_ROUND_MAGIC / UDF_EXP_SHORT_STEPS)

// 2^(n/J) for a normal result; of n the low bits count.
UDF_INLINE double udf_exp_short_power_of(uint64_t n) {
  return udf_f64_from_bits(udf_exp_short_power[n % UDF_EXP_SHORT_STEPS] +
                           (n << UDF_EXP_SHORT_SHIFT));
}

// 2^(n/J) exp(r).
UDF_INLINE double udf_exp_short(uint64_t n, double r) {
  double s = udf_exp_short_power_of(n);
  double q = UDF_FMA(r, UDF_EXP_SHORT_C3, UDF_EXP_SHORT_C2);
  return UDF_FMA(s, UDF_FMA(r * r, q, r), s);
}

// 2^(n/J + r).
UDF_INLINE double udf_exp2_short(uint64_t n, double r) {
  double s = udf_exp_short_power_of(n);
  double q = UDF_FMA(r, UDF_EXP2_SHORT_C3, UDF_EXP2_SHORT_C2);
  return UDF_FMA(s * r, UDF_FMA(r, q, UDF_EXP2_SHORT_C1), s);
}

#endif // UDF_EXP_SHORT_H
