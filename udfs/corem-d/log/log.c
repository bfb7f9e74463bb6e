//===- log.c - Correctly rounded float64 log ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Two steps (Ziv, ACM TOMS 17(3), 1991): a fast path in pairs of doubles, with
// a rounding test, and integers of 128 bits for what it leaves undecided. The
// vector and array forms try a quick path first.
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
// Quick path, with FMA. The same reduction with three other floats for -log(c):
// the sum of the first two and LN2_QUICK_HI are multiples of 2^-43, so that a =
// k LN2_QUICK_HI - log(c) is exact without a second part. hi + lo = r - r^2/2
// takes two fused multiply-adds. With the roundings of r^3 q(r), those of the
// three sums that it goes through and what the constants lack, the error is
// largest beside the interval of 1, at m = 1.03125: 2^-61.2 of the result.
// Gappa bounds the roundings of r^3 and q (quick.gappa), and
// tests/native/test_float64_bounds.py adds up the rest on pieces of all
// intervals: QUICK_WIDTH is more. Where |k| > 1021 the result is beyond
// QUICK_END, as it would be for all encodings of other than normal positive
// numbers, and is left to the fast path.
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
#define LOG_QUICK_WIDTH 0x1.cp-62
#define LOG_QUICK_END 0x1.62p9 // 708

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

//===----------------------------------------------------------------------===//
// Quick path
//===----------------------------------------------------------------------===//

// The encoding from that of START 2^n, whose lower bits are those of the fast
// path, and k.
typedef struct {
  uint64_t offset;
  double k;
} udf_log_place;

UDF_INLINE udf_log_place udf_log_quick_place(double x) {
#ifdef __AVX512DQ__ // which converts integers of 64 bits
  uint64_t offset = udf_f64_bits(x) - LOG_START;
  return (udf_log_place){offset, (double)((int64_t)offset >> 52)};
#else
  uint64_t offset = udf_log_offset(udf_f64_bits(x));
  return (udf_log_place){offset, udf_log_exponent(offset)};
#endif
}

// log(1 + r).
UDF_INLINE udf_dd udf_log_quick_series(double r) {
  double half = -0.5 * r;
  double z = r * half; // -r^2/2
  double hi = UDF_FMA(r, half, r);
  double lo = UDF_FMA(r, half, r - hi);
  // -2 q(r), in powers of -2 z; r z is -r^3/2.
  double q01 = UDF_FMA(r, -2 * LOG_Q1, -2 * LOG_Q0);
  double q23 = UDF_FMA(r, 4 * LOG_Q3, 4 * LOG_Q2);
  double q45 = UDF_FMA(r, -8 * LOG_Q5, -8 * LOG_Q4);
  double q67 = UDF_FMA(r, 16 * LOG_Q7, 16 * LOG_Q6);
  double q = UDF_FMA(z, UDF_FMA(z, -32 * LOG_Q8, q67), q45);
  q = UDF_FMA(z, UDF_FMA(z, q, q23), q01);
  return (udf_dd){hi, UDF_FMA(r * z, q, lo)};
}

// a + g + tiny, where |a| >= |g.hi| or a = 0.
UDF_INLINE udf_dd udf_log_quick_sum(double a, udf_dd g, double tiny) {
  udf_dd s = udf_fast_two_sum(a, g.hi);
  return (udf_dd){s.hi, g.lo + (s.lo + tiny)};
}

// The rounded sum, and whether it is not sure or beyond the end.
UDF_INLINE double udf_log_quick_round(udf_dd sum, double width, double end,
                                      int *hard) {
  double upper = sum.hi + UDF_FMA(sum.hi, width, sum.lo);
  double lower = sum.hi + UDF_FMA(sum.hi, -width, sum.lo);
  *hard = (upper != lower) | (__builtin_fabs(sum.hi) > end);
  return upper;
}

UDF_INLINE double udf_log_quick(double x, int *hard) {
  udf_log_place at = udf_log_quick_place(x);
  uint64_t i = at.offset >> LOG_STEP_SHIFT;
  double logc = (double)udf_log_quick_high[i % LOG_STEPS] +
                (double)udf_log_quick_low[i % LOG_STEPS];
  double tiny = UDF_FMA(at.k, LOG_LN2_QUICK_LO,
                        (double)udf_log_quick_rest[i % LOG_STEPS]);
  udf_dd g = udf_log_quick_series(udf_log_ratio(at.offset));
  udf_dd sum =
      udf_log_quick_sum(UDF_FMA(at.k, LOG_LN2_QUICK_HI, logc), g, tiny);
  return udf_log_quick_round(sum, LOG_QUICK_WIDTH, LOG_QUICK_END, hard);
}

//===----------------------------------------------------------------------===//
// Accurate path
//===----------------------------------------------------------------------===//

// The sum of a and sign b, sign one of -1 and 1.
UDF_INLINE udf_log_sum udf_log_add(udf_log_sum a, udf_log_sum b, int sign) {
  uint64_t low = sign < 0 ? a.low - b.low : a.low + b.low;
  if (sign < 0)
    return (udf_log_sum){a.high - b.high - (a.low < b.low), low};
  return (udf_log_sum){a.high + b.high + (low < a.low), low};
}

// p(r), which is log(1 + r) / r, in units of 2^-127, with |r| in units of
// 2^-128.
UDF_INLINE udf_u128 udf_log_polynomial(udf_u128 r, int negative) {
  udf_u128 p = udf_log_inverse[0];
  int terms = (int)(sizeof udf_log_inverse / sizeof p);
  for (int term = 1; term < terms; ++term) {
    udf_u128 product = udf_high_product(r, p);
    p = negative ? udf_log_inverse[term] + product
                 : udf_log_inverse[term] - product;
  }
  return p;
}

// |r| in units of 2^-59 times p(r).
UDF_INLINE udf_log_sum udf_log_series(uint64_t r, int negative) {
  uint64_t fraction = r << 5;
  udf_u128 p = udf_log_polynomial((udf_u128)fraction << 64, negative);
  // In units of 2^-191, of which 10 bits are dropped.
  udf_u128 lower = (udf_u128)fraction * (uint64_t)p;
  udf_u128 upper = (udf_u128)fraction * (uint64_t)(p >> 64) + (lower >> 64);
  return (udf_log_sum){upper >> 10,
                       (uint64_t)upper << 54 | (uint64_t)lower >> 10};
}

// A sum that is not zero as 2^exponent y, y in units of 2^-127 and in [1, 2).
typedef struct {
  udf_u128 y;
  int exponent, negative;
} udf_log_leading;

// At least 2^-53 in magnitude.
UDF_INLINE udf_log_leading udf_log_lead(udf_log_sum sum) {
  int negative = (int)(sum.high >> 127);
  if (negative)
    sum = udf_log_add((udf_log_sum){0, 0}, sum, -1);
  int shift = __builtin_clzll((uint64_t)(sum.high >> 64));
  udf_u128 y = sum.high << shift | sum.low >> (64 - shift);
  return (udf_log_leading){y, 10 - shift, negative};
}

UDF_INLINE double udf_log_round(udf_log_sum sum) {
  udf_log_leading of = udf_log_lead(sum);
  // Drop what lies below the last place; no argument is half-way.
  uint64_t rounded = (uint64_t)(((of.y >> 74) + 1) >> 1);
  uint64_t exponent = (uint64_t)(of.exponent + 1022) << 52;
  return udf_f64_from_bits((uint64_t)of.negative << 63 | (exponent + rounded));
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

// k log(2) - log(c).
UDF_INLINE udf_log_sum udf_log_multiple(udf_log_argument of) {
  uint64_t count = (uint64_t)(of.k < 0 ? -of.k : of.k);
  udf_u128 low = (udf_u128)count * udf_log_ln2.low;
  udf_log_sum multiple = {count * udf_log_ln2.high + (low >> 64),
                          (uint64_t)low};
  return udf_log_add(udf_log_exact[of.interval], multiple, of.k < 0 ? -1 : 1);
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
  udf_log_sum sum = udf_log_multiple(of);
  uint64_t magnitude = (uint64_t)(of.r < 0 ? -of.r : of.r);
  udf_log_sum series = udf_log_series(magnitude, of.r < 0);
  return udf_log_round(udf_log_add(sum, series, of.r < 0 ? -1 : 1));
}
