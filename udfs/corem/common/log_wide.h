//===- log_wide.h - Quick paths of log, log2 and log10 at AVX-512 ---------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = 2^k m with m in [1, 2), by one instruction each (lanes.h), and r = m c -
// 1, exact, with a reciprocal c of few bits from a table of 32 intervals:
//
//   log(x) = base + log(1 + r), base = k log(2) - log(c)
//   high = base + r C1, rounded, whose error is kept in low with what base has
//   no room for; the terms from r^2 on are added to low in float.
//
// C1 is 1, or log2(e) or log10(e), whose low part goes with the terms from r^2
// on. c is 1 in the first interval and 1/2 in the last one, so that base is
// zero on both sides of 1. r stands in the code times SCALE, a power of two.
//
// Error. The terms from r^2 on err by 2^-23.4 C1 r^2: r^2, the polynomial, and
// the sum of them with low are rounded. All others are far below 2^-36 of the
// result: the low parts of the tables and of k log(2) are known to 2^-43 and
// are rounded once more. So the width of the rounding test has a part in
// proportion to r^2 and one to the result. At 1 both vanish, and the result is
// exact.
//
// log takes k times the result for the second part, which saves an instruction:
// SCALE is such that 2^-39 of it counts. That leaves nothing where k is zero,
// from 1.03 to 2, and what the tables lack of 2^-43 can decide there for few
// r. All these arguments were run; the tables are those for which no result was
// wrong (log_wide.sollya).
//
// log_wide.gappa has the proof (tests/native/test_log_wide_bounds.py); the test
// runs the arguments that are left open. Each path has been compared with its
// function for all arguments. Half of the part of r^2 gave wrong results in log
// and log2.
//
// Of zero and infinity k is infinite, and the mantissa of a negative number is
// NaN. So high or low is NaN for these, and they are left to the fast path.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_WIDE_H
#define UDF_LOG_WIDE_H

#include "corem.h"
#include "lanes.h"

#include "log_wide_constants.h"

#ifdef __FMA__

#define UDF_LOG_WIDE_SQUARE (UDF_LOG_WIDE_SCALE * UDF_LOG_WIDE_SCALE)

// The part of the width that is in proportion to the result.
#define UDF_LOG_WIDE_RESULT 0x1p-36f

// k, r, and the place of the interval in the tables.
typedef struct {
  float k, r;
  uint32_t i;
} udf_log_wide_reduced;

UDF_INLINE udf_log_wide_reduced udf_log_wide_reduce(float x) {
  float m = udf_lane_mantissa(x);
  uint32_t i = (udf_f32_bits(m) >> UDF_LOG_WIDE_SHIFT) % UDF_LOG_WIDE_STEPS;
  float r = __builtin_fmaf(m, udf_log_wide_reciprocal[i], -UDF_LOG_WIDE_SCALE);
  return (udf_log_wide_reduced){udf_lane_exponent(x), r, i};
}

// The width in units of share, for a part in proportion to the result.
UDF_INLINE float udf_log_wide_width(float high, float square, float share) {
  return __builtin_fmaf(__builtin_fabsf(high),
                        UDF_LOG_WIDE_RESULT / share * UDF_LOG_WIDE_SQUARE,
                        square);
}

// high + low rounded; the bound of the error is share times the width, which is
// scaled as square.
UDF_INLINE float udf_log_wide_round(float high, float low, float width,
                                    float share, int *hard) {
  float unit = share / UDF_LOG_WIDE_SQUARE;
  float upper = high + __builtin_fmaf(width, unit, low);
  float lower = high + __builtin_fmaf(width, -unit, low);
  // NaN differs, too.
  *hard = upper != lower;
  return upper;
}

#endif

#endif // UDF_LOG_WIDE_H
