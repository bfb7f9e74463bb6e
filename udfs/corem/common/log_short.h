//===- log_short.h - Short paths of the logarithms ------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(x) = k log(2) - log(c) + log(1 + r) in double, for the scalar forms,
// which may load from tables: x = 2^k m with m in [START, 2 START), START near
// 0.71, which is cut into J = 128 intervals. c is a reciprocal of m of 28 bits,
// so that r = m c - 1, |r| <= 2^-8, is exact for a float m. In the interval of
// 1 c is 1 and its logarithm zero, and r is at most 2^-8.58. The multiples of
// log(2) are in a table too: that is cheaper than to convert k, and needs no
// product.
//
// Error, relative, with or without FMA: the polynomial's, below 2^-36.9 in the
// interval of 1 with k = 0 and below 2^-44.8 absolute (log10: 2^-46.5)
// elsewhere, where the result is 2^-8.58 (log2: 2^-8.05, log10: 2^-9.78) or
// more. The other errors are below 2^-41 of the result (log_short.gappa). In
// all that is less than 2^-36.2, or 2^17 units in the last place,
// UDF_LOG_SHORT_MARGIN.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_SHORT_H
#define UDF_LOG_SHORT_H

#include "corem.h"

#include "log_short_constants.h"

#define UDF_LOG_SHORT_MARGIN (UINT64_C(1) << 17)

// k log(2) - log(c) and r.
typedef struct {
  double base, r;
} udf_log_short_parts;

// The encoding u is that of a normal x > 0.
UDF_INLINE udf_log_short_parts
udf_log_short_split(uint32_t u, const udf_log_short_table *table) {
  int64_t offset = (int64_t)u - UDF_LOG_SHORT_START;
  uint64_t i =
      (uint64_t)offset >> UDF_LOG_SHORT_SHIFT & (UDF_LOG_SHORT_STEPS - 1);
  double m = udf_f32_from_bits(u - ((uint32_t)offset & UINT32_C(0xff800000)));
  double kl = table->binade[(offset >> 23) - UDF_LOG_SHORT_LEAST];
  return (udf_log_short_parts){kl + table->interval[i].log,
                               UDF_FMA(m, table->interval[i].c, -1.0)};
}

// The same for a double in [2^-126, 2^129]. r is rounded, but exact where c
// = 1.
UDF_INLINE udf_log_short_parts
udf_log_short_split_double(double x, const udf_log_short_table *table) {
  // START as a double.
  const uint64_t start = ((uint64_t)UDF_LOG_SHORT_START + (UINT64_C(896) << 23))
                         << 29;
  uint64_t u = udf_f64_bits(x);
  int64_t offset = (int64_t)(u - start);
  uint64_t i = (uint64_t)offset >> (UDF_LOG_SHORT_SHIFT + 29) &
               (UDF_LOG_SHORT_STEPS - 1);
  double m =
      udf_f64_from_bits(u - ((uint64_t)offset & UINT64_C(0xfff0000000000000)));
  double kl = table->binade[(offset >> 52) - UDF_LOG_SHORT_LEAST];
  return (udf_log_short_parts){kl + table->interval[i].log,
                               UDF_FMA(m, table->interval[i].c, -1.0)};
}

// Horner's scheme: of independent calls the fewest operations count.
UDF_INLINE double udf_log_short_sum(udf_log_short_parts a, const double *p) {
  double q = UDF_FMA(a.r, p[3], p[2]);
  q = UDF_FMA(a.r, q, p[1]);
  q = UDF_FMA(a.r, q, p[0]);
  return UDF_FMA(a.r, q, a.base);
}

// Zero, subnormal, negative, infinite and NaN arguments.
UDF_INLINE int udf_log_short_special(uint32_t u) {
  return u - UINT32_C(0x00800000) >= UINT32_C(0x7f000000);
}

#endif // UDF_LOG_SHORT_H
