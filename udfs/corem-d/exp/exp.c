//===- exp.c - Correctly rounded float64 exp ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Two steps (Ziv, ACM TOMS 17(3), 1991): a fast path in pairs of doubles, with
// a rounding test, and integers of 128 bits for what it leaves undecided. The
// vector and array forms try a quick path first.
//
// Fast path. x = n ln(2)/16 + r + s and n = 16 k + j, with n read from the low
// bits of x / ln(2) + 1.5 * 2^48. T is a sum of two floats near 2^(j/16),
// which has 48 bits, and s holds the rest: -n STEP_LO and log(2^(j/16) / T).
// So exp(x) = 2^k T exp(r + s). Floats, as tables of 16 floats stay in
// registers (udf-tables).
//
// r = x - n STEP_HI is exact: for n != 0 both terms are multiples of 2^-58, and
// the difference is below 2^-5.5. |s| < 2^-43.
//   exp(r + s) - 1 = c + w,  c + w.lo = r + r^2/2,
//   w = w.lo + r^3 q(r) + s exp(r)
// with r^2 as an exact pair, c the nearest double, and z = c + r^3 q(r) for
// exp(r) - 1 in s exp(r) = s + s z. T + T c is an exact pair too, high + e, and
// low = e + T w.
//
// Its error, relative to T, in units of U = 2^-53 max |r^3 q| = 2^-72.1. r^3
// has two roundings (2 U), q about one (0.9 U), their product one, w one and
// T w + e two without FMA (2.1 U); q itself leaves out 1.0 U (generate.py), log
// of T in a float 0.3 U. What is neglected, s^2/2 < 2^-87, and the roundings of
// w.lo, s and e, below 2^-94, are less than 0.01 U. In all 8.4 U, and 1 U more
// for low + EXP_MARGIN: times T < 1.916 that is less than 2^-68 < EXP_MARGIN.
// Gappa proves it, with and without FMA (exp.gappa).
// So the true value lies between the two sums of the rounding test, and when
// they round to the same double, that is its rounding. 2^k goes to the exponent
// field; subnormal results are left to the accurate path.
//
// Quick path, with FMA and where the result is normal. The same reduction, and
//   exp(r + s) - 1 = r + w,  w = r^2 p(r) + s exp(r)
// in which w is a double: T + T r is the exact pair high + e, and low = e + T
// w. Relative to T, the roundings of w, which is below 2^-12, and those of the
// two sums after it, what p leaves out and the constants are below 2^-62.1.
// Gappa bounds those of w (quick.gappa), and
// tests/native/test_float64_bounds.py adds the rest: EXP_QUICK_WIDTH is more.
//
// Accurate path. |x| < 2^-54 gives 1. For all others x 2^128 modulo 2^128 is
// exact. k ln(2) is subtracted with an error of 2^-128, and 0 <= r < ln(2) is
// left. With i = floor(128 r), exp(r) is a table's entry
// times exp(r - i/128), a Taylor polynomial whose rest is below 2^-132. All
// results are truncated; fewer than 8 units of 2^-127 are lost: error < 2^-124.
// For |x| < 2^-30 no double but 0 has exp(x) within 2^-110.6 of a boundary:
// hard_cases.py tries the arguments next to every one. For the others Lefevre
// and Muller, Worst Cases for Correct Rounding of the Elementary Functions in
// Double Precision (ARITH 15, 2001), found none with more than 59 equal bits
// after the rounding bit: none is within 2^-114, relative, of a double or the
// middle of two. -0x1.ed318efb627eap-27 is 2^-113.14 of its exp from a double.
// Subnormal results have fewer bits.
//
// Of 2^26 random arguments with normal results 2,360 take the accurate path.
// Hardest case for |x| < 2^-30, 2^-110.6 from the middle of two doubles:
//   x      0x1.9e9cbbfd6080bp-31 (0x3e09e9cbbfd6080b)
//
//===----------------------------------------------------------------------===//

#include "../common/double_lanes.h"
#include "../common/fixed.h"

#include "constants.h"

#define EXP_MARGIN 0x1.2p-68
#define EXP_QUICK_WIDTH 0x1.ep-63
#define EXP_QUICK_END 0x1.62p9 // 708

// Added to n/16 it leaves n in the low bits.
#define EXP_MAGIC (UDF_ROUND_MAGIC / EXP_STEPS)

// An argument as n log(2)/16 + r + s; the low bits of i are those of n, and k
// is n/16.
typedef struct {
  uint64_t i;
  double k, r, s;
} udf_exp_argument;

// 2^(j/16) exp(r + s) as t (1 + c + w); cube is r^3, rounded.
typedef struct {
  double t, c, w, cube;
} udf_exp_part;

UDF_INLINE udf_exp_part udf_exp_near_one(udf_exp_argument of) {
  double r = of.r;
  double t = (double)udf_exp_high[of.i % EXP_STEPS] +
             (double)udf_exp_low[of.i % EXP_STEPS];

  udf_dd square = udf_two_prod(r, r);
  double r2 = square.hi;
  double q01 = UDF_FMA(r, EXP_Q1, EXP_Q0);
  double q23 = UDF_FMA(r, EXP_Q3, EXP_Q2);
  double q45 = UDF_FMA(r, EXP_Q5, EXP_Q4);
  double q = UDF_FMA(r2, UDF_FMA(r2, q45, q23), q01);
  double cube = r * r2;
  double cubic = cube * q;

  udf_dd c = udf_fast_two_sum(r, 0.5 * r2);
  double z = c.hi + cubic;
  double w = cubic + (UDF_FMA(0.5, square.lo, c.lo) + UDF_FMA(of.s, z, of.s));
  return (udf_exp_part){t, c.hi, w, cube};
}

// The two sums of the rounding test for 2^(j/16) exp(r + s), with a margin for
// its error.
typedef struct {
  double upper, lower;
} udf_exp_ends;

UDF_INLINE udf_exp_ends udf_exp_sum(udf_exp_argument of, double margin) {
  udf_exp_part part = udf_exp_near_one(of);
  double t = part.t;
#ifdef __FMA__
  double high = __builtin_fma(t, part.c, t);
  double e = __builtin_fma(t, part.c, t - high);
#else
  udf_dd product = udf_two_prod(t, part.c);
  udf_dd sum = udf_fast_two_sum(t, product.hi);
  double high = sum.hi;
  double e = sum.lo + product.lo;
#endif
  double low = UDF_FMA(t, part.w, e);
  return (udf_exp_ends){high + (low + margin), high + (low - margin)};
}

// 2^k times the result, where it is normal; i is 16 k + j, modulo 2^64.
UDF_INLINE double udf_exp_scale(udf_exp_ends ends, uint64_t i, _Bool infinite,
                                _Bool zero, _Bool normal, int *hard) {
  // k is added to the exponent field, of which it takes the low bits.
  double y =
      udf_f64_from_bits(udf_f64_bits(ends.upper) + (i / EXP_STEPS << 52));
  *hard = !(infinite | zero) & ((ends.upper != ends.lower) | !normal);
  y = infinite ? __builtin_inf() : y;
  return zero ? 0 : y;
}

UDF_INLINE udf_exp_argument udf_exp_reduce(double x) {
  double shifted = UDF_FMA(x, EXP_INV_STEP / EXP_STEPS, EXP_MAGIC);
  double k = shifted - EXP_MAGIC;
  uint64_t i = udf_f64_bits(shifted);
#ifdef __FMA__
  double r = __builtin_fma(k, -EXP_STEP_HI * EXP_STEPS, x);
#else
  udf_dd multiple = udf_two_prod(k, EXP_STEP_HI * EXP_STEPS);
  double r = (x - multiple.hi) - multiple.lo;
#endif
  double s =
      UDF_FMA(k, -EXP_STEP_LO * EXP_STEPS, (double)udf_exp_rest[i % EXP_STEPS]);
  return (udf_exp_argument){i, k, r, s};
}

UDF_INLINE double udf_exp_fast(double x, int *hard) {
  udf_exp_argument of = udf_exp_reduce(x);
  // NaN is hard.
  return udf_exp_scale(udf_exp_sum(of, EXP_MARGIN), of.i, x > EXP_MAX,
                       x < EXP_MIN, x >= EXP_NORMAL_MIN, hard);
}

//===----------------------------------------------------------------------===//
// Quick path
//===----------------------------------------------------------------------===//

// 2^k 2^(j/16) exp(r + s), and whether its rounding is not sure.
UDF_INLINE double udf_exp_quick_sum(udf_exp_argument of, _Bool outside,
                                    int *hard) {
  double r = of.r;
  double t = (double)udf_exp_high[of.i % EXP_STEPS] +
             (double)udf_exp_low[of.i % EXP_STEPS];
  double r2 = r * r;
  double p01 = UDF_FMA(r, EXP_P1, EXP_P0);
  double p23 = UDF_FMA(r, EXP_P3, EXP_P2);
  double p45 = UDF_FMA(r, EXP_P5, EXP_P4);
  double p = UDF_FMA(r2, UDF_FMA(r2, p45, p23), p01);
  double growth = UDF_FMA(r2, p, of.s);
  double w = UDF_FMA(of.s, r + growth, growth);

  double high = UDF_FMA(t, r, t);
  double e = UDF_FMA(t, r, t - high);
  double low = UDF_FMA(t, w, e);
  double upper = high + UDF_FMA(t, EXP_QUICK_WIDTH, low);
  double lower = high + UDF_FMA(t, -EXP_QUICK_WIDTH, low);
  *hard = (upper != lower) | outside;
#ifdef __AVX512F__
  return udf_lane_scale_double(upper, of.k);
#else
  return udf_f64_from_bits(udf_f64_bits(upper) + (of.i / EXP_STEPS << 52));
#endif
}

UDF_INLINE double udf_exp_quick(double x, int *hard) {
  // NaN is outside.
  return udf_exp_quick_sum(udf_exp_reduce(x),
                           !(__builtin_fabs(x) <= EXP_QUICK_END), hard);
}

//===----------------------------------------------------------------------===//
// Accurate path
//===----------------------------------------------------------------------===//

// x 2^128 modulo 2^128, for 2^-54 <= |x| < 2^11.
UDF_INLINE udf_u128 udf_exp_fraction(double x) {
  uint64_t bits = udf_f64_bits(x);
  int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
  udf_u128 significand = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
  int shift = exponent - 52 + 128;
  udf_u128 magnitude = significand << shift;
  return bits >> 63 ? -magnitude : magnitude;
}

// exp(r), r in units of 2^-128 and below ln(2), in units of 2^-127.
UDF_INLINE udf_u128 udf_exp_fixed(udf_u128 r) {
  unsigned i = (unsigned)(r >> 121);
  r -= (udf_u128)i << 121;
  udf_u128 p = udf_exp_inverse_factorial[0];
  int terms = (int)(sizeof udf_exp_inverse_factorial / sizeof p);
  for (int term = 1; term < terms; ++term)
    p = udf_exp_inverse_factorial[term] + udf_high_product(r, p);
  udf_u128 less_one = r + udf_high_product(r, udf_high_product(r, p));
  udf_u128 cut = udf_exp_cut[i];
  return cut + udf_high_product(cut, less_one);
}

// 2^k times y, in units of 2^-127 and below 2, rounded.
UDF_INLINE double udf_exp_round(udf_u128 y, int k) {
  // Drop what lies below the last place; no argument is half-way.
  int drop = k >= -1022 ? 75 : 75 - 1022 - k;
  uint64_t rounded = (uint64_t)(((y >> (drop - 1)) + 1) >> 1);
  uint64_t exponent = k >= -1022 ? (uint64_t)(k + 1022) << 52 : 0;
  return udf_f64_from_bits(exponent + rounded);
}

static UDF_COLD double udf_exp_accurate(double x) {
  if (x != x)
    return x + x;
  if (x > EXP_MAX)
    return __builtin_inf();
  if (x < EXP_MIN)
    return 0;
  if (__builtin_fabs(x) < 0x1p-54)
    return 1.0 + x;
  // floor(x / ln(2)), or one less: never one more.
  double quotient = x * EXP_INV_LN2 - 0x1p-30;
  int k = (int)quotient - (x < 0);
  udf_u128 count = (udf_u128)(k < 0 ? -k : k);
  udf_u128 multiple = count * EXP_LN2_WORDS + (count * EXP_LN2_REST >> 64);
  udf_u128 fraction = udf_exp_fraction(x);
  // Modulo 2^128; the true difference is between 0 and 1.
  udf_u128 r = k < 0 ? fraction + multiple : fraction - multiple;
  if (r >= EXP_LN2_WORDS) {
    r -= EXP_LN2_WORDS;
    k += 1;
  }
  return udf_exp_round(udf_exp_fixed(r), k);
}
