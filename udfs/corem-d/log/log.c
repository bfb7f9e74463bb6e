//===- log.c - Correctly rounded float64 log ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Two steps (Ziv, ACM TOMS 17(3), 1991): a fast path in pairs of doubles, with
// a rounding test, and integers of 128 bits for what it leaves undecided.
//
// Fast path. x = 2^k m with m in [0.703125, 1.40625), which is cut into 16
// intervals (encodings evenly spaced), as tables of 16 floats stay in registers
// (udf-tables). c is a reciprocal of m of at most 6 bits after the point, such
// that r = m c - 1 is a double, and c = 1 in the interval of 1, where the
// result can be small:
//
//   log(x) = (k log(2) - log(c)) + log(1 + r),   |r| < 2^-4.87
//   log(1 + r) = t + t.lo + r^3 q(r),   t + t.lo = r - r^2/2
//
// LN2_HI has 42 bits, and k LN2_HI is exact. Three floats hold -log(c) with an
// error below 2^-76, and the sum of the first two is a double. a + a.lo = k
// LN2_HI - log(c) and s + s.lo = a + t are exact: k LN2_HI is zero or the
// larger one, and so is a. The result is s plus low, the sum of all the other
// parts.
//
// Error of low. With U = 2^-53, r^3 q(r) has a relative error below 5.6 U: r^3
// has two roundings (2 U), q, to which Gappa gives 1.5 U (log.gappa), leaves
// out 1.1 U, and their product has one; the sums, with that of the rounding
// test, add 3 U. As |q| < 0.342, the whole is below EXTENT r^2. Everything else
// is relative to s: the 2^-76 of the constants, against |s| > 0.29 where they
// are so large, and roundings below 2^-90; WIDTH |s| is more than both. The
// margin is the sum (tests/native/test_float64_bounds.py adds it up). So the
// true value lies between the two sums of the rounding test, and when they
// round to the same double, that is its rounding. Zero, subnormal, negative,
// infinite and NaN arguments are left to the accurate path.
//
// Accurate path. The same reduction; r is a multiple of 2^-59. log(1 + r) is
// r p(r), p a Taylor polynomial whose rest is below 2^-130, in units of 2^-127;
// truncations add less than 3 units. The sum is in units of 2^-181. Where it
// can be small, it is r p(r) alone, and |r| >= 2^-53: that unit is below 2^-127
// of the result there. Elsewhere the result is above 2^-6.1, and the errors of
// k log(2) below 2^-170. In all the relative error is below 2^-125.
// Lefevre and Muller, Worst Cases for Correct Rounding of the Elementary
// Functions in Double Precision (ARITH 15, 2001), found no double whose log has
// more than 64 equal bits after the rounding bit: none is within 2^-119,
// relative, of a double or the middle of two.
//
// Of 5 million arguments between 0 and 100 61 take the accurate path, of as
// many between 0.97 and 1.03 8,075. The case nearest to a double, 2^-118.03 of
// it:
//   x      0x1.62a88613629b6p+678 (0x6a562a88613629b6)
//
//===----------------------------------------------------------------------===//

#include "../common/fixed.h"

// A number in units of 2^-181, modulo 2^11: the upper 128 bits and the
// lower 64.
typedef struct {
  udf_u128 high;
  uint64_t low;
} udf_log_sum;

#include "constants.h"

#define LOG_EXTENT 0x1.ap-57
#define LOG_WIDTH 0x1p-72

// The encoding of a normal x, counted from that of 2^-1024 START: k + 1024 is
// in the upper 12 bits, the interval in the next 4.
UDF_INLINE uint64_t udf_log_offset(uint64_t bits) {
  return bits - LOG_START + (UINT64_C(1024) << 52);
}

UDF_INLINE unsigned udf_log_interval(uint64_t offset) {
  return offset >> LOG_STEP_SHIFT & (LOG_STEPS - 1);
}

// m, in [START, 2 START).
UDF_INLINE double udf_log_significand(uint64_t offset) {
  return udf_f64_from_bits((offset & UINT64_C(0xfffffffffffff)) + LOG_START);
}

// log(1 + r) as t.hi + rest; r2 is r^2 rounded.
typedef struct {
  double t, rest, r2;
} udf_log_part;

UDF_INLINE udf_log_part udf_log_near_one(double r) {
  udf_dd square = udf_two_prod(r, r);
  double r2 = square.hi;
  double q01 = UDF_FMA(r, LOG_Q1, LOG_Q0);
  double q23 = UDF_FMA(r, LOG_Q3, LOG_Q2);
  double q45 = UDF_FMA(r, LOG_Q5, LOG_Q4);
  double q67 = UDF_FMA(r, LOG_Q7, LOG_Q6);
  double q = UDF_FMA(r2, UDF_FMA(r2, LOG_Q8, q67), q45);
  q = UDF_FMA(r2, UDF_FMA(r2, q, q23), q01);
  double cubic = (r * r2) * q;
  udf_dd t = udf_fast_two_sum(r, -0.5 * r2);
  return (udf_log_part){t.hi, UDF_FMA(-0.5, square.lo, t.lo) + cubic, r2};
}

UDF_INLINE double udf_log_exponent(uint64_t offset) {
  return udf_f64_from_bits(offset >> 52 | UINT64_C(0x4330000000000000)) -
         (0x1p52 + 1024);
}

// m c - 1, exact.
UDF_INLINE double udf_log_ratio(uint64_t offset) {
  double m = udf_log_significand(offset);
  double c = (double)udf_log_reciprocal[(offset >> LOG_STEP_SHIFT) % LOG_STEPS];
#ifdef __FMA__
  return __builtin_fma(m, c, -1.0);
#else
  double left = udf_f64_from_bits(udf_f64_bits(m) & ~UINT64_C(0x7ffffff));
  return (left * c - 1.0) + (m - left) * c;
#endif
}

UDF_INLINE double udf_log_fast(double x, int *hard) {
  uint64_t offset = udf_log_offset(udf_f64_bits(x));
  uint64_t i = offset >> LOG_STEP_SHIFT;
  double k = udf_log_exponent(offset);
  double logc =
      (double)udf_log_high[i % LOG_STEPS] + (double)udf_log_low[i % LOG_STEPS];
  double tiny = UDF_FMA(k, LOG_LN2_LO, (double)udf_log_rest[i % LOG_STEPS]);

  udf_log_part part = udf_log_near_one(udf_log_ratio(offset));
  udf_dd a = udf_fast_two_sum(k * LOG_LN2_HI, logc);
  udf_dd s = udf_fast_two_sum(a.hi, part.t);
  double low = part.rest + (s.lo + (a.lo + tiny));
  double margin =
      UDF_FMA(part.r2, LOG_EXTENT, __builtin_fabs(s.hi) * LOG_WIDTH);
  double upper = s.hi + (low + margin);
  double lower = s.hi + (low - margin);
  // NaN is hard.
  *hard = (upper != lower) | !(x >= 0x1p-1022) | !(x <= 0x1.fffffffffffffp1023);
  return upper;
}

// The sum of a and sign b, sign one of -1 and 1.
UDF_INLINE udf_log_sum udf_log_add(udf_log_sum a, udf_log_sum b, int sign) {
  uint64_t low = sign < 0 ? a.low - b.low : a.low + b.low;
  if (sign < 0)
    return (udf_log_sum){a.high - b.high - (a.low < b.low), low};
  return (udf_log_sum){a.high + b.high + (low < a.low), low};
}

// |r| in units of 2^-59 times p(r), which is log(1 + r) / r.
UDF_INLINE udf_log_sum udf_log_series(uint64_t r, int negative) {
  uint64_t fraction = r << 5;
  udf_u128 p = udf_log_inverse[0];
  int terms = (int)(sizeof udf_log_inverse / sizeof p);
  for (int term = 1; term < terms; ++term) {
    udf_u128 product = udf_high_product_64(fraction, p);
    p = negative ? udf_log_inverse[term] + product
                 : udf_log_inverse[term] - product;
  }
  // In units of 2^-191, of which 10 bits are dropped.
  udf_u128 lower = (udf_u128)fraction * (uint64_t)p;
  udf_u128 upper = (udf_u128)fraction * (uint64_t)(p >> 64) + (lower >> 64);
  return (udf_log_sum){upper >> 10,
                       (uint64_t)upper << 54 | (uint64_t)lower >> 10};
}

// The rounding of a number that is not zero, at least 2^-53 in magnitude.
UDF_INLINE double udf_log_round(udf_log_sum sum) {
  int negative = (int)(sum.high >> 127);
  if (negative)
    sum = udf_log_add((udf_log_sum){0, 0}, sum, -1);
  int shift = __builtin_clzll((uint64_t)(sum.high >> 64));
  udf_u128 y = sum.high << shift | sum.low >> (64 - shift);
  // Drop what lies below the last place; no argument is half-way.
  uint64_t rounded = (uint64_t)(((y >> 74) + 1) >> 1);
  uint64_t exponent = (uint64_t)(1032 - shift) << 52;
  return udf_f64_from_bits((uint64_t)negative << 63 | (exponent + rounded));
}

// x = 2^k m, m c = 1 + r 2^-59, for finite x > 0.
typedef struct {
  int k;
  unsigned interval;
  int64_t r;
} udf_log_argument;

UDF_INLINE udf_log_argument udf_log_reduce(double x) {
  int k = -1024;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    k -= 54;
  }
  uint64_t offset = udf_log_offset(udf_f64_bits(x));
  unsigned i = udf_log_interval(offset);
  uint64_t m = (uint64_t)(udf_log_significand(offset) * 0x1p53);
  uint64_t product = m * (uint64_t)(udf_log_reciprocal[i] * 64);
  return (udf_log_argument){k + (int)(offset >> 52), i,
                            (int64_t)product - (INT64_C(1) << 59)};
}

// The logarithm of 0, 1, infinity, NaN and negative numbers.
UDF_INLINE double udf_log_special(double x) {
  if (x != x)
    return x + x;
  if (x == 0)
    return -__builtin_inf();
  if (x < 0)
    return __builtin_nan("");
  return x == 1 ? 0 : x;
}

static UDF_COLD double udf_log_accurate(double x) {
  if (!(x > 0) || x == __builtin_inf() || x == 1)
    return udf_log_special(x);
  udf_log_argument of = udf_log_reduce(x);
  uint64_t count = (uint64_t)(of.k < 0 ? -of.k : of.k);
  udf_u128 low = (udf_u128)count * udf_log_ln2.low;
  udf_log_sum multiple = {count * udf_log_ln2.high + (low >> 64),
                          (uint64_t)low};
  udf_log_sum sum =
      udf_log_add(udf_log_exact[of.interval], multiple, of.k < 0 ? -1 : 1);
  uint64_t magnitude = (uint64_t)(of.r < 0 ? -of.r : of.r);
  udf_log_sum series = udf_log_series(magnitude, of.r < 0);
  return udf_log_round(udf_log_add(sum, series, of.r < 0 ? -1 : 1));
}
