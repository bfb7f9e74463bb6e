//===- log2.c - Correctly rounded float64 log2 ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The method of log.c, with the reduction and the series of log.c:
//
//   log2(x) = (k - log2(c)) + log(1 + r) / log(2)
//
// k needs no second part. With log(1 + r) = t + rest, t / log(2) is an exact
// pair plus t E_LO, E_HI + E_LO = 1/log(2) with an error below 2^-109. The
// fast two-sums have a zero or the larger term first, as in log.c.
//
// Error of low. rest, of which r^3 q(r) is the largest part, is multiplied by
// E_HI: to the 5.6 U of r^3 q(r) come one for the sum with t.lo, one for what
// E_HI lacks, two for the product and the sum with t E_LO, and 3 U for the
// other sums. As |q| < 0.342, the whole is below EXTENT r^2. Relative to s the
// other parts are below WIDTH: -log2(c) is known to 2^-75, where |s| > 0.4 if
// it is so large (tests/native/test_float64_bounds.py adds it up).
//
// Quick path. That of log.c; k - log2(c) is exact, and three roundings more are
// in QUICK_WIDTH: of the products with E_HI and E_LO, and of lo E_LO, which is
// left out.
//
// Of 5 million arguments between 0 and 100 102 take the accurate path, of as
// many between 0.97 and 1.03 11,200.
//
// Accurate path. As in log.c, in units of 2^-180, with r p(r) multiplied by
// 192 bits of 1/log(2), truncated. The relative error is below 2^-124. Of 2^k
// the result is exact: r is zero.
// log2(2^k m) and log2(m) differ by a whole number, so that the hard cases are
// those of few binades, scaled. The worst one that Lefevre and Muller (ARITH
// 15, 2001) list is 2^-108.4 from a double:
//   x      0x1.61555f75885b4p-513 (0x1fe61555f75885b4)
//
//===----------------------------------------------------------------------===//

#include "../log/log.c"

#include "../common/wide.h"

#include "constants.h"

#define LOG2_EXTENT 0x1.cp-56
#define LOG2_WIDTH 0x1p-72
#define LOG2_QUICK_WIDTH 0x1.3p-61
#define LOG2_QUICK_END 0x1.fep9 // 1020

UDF_INLINE double udf_log2_fast(double x, int *hard) {
  uint64_t offset = udf_log_offset(udf_f64_bits(x));
  uint64_t i = offset >> LOG_STEP_SHIFT;
  double k = udf_log_exponent(offset);
  double logc = (double)udf_log2_high[i % LOG_STEPS] +
                (double)udf_log2_low[i % LOG_STEPS];
  double tiny = (double)udf_log2_rest[i % LOG_STEPS];

  udf_log_part part = udf_log_near_one(udf_log_ratio(offset));
  udf_dd scaled = udf_two_prod(part.t, LOG2_E_HI);
  udf_dd a = udf_fast_two_sum(k, logc);
  udf_dd s = udf_fast_two_sum(a.hi, scaled.hi);
  double rest = UDF_FMA(part.rest, LOG2_E_HI, part.t * LOG2_E_LO);
  double low = (rest + scaled.lo) + (s.lo + (a.lo + tiny));
  double margin =
      UDF_FMA(part.r2, LOG2_EXTENT, __builtin_fabs(s.hi) * LOG2_WIDTH);
  double upper = s.hi + (low + margin);
  double lower = s.hi + (low - margin);
  // NaN is hard.
  *hard = (upper != lower) | !(x >= 0x1p-1022) | !(x <= 0x1.fffffffffffffp1023);
  return upper;
}

UDF_INLINE double udf_log2_quick(double x, int *hard) {
  udf_log_place at = udf_log_quick_place(x);
  uint64_t i = at.offset >> LOG_STEP_SHIFT;
  double logc = (double)udf_log2_quick_high[i % LOG_STEPS] +
                (double)udf_log2_quick_low[i % LOG_STEPS];
  udf_dd g = udf_log_quick_series(udf_log_ratio(at.offset));
  udf_dd scaled = udf_two_prod(g.hi, LOG2_E_HI);
  scaled.lo = UDF_FMA(g.lo, LOG2_E_HI, scaled.lo);
  scaled.lo = UDF_FMA(g.hi, LOG2_E_LO, scaled.lo);
  udf_dd sum = udf_log_quick_sum(at.k + logc, scaled,
                                 (double)udf_log2_quick_rest[i % LOG_STEPS]);
  return udf_log_quick_round(sum, LOG2_QUICK_WIDTH, LOG2_QUICK_END, hard);
}

// log2(x) in units of 2^-180, and whether it is near zero.
typedef struct {
  udf_log_sum sum;
  int near;
} udf_log2_parts;

// For finite x > 0 but 1.
UDF_INLINE udf_log2_parts udf_log2_sum(double x) {
  udf_log_argument of = udf_log_reduce(x);
  udf_log_sum sum = udf_log2_exact[of.interval];
  sum.high += (udf_u128)(__int128)of.k << 116;
  uint64_t magnitude = (uint64_t)(of.r < 0 ? -of.r : of.r);
  udf_log_sum series = udf_log_series(magnitude, of.r < 0);
  udf_wide wide = {
      {series.low, (uint64_t)series.high, (uint64_t)(series.high >> 64)}};
  // Half of the product in units of 2^-181, which is all of it in ours.
  wide = udf_wide_product(wide, udf_log2_e);
  series.high = (udf_u128)wide.word[2] << 64 | wide.word[1];
  series.low = wide.word[0];
  return (udf_log2_parts){udf_log_add(sum, series, of.r < 0 ? -1 : 1),
                          of.k == 0 && udf_log_reciprocal[of.interval] == 1};
}

UDF_INLINE double udf_log2_round(udf_log2_parts parts) {
  // Near zero the result needs log's unit.
  if (parts.near)
    return udf_log_round(udf_log_add(parts.sum, parts.sum, 1));
  return 2 * udf_log_round(parts.sum);
}

static UDF_COLD double udf_log2_accurate(double x) {
  if (!(x > 0) || x == __builtin_inf() || x == 1)
    return udf_log_special(x);
  return udf_log2_round(udf_log2_sum(x));
}
