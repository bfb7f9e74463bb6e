//===- trig.h - Correctly rounded float64 sin and cos ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Two steps (Ziv, ACM TOMS 17(3), 1991): a fast path in pairs of doubles, with
// a rounding test, and integers of 192 bits for what it leaves undecided. The
// vector and array forms try a quick path first at AVX-512.
//
// Fast path, |x| <= 2^23. n is x 16/pi rounded, r = x - n pi/16, and
//
//   sin(x) = (-1)^q (S cos(r) + C sin(r)),   n = 16 q + j, |r| < 2^-3.34
//
// with S and C the sine and cosine of j pi/16; cos(x) is the sine of n + 8. S
// and C are sums of three floats, as tables of 16 floats stay in registers
// (udf-tables); the first two make a double.
//
// pi/16 is STEP_HI + STEP_MIDDLE + STEP_LO. x - n STEP_HI is exact: n is zero,
// or both terms are multiples of 2^-56 and the difference is below 2^-3. The
// middle has 27 bits, and n < 2^26: n STEP_MIDDLE is exact. So is the pair h,
// e with h + e = x - n (STEP_HI + STEP_MIDDLE): either the first term is twice
// as large as the second, or h is exact, as both are multiples of 2^-84 and
// below 2^-30. l = e - n STEP_LO, and r = h + l.
//
//   sin(r) = h + h^3 s(z) + l cos(r),   cos(r) = 1 - z/2 + z^2 c(z) - l sin(r)
//
// with z = h^2 as an exact pair. S - S z/2 + C h is added up without error in
// t and its low parts, the larger term first or a zero; everything else, and
// those parts, are in low.
//
// Error of low. With U = 2^-53, C h^3 s(z) + S z^2 c(z) has roundings below 6 U
// (Gappa, trig.gappa), and the sums, with that of the rounding test, add 4 U;
// of h^3 s(z), the larger by far, that is below EXTENT |h z|. Relative to t the
// rest, the constants in S and C among it, is below WIDTH. What n STEP_LO lacks
// and its roundings are below n DRIFT. The margin is the sum of the three
// (tests/native/test_float64_bounds.py adds them up).
// So the true value lies between the two sums of the rounding test, and when
// they round to the same double, that is its rounding. Larger, infinite and NaN
// arguments are left to the accurate path.
//
// Quick path, at AVX-512, where tables of 32 floats stay in registers: |x| <=
// QUICK_LIMIT, the step is pi/32 and |r| < 2^-4.34. The reduction is the fast
// path's, and w + w.lo = -z/2 an exact pair. S + C h and its sum with S w are
// fused multiply-adds, and so are the errors of both, as S, the sum and t are
// within a factor of 2. Left out are products of l and of the third floats that
// are below 2^-65. The error is largest at the ends of the steps about 0, where
// the roundings of h^3 s(z) are 2^-61.4 of the result; elsewhere it is far
// below. So the margin follows z, and is relative to t for the rest, what n
// STEP_LO lacks beside a multiple of pi/2 above all. Gappa bounds the roundings
// (trig_quick.gappa), and tests/native/test_float64_bounds.py adds up the rest
// for each j and on pieces of h: QUICK_EXTENT z/2 + QUICK_WIDTH |t| is more.
// Within the limit no double is nearer to a multiple of pi/2 than the test
// finds by trying all.
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

#define TRIG_EXTENT 0x1.cp-53
#define TRIG_WIDTH 0x1p-70
#define TRIG_DRIFT 0x1p-134
#define TRIG_QUICK_EXTENT 0x1.5p-56
#define TRIG_QUICK_WIDTH 0x1.cp-64
#define TRIG_QUICK_LIMIT 0x1p10

// Terms of the series that 128 bits need, and 2^8 units of 2^-128 for their
// error.
#define TRIG_SHORT_TERMS 17
#define TRIG_SHORT_ERROR ((udf_u128)1 << (53 + 8))

//===----------------------------------------------------------------------===//
// Fast path
//===----------------------------------------------------------------------===//

// sin(x + turn pi/16).
UDF_INLINE double udf_trig_fast(double x, uint64_t turn, int *hard) {
  double shifted = UDF_FMA(x, TRIG_INV_STEP, UDF_ROUND_MAGIC);
  double n = shifted - UDF_ROUND_MAGIC;
  uint64_t i = udf_f64_bits(shifted) + turn;
#ifdef __FMA__
  double first = __builtin_fma(n, -TRIG_STEP_HI, x);
#else
  udf_dd multiple = udf_two_prod(n, TRIG_STEP_HI);
  double first = (x - multiple.hi) - multiple.lo;
#endif
  double second = n * TRIG_STEP_MIDDLE;
  double h = first - second;
  double l = UDF_FMA(n, -TRIG_STEP_LO, (first - h) - second);

  double s = (double)udf_trig_sin_high[i % TRIG_STEPS] +
             (double)udf_trig_sin_low[i % TRIG_STEPS];
  double s_rest = (double)udf_trig_sin_rest[i % TRIG_STEPS];
  double c = (double)udf_trig_cos_high[i % TRIG_STEPS] +
             (double)udf_trig_cos_low[i % TRIG_STEPS];
  double c_rest = (double)udf_trig_cos_rest[i % TRIG_STEPS];

  udf_dd square = udf_two_prod(h, h);
  double z = square.hi, z2 = z * z, cube = h * z;
  double s12 = UDF_FMA(z, TRIG_S2, TRIG_S1);
  double s34 = UDF_FMA(z, TRIG_S4, TRIG_S3);
  double s_poly = UDF_FMA(z, UDF_FMA(z2, s34, s12), TRIG_S0);
  double c01 = UDF_FMA(z, TRIG_C1, TRIG_C0);
  double c23 = UDF_FMA(z, TRIG_C3, TRIG_C2);
  double sine = cube * s_poly;
  double cosine = z2 * UDF_FMA(z2, c23, c01);

  udf_dd linear = udf_two_prod(c, h);
  udf_dd quadratic = udf_two_prod(s, -0.5 * z);
  udf_dd sum = udf_fast_two_sum(s, linear.hi);
  udf_dd t = udf_fast_two_sum(sum.hi, quadratic.hi);

  double sin_r = h + sine;
  double cos_r = 1.0 + UDF_FMA(-0.5, z, cosine);
  double slope = UDF_FMA(c, cos_r, -(s * sin_r));
  double rest = UDF_FMA(s_rest, cos_r, c_rest * sin_r);
  rest = UDF_FMA(s, -0.5 * square.lo, UDF_FMA(l, slope, rest));
  double exact = (sum.lo + t.lo) + (linear.lo + quadratic.lo);
  double low = UDF_FMA(s, cosine, c * sine) + (exact + rest);
  double margin = UDF_FMA(__builtin_fabs(cube), TRIG_EXTENT,
                          UDF_FMA(__builtin_fabs(t.hi), TRIG_WIDTH,
                                  __builtin_fabs(n) * TRIG_DRIFT));
  double upper = t.hi + (low + margin);
  double lower = t.hi + (low - margin);
  // NaN is hard.
  *hard = (upper != lower) | !(__builtin_fabs(x) <= TRIG_LIMIT);
  return udf_f64_from_bits(udf_f64_bits(upper) ^ (i / TRIG_STEPS << 63));
}

//===----------------------------------------------------------------------===//
// Quick path
//===----------------------------------------------------------------------===//

// sin(x + turn pi/16), for |x| <= QUICK_LIMIT.
UDF_INLINE double udf_trig_quick(double x, uint64_t turn, int *hard) {
#ifdef __AVX512F__
  double shifted = UDF_FMA(x, 2 * TRIG_INV_STEP, UDF_ROUND_MAGIC);
  double n = shifted - UDF_ROUND_MAGIC;
  uint64_t i = udf_f64_bits(shifted) + 2 * turn;
  double first = UDF_FMA(n, -0.5 * TRIG_STEP_HI, x);
  double h = UDF_FMA(n, -0.5 * TRIG_STEP_MIDDLE, first);
  double l = UDF_FMA(n, -0.5 * TRIG_STEP_MIDDLE, first - h);
  l = UDF_FMA(n, -0.5 * TRIG_STEP_LO, l);

  double s = (double)udf_trig_quick_sin_high[i % TRIG_QUICK_STEPS] +
             (double)udf_trig_quick_sin_low[i % TRIG_QUICK_STEPS];
  double s_rest = (double)udf_trig_quick_sin_rest[i % TRIG_QUICK_STEPS];
  double c = (double)udf_trig_quick_cos_high[i % TRIG_QUICK_STEPS] +
             (double)udf_trig_quick_cos_low[i % TRIG_QUICK_STEPS];
  double c_rest = (double)udf_trig_quick_cos_rest[i % TRIG_QUICK_STEPS];

  // w + w_lo = -z/2; the polynomials are in powers of -2 w.
  double half = -0.5 * h;
  double w = h * half;
  double w_lo = UDF_FMA(h, half, -w);
  double s_poly = UDF_FMA(w, 16 * TRIG_QUICK_S3, -8 * TRIG_QUICK_S2);
  s_poly = UDF_FMA(w, s_poly, 4 * TRIG_QUICK_S1);
  s_poly = UDF_FMA(w, s_poly, -2 * TRIG_QUICK_S0);
  double c_poly = UDF_FMA(w, 16 * TRIG_QUICK_C2, -8 * TRIG_QUICK_C1);
  c_poly = UDF_FMA(w, c_poly, 4 * TRIG_QUICK_C0);
  double sine = (h * w) * s_poly;
  double cosine = UDF_FMA(w * w, c_poly, w_lo);

  double sum = UDF_FMA(c, h, s);
  double sum_lo = UDF_FMA(c, h, s - sum);
  double t = UDF_FMA(s, w, sum);
  double t_lo = UDF_FMA(s, w, sum - t);
  double low = UDF_FMA(s_rest, 1.0 + w, c_rest * (h + sine));
  low = UDF_FMA(l, UDF_FMA(-s, h, c), low);
  low = UDF_FMA(s, cosine, low);
  low = UDF_FMA(c, sine, low) + (sum_lo + t_lo);
  double margin =
      UDF_FMA(w, -TRIG_QUICK_EXTENT, __builtin_fabs(t) * TRIG_QUICK_WIDTH);
  double upper = t + (low + margin);
  double lower = t + (low - margin);
  // NaN is hard.
  *hard = (upper != lower) | !(__builtin_fabs(x) <= TRIG_QUICK_LIMIT);
  return udf_f64_from_bits(udf_f64_bits(upper) ^ (i / TRIG_QUICK_STEPS << 63));
#else
  return udf_trig_fast(x, turn, hard);
#endif
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
