//===- pow.c - Correctly rounded float64 pow ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Steps as Ziv's (ACM TOMS 17(3), 1991): a fast path in pairs of doubles with a
// rounding test, integers of 128 bits with another, and integers of 512 bits
// for what both leave undecided. |x|^y = exp(y log|x|).
//
// Fast path. log.c reduces |x| to k, c and r, |r| < 2^-4.87. A second table has
// c' of 12 bits after the point such that p = (1 + r) c' - 1 is below 2^-8.6:
// with d = c' - 1, r + d is exact, and p is the exact pair h + l of that and r
// d. Then
//
//   log|x| = (k log(2) - log(c) - log(c')) + log(1 + p)
//   log(1 + p) = t + t.lo + h^3 q(h) + l (1 - h + h^2),  t + t.lo = h - h^2/2
//
// The fast two-sums have a zero or the larger term first
// (tests/native/test_float64_bounds.py tries all table entries). L + L.lo is
// the sum, normalised. y L is an exact pair, and its lower part with y L.lo
// joins s of exp.c's reduction of the upper one.
//
// Error. With U = 2^-53, h^3 q(h) has a relative error below 5 U (Gappa,
// pow.gappa, with what q leaves out), and the sums add 4 U: below EXTENT |h^3|.
// Relative to L the tables' three floats leave out 2^-73, and the roundings of
// small parts are below 2^-90: WIDTH. |y| times both is the error of y log|x|,
// and less than twice that is the error of 2^(j/16) exp(r + s), to which exp.c
// adds what it bounds, with s below 2^-41.
// So the true value lies between the two sums of the rounding test, and when
// they round to the same double, that is its rounding. Subnormal, zero and
// infinite x, negative x with |y| >= 2^51 or y no whole number, subnormal
// results and NaN are left to the accurate path.
//
// Accurate path. Results that are doubles, or half-way between two, are found
// first: if |x| = a 2^b with a odd is not a power of two, y = n 2^-f has to be
// positive, a a 2^f-th power and a^y below 2^54. log2.c's sum has a relative
// error below 2^-124; times y, of which 2^-128 is cut, and with exp2's end,
// that is 2^-113 of the result. What that leaves undecided is done again with
// 512 bits: with l0 the nearest double to log(m), D = m exp(-l0) - 1 is below
// 2^-53, and log(m) = l0 + log(1 + D) a series of ten terms. exp is a series of
// 27 terms of the argument's 2^16th part, with 16 doublings. |y| < 2^64 for a
// result in range, so that the relative error is below 2^-420.
// No bound is known of how near a power comes to the middle of two doubles that
// it does not meet. 2^117 powers are in range, so that few are expected within
// 2^-170. Nearer ones have arguments next to 1, whose powers are nearly sums of
// few powers of two; hard_cases.py looks for those. 512 bits decide far more.
//
// Of 5 million random pairs with x between 0 and 10 and y between -5 and 5 325
// take the accurate path, of as many with x between 0.97 and 1.03 and y between
// -1000 and 1000 366. The hardest pair known to us, 2^-160.58 from the middle
// of two doubles, relative:
//   x      0x1.ffffffffffffdp-1 (0x3feffffffffffffd)
//   y     -0x1.5555555555554p-2 (0xbfd5555555555554)
//
//===----------------------------------------------------------------------===//

#include "../exp/exp.c"
#include "../log2/log2.c"

#include "../common/long.h"

#include "constants.h"

#define POW_EXTENT 0x1.ap-52
#define POW_WIDTH 0x1p-72
// Beyond these y log|x| the result is infinite, or zero.
#define POW_INFINITE 710.0
#define POW_ZERO -746.0
#define POW_EXP_MARGIN 0x1.6p-68
// 2^16 units of 2^-127 for the error of 128 bits.
#define POW_SHORT_ERROR 16

//===----------------------------------------------------------------------===//
// Fast path
//===----------------------------------------------------------------------===//

// log(x), and a bound of its error.
typedef struct {
  udf_dd value;
  double error;
} udf_pow_log;

UDF_INLINE udf_pow_log udf_pow_logarithm(double x) {
  uint64_t offset = udf_log_offset(udf_f64_bits(x));
  uint64_t i = offset >> LOG_STEP_SHIFT;
  double k = udf_log_exponent(offset);
  double r = udf_log_ratio(offset);
  uint64_t j = udf_f64_bits(UDF_FMA(r, POW_STEPS_TO_1, UDF_ROUND_MAGIC));
  double d = (double)udf_pow_less_one[j % POW_STEPS];
  udf_dd product = udf_two_prod(r, d);
  udf_dd p = udf_two_sum(r + d, product.hi);
  double h = p.hi, l = p.lo + product.lo;

  udf_dd square = udf_two_prod(h, h);
  double h2 = square.hi, cube = h * h2;
  double q01 = UDF_FMA(h, POW_Q1, POW_Q0);
  double q23 = UDF_FMA(h, POW_Q3, POW_Q2);
  double q45 = UDF_FMA(h, POW_Q5, POW_Q4);
  double q = UDF_FMA(h2, UDF_FMA(h2, q45, q23), q01);
  udf_dd t = udf_fast_two_sum(h, -0.5 * h2);
  double rest = cube * q +
                (UDF_FMA(-0.5, square.lo, t.lo) + l * UDF_FMA(h, h - 1.0, 1.0));

  double first =
      (double)udf_log_high[i % LOG_STEPS] + (double)udf_log_low[i % LOG_STEPS];
  double second =
      (double)udf_pow_high[j % POW_STEPS] + (double)udf_pow_low[j % POW_STEPS];
  double tiny = UDF_FMA(k, LOG_LN2_LO, (double)udf_log_rest[i % LOG_STEPS]) +
                (double)udf_pow_rest[j % POW_STEPS];
  udf_dd a = udf_fast_two_sum(k * LOG_LN2_HI, first);
  udf_dd b = udf_fast_two_sum(a.hi, second);
  udf_dd s = udf_fast_two_sum(b.hi, t.hi);
  double low = rest + (s.lo + (b.lo + (a.lo + tiny)));
  udf_dd value = udf_fast_two_sum(s.hi, low);
  double error = UDF_FMA(__builtin_fabs(cube), POW_EXTENT,
                         __builtin_fabs(value.hi) * POW_WIDTH);
  return (udf_pow_log){value, error};
}

UDF_INLINE double udf_pow_fast(double x, double y, int *hard) {
  double magnitude = __builtin_fabs(x);
  _Bool negative = x < 0;
  double shifted = y + UDF_ROUND_MAGIC;
  _Bool whole = (shifted - UDF_ROUND_MAGIC == y) & (__builtin_fabs(y) < 0x1p51);
  uint64_t sign = negative ? udf_f64_bits(shifted) << 63 : 0;

  udf_pow_log log = udf_pow_logarithm(magnitude);
  udf_dd product = udf_two_prod(y, log.value.hi);
  udf_exp_argument of = udf_exp_reduce(product.hi);
  of.s += UDF_FMA(y, log.value.lo, product.lo);
  double margin = UDF_FMA(2.0 * __builtin_fabs(y), log.error, POW_EXP_MARGIN);
  _Bool normal = (product.hi < EXP_MAX - 0x1p-30) &
                 (product.hi > EXP_NORMAL_MIN + 0x1p-30);
  int undecided;
  double power =
      udf_exp_scale(udf_exp_sum(of, margin), of.i, product.hi > POW_INFINITE,
                    product.hi < POW_ZERO, normal, &undecided);
  // NaN is hard.
  *hard = undecided | (negative & !whole) | !(magnitude >= 0x1p-1022) |
          !(magnitude <= 0x1.fffffffffffffp1023) | (y != y);
  return udf_f64_from_bits(udf_f64_bits(power) | sign);
}

//===----------------------------------------------------------------------===//
// Accurate path
//===----------------------------------------------------------------------===//

UDF_INLINE int udf_pow_whole(double y) {
  if (__builtin_fabs(y) >= 0x1p53)
    return 1;
  return (double)(int64_t)y == y;
}

UDF_INLINE int udf_pow_odd(double y) {
  return __builtin_fabs(y) < 0x1p53 && udf_pow_whole(y) && ((int64_t)y & 1);
}

// Zero, infinite and NaN arguments, without the sign of the result.
UDF_INLINE double udf_pow_special(double magnitude, double y) {
  if (magnitude != magnitude || y != y)
    return magnitude + y;
  if (magnitude == 1)
    return 1;
  if (y - y != 0) // infinite
    return (magnitude > 1) == (y > 0) ? __builtin_inf() : 0;
  return (magnitude == 0) == (y > 0) ? 0 : __builtin_inf();
}

// 2^k v, v in units of 2^-127 and in [1, 2), rounded, with ties to even; and
// how far v is from half-way.
typedef struct {
  double value;
  udf_u128 distance;
} udf_pow_rounded;

UDF_INLINE udf_pow_rounded udf_pow_round(udf_u128 v, int k) {
  if (k > 1023)
    return (udf_pow_rounded){__builtin_inf(), ~(udf_u128)0};
  if (k < -1075) // v is below half of the least double
    return (udf_pow_rounded){0, k < -1076 ? ~(udf_u128)0 : -v};
  int drop = k >= -1022 ? 75 : 75 - 1022 - k;
  uint64_t kept = drop < 128 ? (uint64_t)(v >> drop) : 0;
  udf_u128 half = (udf_u128)1 << (drop - 1);
  udf_u128 rest = v - (drop < 128 ? (udf_u128)kept << drop : 0);
  uint64_t up = rest > half || (rest == half && (kept & 1));
  uint64_t exponent = k >= -1022 ? (uint64_t)(k + 1022) << 52 : 0;
  return (udf_pow_rounded){udf_f64_from_bits(exponent + kept + up),
                           rest < half ? half - rest : rest - half};
}

// Whether x^y is a number of at most 54 bits, and its rounding.
UDF_INLINE int udf_pow_exact(double x, double y, double *result) {
  int shift = x < 0x1p-1022 ? 54 : 0;
  uint64_t bits = udf_f64_bits(shift ? x * 0x1p54 : x);
  uint64_t a = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
  int zeros = __builtin_ctzll(a);
  int b = (int)(bits >> 52) - 1075 - shift + zeros;
  a >>= zeros;
  if (a == 1) {
    udf_dd product = udf_two_prod(y, (double)b);
    if (product.lo != 0 || !udf_pow_whole(product.hi) ||
        __builtin_fabs(product.hi) > 2000)
      return 0;
    *result = udf_pow_round((udf_u128)1 << 127, (int)product.hi).value;
    return 1;
  }
  if (y < 0)
    return 0;
  for (int halvings = 0; !udf_pow_whole(y); ++halvings, y *= 2) {
    uint64_t root = (uint64_t)__builtin_sqrt((double)a);
    if (halvings == 5 || b % 2 != 0 || root * root != a)
      return 0;
    a = root;
    b /= 2;
  }
  if (y > 34) // 3^35 > 2^54
    return 0;
  uint64_t power = 1;
  for (int n = (int)y; n > 0; --n) {
    unsigned __int128 next = (unsigned __int128)power * a;
    if (next >> 54 != 0)
      return 0;
    power = (uint64_t)next;
  }
  int top = __builtin_clzll(power);
  *result =
      udf_pow_round((udf_u128)power << (64 + top), b * (int)y + 63 - top).value;
  return 1;
}

// |exp(z) - 1|, or with falling |exp(-z) - 1|, for 0 <= z < 1.
static UDF_COLD udf_long udf_pow_growth(const udf_long *z, int falling) {
  udf_long t = udf_long_shift_right(*z, POW_HALVINGS);
  int terms = (int)(sizeof udf_pow_factorial / sizeof *udf_pow_factorial);
  udf_long g = udf_pow_factorial[0];
  for (int i = 1; i < terms; ++i) {
    udf_long product = udf_long_product(&t, &g);
    g = udf_long_sum(udf_pow_factorial[i],
                     falling ? udf_long_minus(product) : product);
  }
  g = udf_long_product(&t, &g);
  for (int i = 0; i < POW_HALVINGS; ++i) {
    udf_long square = udf_long_product(&g, &g);
    g = udf_long_sum(udf_long_sum(g, g),
                     falling ? udf_long_minus(square) : square);
  }
  return g;
}

// log(2^k m), m near a double close to 1.
static UDF_COLD udf_long udf_pow_log_of(const udf_long *m, double nearest,
                                        int k) {
  double near = udf_log_accurate(nearest);
  udf_long exponent = udf_long_of(near);
  udf_long growth = udf_pow_growth(&exponent, near > 0);
  growth = udf_long_product(m, &growth);
  udf_long less_one = udf_long_difference(*m, udf_long_of(1.0));
  // m exp(-near) - 1.
  udf_long d = near > 0 ? udf_long_difference(less_one, growth)
                        : udf_long_sum(less_one, growth);
  int negative = udf_long_negative(d);
  if (negative)
    d = udf_long_minus(d);
  int terms = (int)(sizeof udf_pow_inverse / sizeof *udf_pow_inverse);
  udf_long q = udf_pow_inverse[0];
  for (int i = 1; i < terms; ++i) {
    udf_long product = udf_long_product(&d, &q);
    q = udf_long_sum(udf_pow_inverse[i],
                     negative ? product : udf_long_minus(product));
  }
  udf_long square = udf_long_product(&d, &d);
  q = udf_long_product(&square, &q);
  d = negative ? udf_long_minus(udf_long_sum(d, q)) : udf_long_difference(d, q);
  udf_long sum = udf_long_of(near);
  sum = udf_long_sum(near < 0 ? udf_long_minus(sum) : sum, d);
  udf_long multiple =
      udf_long_scaled(udf_pow_ln2, (uint64_t)(k < 0 ? -k : k), 0);
  return udf_long_sum(sum, k < 0 ? udf_long_minus(multiple) : multiple);
}

// log(x), x > 0 finite.
static UDF_COLD udf_long udf_pow_long_log(double x) {
  double scaled = x < 0x1p-1022 ? x * 0x1p54 : x;
  double m = udf_log_significand(udf_log_offset(udf_f64_bits(scaled)));
  udf_long significand = udf_long_of(m);
  return udf_pow_log_of(&significand, m, udf_log_reduce(x).k);
}

// |y| as a whole number times 2^*places.
UDF_INLINE uint64_t udf_pow_parts(double y, int *places) {
  uint64_t bits = udf_f64_bits(y) & UINT64_C(0x7fffffffffffffff);
  *places = (int)(bits >> 52) - 1075;
  return (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
}

// x^y with 512 bits; k is nearly the exponent of the result.
static UDF_COLD double udf_pow_long(double x, double y, int k) {
  udf_long log = udf_pow_long_log(x);
  int negative = udf_long_negative(log);
  int places;
  uint64_t whole = udf_pow_parts(y, &places);
  udf_long z =
      udf_long_scaled(negative ? udf_long_minus(log) : log, whole, places);
  if (negative != (y < 0))
    z = udf_long_minus(z);
  udf_long multiple =
      udf_long_scaled(udf_pow_ln2, (uint64_t)(k < 0 ? -k : k), 0);
  z = udf_long_sum(z, k < 0 ? multiple : udf_long_minus(multiple));
  for (; udf_long_negative(z); --k)
    z = udf_long_sum(z, udf_pow_ln2);
  for (;; ++k) {
    udf_long less = udf_long_difference(z, udf_pow_ln2);
    if (udf_long_negative(less))
      break;
    z = less;
  }
  udf_long growth = udf_pow_growth(&z, 0);
  udf_u128 top = (udf_u128)growth.word[UDF_LONG_WORDS - 2] << 64 |
                 growth.word[UDF_LONG_WORDS - 3];
  // What is cut off is not zero: half-way is above half-way.
  return udf_pow_round((udf_u128)1 << 127 | top >> 1 | 1, k).value;
}

// x^y for x > 0, y and the result finite and not trivial.
static UDF_COLD double udf_pow_positive(double x, double y) {
  double exact;
  if (udf_pow_exact(x, y, &exact))
    return exact;
  udf_log2_parts log = udf_log2_sum(x);
  double estimate = y * udf_log2_round(log);
  if (estimate >= 1025)
    return __builtin_inf();
  if (estimate <= -1077)
    return 0;
  if (__builtin_fabs(estimate) < 0x1p-56)
    return 1;
  udf_log_sum sum = log.sum;
  int negative = (int)(sum.high >> 127);
  if (negative)
    sum = udf_log_add((udf_log_sum){0, 0}, sum, -1);
  // In units of 2^-180 times those of y, then of 2^-128.
  int places;
  uint64_t whole = udf_pow_parts(y, &places);
  udf_long product = {
      {sum.low, (uint64_t)sum.high, (uint64_t)(sum.high >> 64)}};
  product = udf_long_scaled(product, whole, places - 52);
  if (negative != (y < 0))
    product = udf_long_minus(product);
  int k = (int)(int64_t)product.word[2];
  udf_u128 fraction = (udf_u128)product.word[1] << 64 | product.word[0];
  udf_u128 v = udf_exp_fixed(udf_high_product(fraction, EXP_LN2_WORDS));
  udf_pow_rounded found = udf_pow_round(v, k);
  if (found.distance >> POW_SHORT_ERROR == 0)
    return udf_pow_long(x, y, k);
  return found.value;
}

static UDF_COLD double udf_pow_accurate(double x, double y) {
  if (y == 0 || x == 1)
    return 1;
  double magnitude = __builtin_fabs(x);
  _Bool negative = udf_f64_bits(x) >> 63;
  double power;
  if (magnitude - magnitude != 0 || y - y != 0 || magnitude == 0 ||
      magnitude == 1) {
    power = udf_pow_special(magnitude, y);
  } else {
    if (negative && !udf_pow_whole(y))
      return __builtin_nan("");
    power = udf_pow_positive(magnitude, y);
  }
  if (x == -1 && !udf_pow_whole(y))
    return __builtin_nan("");
  return negative && udf_pow_odd(y) ? -power : power;
}
