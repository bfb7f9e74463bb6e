//===- log_short.h - Short paths of the logarithms ------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log(x) = k log(2) - log(c) + log(1 + r) in double, for the scalar forms,
// which may load from tables: x = 2^k m with m in [START, 2 START), START near
// 0.71, which is cut into J = 128 intervals. c is a reciprocal of m of 28 bits,
// so that r = m c - 1, |r| <= 2^-8, is exact for a float m. In the interval of
// 1 c is 1 and its logarithm zero, and r is at most 2^-8.58.
//
// k log(2) is looked up as well. That is cheaper than a product with a
// converted k: on x86-64 the conversion waits for what its register held last,
// in a loop the result of the call before. And it leaves nothing to test: for
// the k of zero, subnormal, negative, infinite and NaN arguments, and of the
// few normal ones that share it, the table has 2^60 (1 + 2^-24), which no
// logarithm moves. It lies half-way between two floats, so that the rounding
// test finds it. In pow's table infinity stands there.
//
// Error, relative, with or without FMA: the polynomial's, below 2^-36.9 in the
// interval of 1 with k = 0 and below 2^-44.8 absolute (log10: 2^-46.5)
// elsewhere, where the result is 2^-8.58 (log2: 2^-8.05, log10: 2^-9.78) or
// more. The other errors are below 2^-41 of the result (log_short.gappa). In
// all that is less than 2^-36.2, or 2^17 units in the last place,
// UDF_LOG_SHORT_MARGIN: the rounding test leaves one argument in some 2,000 to
// the fast path.
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

// START 2^-125: an encoding less this one is that of m, less START, and k + 125
// above it.
#define UDF_LOG_SHORT_ORIGIN (UDF_LOG_SHORT_START - (UINT32_C(125) << 23))

// Of any float, with the encoding u; m is scaled by 2^-125, and c by 2^125. The
// entry of k is another one for special arguments: see binade.
UDF_INLINE udf_log_short_parts udf_log_short_split(
    uint32_t u, const double *binade, const udf_log_short_interval *table) {
  uint32_t offset = u - UDF_LOG_SHORT_ORIGIN;
  double m = udf_f32_from_bits(u - (offset & UINT32_C(0xff800000)));
  table += offset >> UDF_LOG_SHORT_SHIFT & (UDF_LOG_SHORT_STEPS - 1);
  return (udf_log_short_parts){binade[offset >> 23] + table->log,
                               UDF_FMA(m, table->c, -1.0)};
}

// The same for a double in [1, 2^387). r is rounded, but exact where c = 1.
UDF_INLINE udf_log_short_parts udf_log_short_split_double(
    double x, const double *binade, const udf_log_short_interval *table) {
  const uint64_t origin =
      ((uint64_t)UDF_LOG_SHORT_ORIGIN + (UINT64_C(896) << 23)) << 29;
  uint64_t u = udf_f64_bits(x);
  uint64_t offset = u - origin;
  double m = udf_f64_from_bits(u - (offset & UINT64_C(0xfff0000000000000)));
  table += offset >> (UDF_LOG_SHORT_SHIFT + 29) & (UDF_LOG_SHORT_STEPS - 1);
  return (udf_log_short_parts){binade[offset >> 52] + table->log,
                               UDF_FMA(m, table->c, -1.0)};
}

UDF_INLINE double udf_log_short_sum(udf_log_short_parts a, const double *p) {
  double first = UDF_FMA(a.r, p[0], a.base);
  double q = UDF_FMA(a.r, UDF_FMA(a.r, p[3], p[2]), p[1]);
  return UDF_FMA(a.r * a.r, q, first);
}

#endif // UDF_LOG_SHORT_H
