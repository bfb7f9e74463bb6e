//===- tanh.c - Correctly rounded float64 tanh ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Two steps (Ziv, ACM TOMS 17(3), 1991): a fast path in pairs of doubles, with
// a rounding test, and integers of 192 bits for what it leaves undecided.
//
//   tanh(x) = P / (P + 2),  P = exp(2 |x|) - 1,  with the sign of x
//
// Fast path. For |x| < 2^-28 the result is x: x^2/3 is below 2^-57. Above 20 it
// is that of 20, which is 1. For the others exp.c reduces 2|x| to n and r, and
// exp(2|x|) is S (1 + c + w) with S = 2^k T, a double. The sums
//
//   S - 1 + S c  and  P + 2
//
// are exact: S >= 1; S - 1 is zero or larger than S |c|, as n is then at least
// 1 (tests/native/test_float64_bounds.py); and a two-sum takes any order. All
// small parts are in low, which is added to the first sum without error. The
// quotient q0 = P (1 / D) is corrected by q1 = (P - q0 D) / D, in which P - q0
// D has a relative error below 2^-50: less than 2^-100 in the sum of both.
//
// Error of low. With U = 2^-53, r^3 q(r) has a relative error below 6 U (Gappa,
// tanh.gappa, with what q leaves out); w, S w and the sum with the exact parts
// add 3 U. As |q| < 0.17, the whole is below EXTENT S |r r2|. The rest is
// relative to P: what the constants of exp's table leave out, 2^-74 of S, which
// is below 48 P if n is not zero, and zero if it is; and roundings below
// 2^-90. WIDTH is more than both. The relative error of tanh is that of P times
// 2 / D, which is at most 1. So the true value lies between the two sums of the
// rounding test, and when they round to the same double, that is its rounding.
//
// Accurate path. b = 2|x| = k log(2) + t 2^8. 1 - exp(-t) is a Taylor series,
// and eight times g becomes 2 g - g^2, which is 1 - exp(-2t). N = 1 - exp(-b)
// has an error below 2^-180: 17 terms and 8 squares, truncated in units of
// 2^-192 and doubled 8 times, and k times what log(2) lacks. tanh is N / (2 -
// N), and N > 2^-27.1: the relative error is below 2^-150. The quotient is
// taken to 54 bits, with an exact remainder.
// For |x| < 2^-20 hard_cases.py tries the arguments next to every one whose
// tanh is the middle of two doubles. No search of ours covers the others;
// CORE-MATH's list, from V. Lefevre's, has cases of all exponents, none nearer
// than 2^-106 among those in hard.txt.
//
// Of 5 million random arguments between -4 and 4 364 take the accurate path, of
// as many between -0.05 and 0.05 1,138. The hardest case known to us, 2^-132.42
// from the middle of two doubles, relative:
//   x      0x1.e0000000000e1p-22 (0x3e9e0000000000e1)
//
//===----------------------------------------------------------------------===//

#include "../exp/exp.c"

#include "../common/wide.h"

#include "constants.h"

#define TANH_EXTENT 0x1.cp-53
#define TANH_WIDTH 0x1p-68
#define TANH_SMALL 0x1p-28
#define TANH_END 20.0

UDF_INLINE double udf_tanh_fast(double x, int *hard) {
  double magnitude = __builtin_fabs(x);
  _Bool small = magnitude < TANH_SMALL;
  // NaN stays, and is hard.
  double b = 2.0 * (magnitude > TANH_END ? TANH_END : magnitude);
  udf_exp_argument of = udf_exp_reduce(b);
  udf_exp_part part = udf_exp_near_one(of);
  double s = udf_f64_from_bits(udf_f64_bits(part.t) + (of.i / EXP_STEPS << 52));

  udf_dd less_one = udf_fast_two_sum(s, -1.0);
  udf_dd product = udf_two_prod(s, part.c);
  udf_dd sum = udf_fast_two_sum(less_one.hi, product.hi);
  double low = UDF_FMA(s, part.w, sum.lo + (less_one.lo + product.lo));
  udf_dd p = udf_fast_two_sum(sum.hi, low);
  udf_dd d = udf_two_sum(2.0, p.hi);
  double d_low = d.lo + p.lo;

  double inverse = 1.0 / d.hi;
  double q0 = p.hi * inverse;
#ifdef __FMA__
  double rest = __builtin_fma(-q0, d.hi, p.hi);
#else
  udf_dd back = udf_two_prod(q0, d.hi);
  double rest = (p.hi - back.hi) - back.lo;
#endif
  double q1 = (rest + UDF_FMA(-q0, d_low, p.lo)) * inverse;
  double margin = inverse * UDF_FMA(s * __builtin_fabs(part.cube), TANH_EXTENT,
                                    p.hi * TANH_WIDTH);
  double upper = q0 + (q1 + margin);
  double lower = q0 + (q1 - margin);
  *hard = !small & (upper != lower);
  uint64_t sign = udf_f64_bits(x) & UINT64_C(0x8000000000000000);
  double y = udf_f64_from_bits(udf_f64_bits(upper) | sign);
  return small ? x : y;
}

// 1 - exp(-b) in units of 2^-192, for 2^-27 <= b < 40.
UDF_INLINE udf_wide udf_tanh_fixed(double b) {
  uint64_t bits = udf_f64_bits(b);
  uint64_t m = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
  // In units of 2^-186, below 2^6.
  int place = (int)(bits >> 52) - 1075 + 186;
  udf_wide rest = {{0, 0, 0}};
  int word = place / 64, shift = place % 64;
  rest.word[word] = m << shift;
  if (word < 2 && shift > 0)
    rest.word[word + 1] = m >> (64 - shift);

  int k = 0;
  for (; udf_wide_not_less(rest, udf_tanh_ln2); ++k)
    rest = udf_wide_difference(rest, udf_tanh_ln2);
  // In units of 2^-192, divided by 2^8.
  udf_wide t = udf_wide_shift_right(rest, 2);

  int terms = (int)(sizeof udf_tanh_series / sizeof *udf_tanh_series);
  udf_wide g = udf_tanh_series[0];
  for (int i = 1; i < terms; ++i)
    g = udf_wide_difference(udf_tanh_series[i], udf_wide_product(t, g));
  g = udf_wide_twice(udf_wide_product(t, g));
  for (int i = 0; i < 8; ++i)
    g = udf_wide_difference(udf_wide_twice(g), udf_wide_product(g, g));
  if (k == 0)
    return g;
  udf_wide zero = {{0, 0, 0}};
  return udf_wide_difference(
      zero, udf_wide_shift_right(udf_wide_difference(zero, g), k));
}

// n / (2 - n) rounded; n is in units of 2^-192 and at least 2^-63.
UDF_INLINE double udf_tanh_quotient(udf_wide n) {
  udf_wide zero = {{0, 0, 0}};
  // (2 - n) / 2, in [1/2, 1).
  udf_wide d = udf_wide_difference(zero, udf_wide_shift_right(n, 1));
  int count;
  n = udf_wide_normal(n, &count);
  int above = udf_wide_not_less(n, d);
  int bits = above ? 53 : 54;
  // An estimate of n 2^bits / d that is not too large, and what it leaves.
  double ratio = (double)n.word[2] / (double)d.word[2];
  uint64_t quotient = (uint64_t)(ratio * (above ? 0x1p53 : 0x1p54)) - 16;
  uint64_t left[4];
  unsigned __int128 carry = 0;
  uint64_t borrow = 0;
  for (int i = 0; i < 4; ++i) {
    uint64_t word = (i < 3 ? n.word[i] << bits : 0) |
                    (i > 0 ? n.word[i - 1] >> (64 - bits) : 0);
    carry += i < 3 ? (unsigned __int128)quotient * d.word[i] : 0;
    unsigned __int128 part = (unsigned __int128)word - (uint64_t)carry - borrow;
    left[i] = (uint64_t)part;
    borrow = (uint64_t)(part >> 64) & 1;
    carry >>= 64;
  }
  udf_wide rest = {{left[0], left[1], left[2]}};
  while (left[3] > 0 || udf_wide_not_less(rest, d)) {
    left[3] -= !udf_wide_not_less(rest, d);
    rest = udf_wide_difference(rest, d);
    quotient += 1;
  }
  // No argument is half-way.
  uint64_t rounded = (quotient + 1) >> 1;
  uint64_t field = (uint64_t)(1020 + above - count) << 52;
  return udf_f64_from_bits(field + rounded);
}

static UDF_COLD double udf_tanh_accurate(double x) {
  if (x != x)
    return x + x;
  double magnitude = __builtin_fabs(x);
  if (magnitude < TANH_SMALL)
    return x;
  double y = 1;
  if (magnitude < TANH_END)
    y = udf_tanh_quotient(udf_tanh_fixed(2.0 * magnitude));
  return x < 0 ? -y : y;
}
