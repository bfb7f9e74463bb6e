//===- trig.h - Correctly rounded float64 sin and cos ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Two steps (Ziv, ACM TOMS 17(3), 1991): a fast path in pairs of doubles, with
// a rounding test, and integers of 192 bits for what it leaves undecided. All
// forms try a quick path first.
//
// n is x 16/pi rounded, r = x - n pi/16, and
//
//   sin(x) = (-1)^q (S cos(r) + C sin(r)),   n = 16 q + j, |r| < 2^-3.34
//
// with S and C the sine and cosine of j pi/16; cos(x) is the sine of n + 8. S
// and C are sums of three floats, as tables of 16 floats stay in registers
// (udf-tables); the first two make a double.
//
// pi/16 is STEP_HI + STEP_MIDDLE + STEP_LO, and |x| <= 2^23. x - n STEP_HI is
// exact: n is zero, or both terms are multiples of 2^-56 and the difference is
// below 2^-3. The middle has 27 bits, and n < 2^26: n STEP_MIDDLE is exact. So
// is the pair h, e with h + e = x - n (STEP_HI + STEP_MIDDLE): either the first
// term is twice as large as the second, or h is exact, as both are multiples of
// 2^-84 and below 2^-30. l = e - n STEP_LO, and r = h + l.
//
//   sin(r) = sin(h) + l cos(h),   cos(r) = cos(h) - l sin(h)
//
// w + w_lo = -h^2/2 is an exact pair, and cos(h) = 1 + w + w_lo + w^2 c(w). S +
// C h and its sum with S w have exact errors, as what is added is zero or at
// most half as large.
//
// Quick path, |x| <= QUICK_LIMIT. sin(h) - h = h w s(w) is a double. The error
// is largest at the ends of the steps, where the roundings of C h w s(w) count,
// and falls with h^3. So the margin follows w, and is relative to the sum for
// the rest: what n STEP_LO lacks beside a multiple of pi/2 above all. Gappa
// bounds the roundings of the terms (trig.gappa), and
// tests/native/test_float64_bounds.py adds up the rest for each j and on pieces
// of h: QUICK_EXTENT z/2 + QUICK_WIDTH |sum| is more, z = h^2. Within the limit
// no double is nearer to a multiple of pi/2 than the test finds by trying all.
//
// Fast path. -h^3/6 = h w/3 is a pair too, whose first part is added with its
// error, and h^5 f(z) a double. What is left is below 2^-17, and its roundings,
// relative to the result, below FAST_WIDTH (Gappa and the same tests). What n
// STEP_LO lacks and its roundings are below n FAST_DRIFT.
//
// When the two sums of a rounding test round to the same double, that is the
// result's rounding. Larger, infinite and NaN arguments are left to the
// accurate path.
//
// Accurate path. sin(x) is x, and cos(x) 1, for |x| < 2^-27. Else x is a whole
// number m < 2^53 times a power of two, and x 2/pi modulo 4 is m times a window
// of 320 bits of 2/pi, of which 318 are below the point (Payne and Hanek, ACM
// SIGNUM Newsletter 18(1), 1983); what lies below the window is less than
// 2^-264. No double is nearer to a multiple of pi/2 than 2^-61 (Kahan; see
// Muller, Elementary Functions, 3rd edition, 11.3), so that 192 bits from the
// first that is set are known. Sine and cosine of the angle, which is below
// pi/4, are Taylor polynomials.
// With 128 bits they have less than 2^7 units of 2^-128 of error, relative: 17
// terms, each truncated in the last place, and three products; twice as much is
// allowed for. What that leaves undecided is done again with 192 bits and 23
// terms, with a relative error below 2^-184.
// Published searches end at pi; of their cases in hard.txt the nearest to the
// middle of two doubles is 2^-112.5 from it. No search covers all others. That
// one of 2^64 arguments is nearer than 2^-184 has odds of 2^-66; 2^-117 is to
// be expected.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_TRIG_D_H
#define UDF_TRIG_D_H

#include "fixed.h"
#include "wide.h"

#include "trig_constants.h"

#define TRIG_QUICK_EXTENT 0x1.8p-55
#define TRIG_QUICK_WIDTH 0x1.cp-65
#define TRIG_QUICK_LIMIT 0x1p10
#define TRIG_FAST_WIDTH 0x1.ap-66
#define TRIG_FAST_DRIFT 0x1p-134

// Terms of the series that 128 bits need, and 2^8 units of 2^-128 for their
// error.
#define TRIG_SHORT_TERMS 17
#define TRIG_SHORT_ERROR ((udf_u128)1 << (53 + 8))

//===----------------------------------------------------------------------===//
// Reduction and tables
//===----------------------------------------------------------------------===//

// x as n pi/16 + h + l; the low bits of i are those of n and a turn.
typedef struct {
  uint64_t i;
  double n, h, l;
} udf_trig_argument;

UDF_INLINE udf_trig_argument udf_trig_nearest_step(double x, unsigned turn) {
  // Both are whole numbers: the turn changes no rounding.
  double magic = UDF_ROUND_MAGIC + turn;
  double shifted = UDF_FMA(x, TRIG_INV_STEP, magic);
  double n = shifted - magic;
  uint64_t i = udf_f64_bits(shifted);
#ifdef __FMA__
  double first = __builtin_fma(n, -TRIG_STEP_HI, x);
#else
  udf_dd multiple = udf_two_prod(n, TRIG_STEP_HI);
  double first = (x - multiple.hi) - multiple.lo;
#endif
  // n STEP_MIDDLE is exact.
  double h = UDF_FMA(n, -TRIG_STEP_MIDDLE, first);
  double e = UDF_FMA(n, -TRIG_STEP_MIDDLE, first - h);
  return (udf_trig_argument){i, n, h, UDF_FMA(n, -TRIG_STEP_LO, e)};
}

// S and C: a double, and what it lacks.
typedef struct {
  double s, s_rest, c, c_rest;
} udf_trig_step;

UDF_INLINE udf_trig_step udf_trig_look_up(uint64_t i) {
  double s = (double)udf_trig_sin_high[i % TRIG_STEPS] +
             (double)udf_trig_sin_low[i % TRIG_STEPS];
  double c = (double)udf_trig_cos_high[i % TRIG_STEPS] +
             (double)udf_trig_cos_low[i % TRIG_STEPS];
  return (udf_trig_step){s, (double)udf_trig_sin_rest[i % TRIG_STEPS], c,
                         (double)udf_trig_cos_rest[i % TRIG_STEPS]};
}

// c + a b with its error, for c that is zero or at least twice as large.
UDF_INLINE udf_dd udf_trig_add(double a, double b, double c) {
#ifdef __FMA__
  double sum = __builtin_fma(a, b, c);
  return (udf_dd){sum, __builtin_fma(a, b, c - sum)};
#else
  udf_dd product = udf_two_prod(a, b);
  udf_dd sum = udf_fast_two_sum(c, product.hi);
  return (udf_dd){sum.hi, sum.lo + product.lo};
#endif
}

// w + w_lo = -z/2, w^2, and cos(h) - 1 - w.
typedef struct {
  double w, w_lo, w2, cosine;
} udf_trig_even;

UDF_INLINE udf_trig_even udf_trig_even_part(double h) {
  // The polynomials are in powers of -2 w.
  udf_dd w = udf_two_prod(h, -0.5 * h);
  double w2 = w.hi * w.hi;
  double c01 = UDF_FMA(w.hi, -8 * TRIG_C1, 4 * TRIG_C0);
  double c23 = UDF_FMA(w.hi, -32 * TRIG_C3, 16 * TRIG_C2);
  return (udf_trig_even){w.hi, w.lo, w2,
                         UDF_FMA(w2, UDF_FMA(w2, c23, c01), w.lo)};
}

// The parts of the result with l and what S and C lack, and a number; sine is
// sin(h) - h.
UDF_INLINE double udf_trig_small(udf_trig_argument of, udf_trig_step at,
                                 double w, double sine, double more) {
  double by_sine = UDF_FMA(-of.l, at.s, at.c_rest);
  double by_cosine = UDF_FMA(of.l, at.c, at.s_rest);
  return UDF_FMA(by_cosine, 1.0 + w, UDF_FMA(by_sine, of.h + sine, more));
}

//===----------------------------------------------------------------------===//
// Quick path
//===----------------------------------------------------------------------===//

// sin(x + turn pi/16), for |x| <= QUICK_LIMIT.
UDF_INLINE double udf_trig_quick(double x, unsigned turn, int *hard) {
  udf_trig_argument of = udf_trig_nearest_step(x, turn);
  udf_trig_step at = udf_trig_look_up(of.i);
  udf_trig_even even = udf_trig_even_part(of.h);
  double w = even.w, w2 = even.w2;
  double s01 = UDF_FMA(w, 4 * TRIG_S1, -2 * TRIG_S0);
  double s23 = UDF_FMA(w, 16 * TRIG_S3, -8 * TRIG_S2);
  double s = UDF_FMA(w2, UDF_FMA(w2, -32 * TRIG_S4, s23), s01);
  double sine = of.h * w * s;

  udf_dd sum = udf_trig_add(at.c, of.h, at.s);
  udf_dd t = udf_trig_add(at.s, w, sum.hi);
  double margin =
      UDF_FMA(w, -TRIG_QUICK_EXTENT, __builtin_fabs(t.hi) * TRIG_QUICK_WIDTH);
  double less = udf_trig_small(of, at, w, sine, -margin);
  less = UDF_FMA(at.s, even.cosine, less);
  less = UDF_FMA(at.c, sine, less) + (sum.lo + t.lo);
  double lower = t.hi + less;
  double upper = t.hi + UDF_FMA(2.0, margin, less);
  // NaN is hard.
  *hard = (upper != lower) | !(__builtin_fabs(x) <= TRIG_QUICK_LIMIT);
  return udf_f64_from_bits(udf_f64_bits(upper) ^ (of.i / TRIG_STEPS << 63));
}

//===----------------------------------------------------------------------===//
// Fast path
//===----------------------------------------------------------------------===//

// sin(x + turn pi/16).
UDF_INLINE double udf_trig_fast(double x, unsigned turn, int *hard) {
  udf_trig_argument of = udf_trig_nearest_step(x, turn);
  udf_trig_step at = udf_trig_look_up(of.i);
  udf_trig_even even = udf_trig_even_part(of.h);
  double w = even.w, w2 = even.w2;
  // third + third_lo = -h^3/6, with w_lo in it.
  udf_dd cube = udf_two_prod(of.h, w);
  double cube_lo = UDF_FMA(of.h, even.w_lo, cube.lo);
  udf_dd third = udf_two_prod(cube.hi, TRIG_THIRD_HI);
  double third_lo = UDF_FMA(cube_lo, TRIG_THIRD_HI,
                            UDF_FMA(cube.hi, TRIG_THIRD_LO, third.lo));
  double f01 = UDF_FMA(w, -8 * TRIG_F1, 4 * TRIG_F0);
  double f23 = UDF_FMA(w, -32 * TRIG_F3, 16 * TRIG_F2);
  double f = UDF_FMA(w2, UDF_FMA(w2, 64 * TRIG_F4, f23), f01);
  double fifth = of.h * w2 * f;

  udf_dd sum = udf_trig_add(at.c, of.h, at.s);
  udf_dd t = udf_trig_add(at.s, w, sum.hi);
  udf_dd u = udf_trig_add(at.c, third.hi, t.hi);
  double low =
      udf_trig_small(of, at, w, third.hi + fifth, sum.lo + t.lo + u.lo);
  low += UDF_FMA(at.s, even.cosine, at.c * (fifth + third_lo));
  double margin = UDF_FMA(__builtin_fabs(u.hi), TRIG_FAST_WIDTH,
                          __builtin_fabs(of.n) * TRIG_FAST_DRIFT);
  double upper = u.hi + (low + margin);
  double lower = u.hi + (low - margin);
  // NaN is hard.
  *hard = (upper != lower) | !(__builtin_fabs(x) <= TRIG_LIMIT);
  return udf_f64_from_bits(udf_f64_bits(upper) ^ (of.i / TRIG_STEPS << 63));
}

//===----------------------------------------------------------------------===//
// Accurate path
//===----------------------------------------------------------------------===//

// An angle below pi/4 (1 + 2^-50): fraction 2^-(192 + places).
typedef struct {
  udf_wide fraction;
  int places;
  unsigned quadrant; // of the whole angle, modulo 4
  int negative;      // the angle is to be taken with the other sign
} udf_trig_angle;

// The distance of |x| from the nearest multiple of pi/2, for |x| >= 2^-27.
UDF_INLINE udf_trig_angle udf_trig_reduce(double x) {
  uint64_t bits = udf_f64_bits(x) & UINT64_C(0x7fffffffffffffff);
  uint64_t m = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
  // |x| = m 2^(exponent); the window begins with what m makes 2.
  int exponent = (int)(bits >> 52) - 1075;
  // For |x| < 2^-4 the window would begin before the table; x 2/pi is shifted
  // instead.
  int start = exponent - 2 + 64 < 0 ? 0 : exponent - 2 + 64;
  int late = start - (exponent - 2 + 64);
  uint64_t product[6] = {0};
  uint64_t carry = 0;
  for (int i = 0; i < 5; ++i) { // the lowest word first
    const uint64_t *at = udf_trig_two_over_pi + start / 64 + 4 - i;
    int shift = start % 64;
    uint64_t word = shift ? at[0] << shift | at[1] >> (64 - shift) : at[0];
    unsigned __int128 part = (unsigned __int128)word * m + carry;
    product[i] = (uint64_t)part;
    carry = (uint64_t)(part >> 64);
  }
  udf_trig_angle angle = {.places = late};
  if (late == 0) {
    angle.quadrant = (unsigned)(product[4] >> 62);
    for (int i = 4; i >= 0; --i)
      product[i] = product[i] << 2 | (i ? product[i - 1] >> 62 : 0);
    if (product[4] >> 63) { // the next multiple is nearer
      angle.quadrant = (angle.quadrant + 1) & 3;
      angle.negative = 1;
      uint64_t up = 1;
      for (int i = 0; i < 5; ++i) {
        product[i] = ~product[i] + up;
        up &= product[i] == 0;
      }
    }
  } else {
    angle.places -= 2;
  }
  int top = 4;
  for (; product[top] == 0; --top)
    angle.places += 64;
  udf_wide fraction = {{product[top - 2], product[top - 1], product[top]}};
  uint64_t below = top > 2 ? product[top - 3] : 0;
  int count;
  fraction = udf_wide_normal(fraction, &count);
  if (count > 0)
    fraction.word[0] |= below >> (64 - count);
  // Of pi/2: times pi/4, one place less.
  angle.fraction = udf_wide_product(fraction, udf_trig_quarter);
  angle.places += count - 1;
  return angle;
}

// The upper 128 bits.
UDF_INLINE udf_u128 udf_trig_upper(udf_wide a) {
  return (udf_u128)a.word[2] << 64 | a.word[1];
}

// The sign and rounded significand of a result, which lies between 2^-(exponent
// + 1) and 2^-exponent; upper has its first 64 bits.
UDF_INLINE double udf_trig_round(uint64_t upper, int exponent, int negative) {
  uint64_t rounded = ((upper >> 10) + 1) >> 1;
  uint64_t field = (uint64_t)(1021 - exponent) << 52;
  return udf_f64_from_bits((uint64_t)negative << 63 | (field + rounded));
}

// Sine, or cosine, of an angle with 192 bits.
static UDF_COLD double udf_trig_long(const udf_trig_angle *angle, int cosine,
                                     int negative) {
  int count = (int)(sizeof udf_trig_sin_series / sizeof *udf_trig_sin_series);
  const udf_wide *terms = cosine ? udf_trig_cos_series : udf_trig_sin_series;
  udf_wide square = udf_wide_shift_right(
      udf_wide_product(angle->fraction, angle->fraction), 2 * angle->places);
  udf_wide y = terms[0];
  for (int i = 1; i < count; ++i)
    y = udf_wide_difference(terms[i], udf_wide_product(square, y));
  if (!cosine)
    y = udf_wide_product(angle->fraction, y);
  int shift;
  y = udf_wide_normal(y, &shift);
  int places = shift - 1 + (cosine ? 0 : angle->places);
  return udf_trig_round(y.word[2], places, negative);
}

// The same with 128 bits, where they decide.
static UDF_COLD double udf_trig_short(const udf_trig_angle *angle, int cosine,
                                      int negative) {
  int count = (int)(sizeof udf_trig_sin_series / sizeof *udf_trig_sin_series);
  const udf_wide *terms = cosine ? udf_trig_cos_series : udf_trig_sin_series;
  udf_u128 fraction = udf_trig_upper(angle->fraction);
  udf_u128 square = udf_high_product(fraction, fraction);
  square = angle->places < 64 ? square >> 2 * angle->places : 0;
  udf_u128 y = udf_trig_upper(terms[count - TRIG_SHORT_TERMS]);
  for (int i = count - TRIG_SHORT_TERMS + 1; i < count; ++i)
    y = udf_trig_upper(terms[i]) - udf_high_product(square, y);
  if (!cosine)
    y = udf_high_product(fraction, y);
  int shift = __builtin_clzll((uint64_t)(y >> 64));
  y <<= shift;
  // The bits below the last place, against the middle.
  udf_u128 below = y << 53, middle = (udf_u128)1 << 127;
  if ((below < middle ? middle - below : below - middle) <= TRIG_SHORT_ERROR)
    return udf_trig_long(angle, cosine, negative);
  int places = shift - 1 + (cosine ? 0 : angle->places);
  return udf_trig_round((uint64_t)(y >> 64), places, negative);
}

// sin(|x| + turn pi/2), |x| >= 2^-27 and finite.
static UDF_COLD double udf_trig_accurate(double x, unsigned turn) {
  udf_trig_angle angle = udf_trig_reduce(x);
  unsigned quadrant = angle.quadrant + turn;
  int cosine = quadrant & 1;
  // An angle counted from the next multiple changes the sign of its sine.
  int negative = (int)(quadrant >> 1 & 1) ^ (cosine ? 0 : angle.negative);
  return udf_trig_short(&angle, cosine, negative);
}

#endif // UDF_TRIG_D_H
