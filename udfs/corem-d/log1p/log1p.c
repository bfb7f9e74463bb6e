//===- log1p.c - Correctly rounded float64 log1p --------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Two steps (Ziv, ACM TOMS 17(3), 1991): a fast path in pairs of doubles, with
// a rounding test, and integers of 128 and of 512 bits for what it leaves
// undecided.
//
// Fast path. For |x| < 2^-54 the result is x: x/2 is below half of what the
// last place is of x, at least. 1 + x is the exact sum S + E, and log.c reduces
// S to k, c and r. d = E 2^-k c is below 2^-52.5, and h + l = r + d exactly:
//
//   log1p(x) = (k log(2) - log(c)) + log(1 + h + l)
//   log(1 + h + l) = log(1 + h) + l (1 - h + h^2)
//
// In the interval of 1 c is 1 and h is x, without any error. log(1 + h) and the
// sums are those of log.c.
//
// Error of low. As in log.c, with one sum more, and with h^3 l, which is below
// 2^-62 h^2, left out: the whole is below EXTENT h^2. Relative to s WIDTH is
// twice that of log.c, for two roundings more and that of d, which is 2^-106
// where c is not 1.
//
// Accurate path. Above 2^200 log(x) is nearer to log1p(x), by less than 2^-207,
// than to any middle of two doubles (log.c). For the others 128 bits decide
// nearly always. p is log(1 + r)/r, log.c's series in units of 2^-127 with less
// than 4 of error, as a product is 2 units short at most. Below 2^-6 log1p(x)
// is x p(x), and x is exact: the relative error is below 2^-123. Else 1 + x =
// 2^k m is exact but for 2 units of 2^-125, m c = 1 + r for log.c's c, and the
// error of r p(r), below 2^-123, is below 2^-116 of the result, which is above
// 2^-6.1. Where the distance from the middle of two doubles is not more than
// LOG1P_SHORT_ERROR, 1 + x = 2^k m is exact in 512 bits, and pow.c's logarithm
// has an error below 2^-500; the result is at least 2^-54.
// For |x| < 2^-40 hard_cases.py tries the arguments next to every one whose
// log1p is the middle of two doubles. No search of ours covers the others.
//
// Of 5 million random arguments between 0 and 10 268 take the accurate path, of
// as many between -0.03 and 0.03 9,210. The hardest case known to us, 2^-153.42
// from the middle of two doubles, relative:
//   x      0x1.8000000000003p-50 (0x3cd8000000000003)
//
//===----------------------------------------------------------------------===//

#include "../pow/pow.c"

#define LOG1P_EXTENT 0x1.ep-57
#define LOG1P_WIDTH 0x1p-71
#define LOG1P_SMALL 0x1p-54
#define LOG1P_LARGE 0x1p1000
// 2^-116 of the result, in units of 2^-127 of its significand.
#define LOG1P_SHORT_ERROR ((udf_u128)1 << 11)

UDF_INLINE double udf_log1p_fast(double x, int *hard) {
  _Bool small = __builtin_fabs(x) < LOG1P_SMALL;
  udf_dd whole = udf_two_sum(1.0, x);
  uint64_t offset = udf_log_offset(udf_f64_bits(whole.hi));
  uint64_t i = offset >> LOG_STEP_SHIFT;
  double k = udf_log_exponent(offset);
  double c = (double)udf_log_reciprocal[i % LOG_STEPS];
  double scale = udf_f64_from_bits((2047 - (offset >> 52)) << 52);
  udf_dd p = udf_two_sum(udf_log_ratio(offset), whole.lo * scale * c);
  udf_log_part part = udf_log_near_one(p.hi);
  double rest = part.rest + p.lo * UDF_FMA(p.hi, p.hi - 1.0, 1.0);

  double logc =
      (double)udf_log_high[i % LOG_STEPS] + (double)udf_log_low[i % LOG_STEPS];
  double tiny = UDF_FMA(k, LOG_LN2_LO, (double)udf_log_rest[i % LOG_STEPS]);
  udf_dd a = udf_fast_two_sum(k * LOG_LN2_HI, logc);
  udf_dd s = udf_fast_two_sum(a.hi, part.t);
  double low = rest + (s.lo + (a.lo + tiny));
  double margin =
      UDF_FMA(part.r2, LOG1P_EXTENT, __builtin_fabs(s.hi) * LOG1P_WIDTH);
  double upper = s.hi + (low + margin);
  double lower = s.hi + (low - margin);
  // NaN is hard.
  *hard = !small & ((upper != lower) | !(x > -1.0) | !(x <= LOG1P_LARGE));
  return small ? x : upper;
}

//===----------------------------------------------------------------------===//
// Accurate path
//===----------------------------------------------------------------------===//

// |x| in units of 2^-places, for |x| < 2^(128 - places); what is below one unit
// is dropped.
UDF_INLINE udf_u128 udf_log1p_fixed(double x, int places) {
  uint64_t bits = udf_f64_bits(x) & UINT64_C(0x7fffffffffffffff);
  udf_u128 m = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
  int up = (int)(bits >> 52) - 1075 + places;
  return up >= 0 ? m << up : up > -64 ? m >> -up : 0;
}

// For LOG1P_SMALL <= |x| < 2^-6.
UDF_INLINE udf_pow_rounded udf_log1p_near_zero(double x) {
  uint64_t bits = udf_f64_bits(x) & UINT64_C(0x7fffffffffffffff);
  uint64_t m = (bits << 11) | UINT64_C(1) << 63;
  udf_u128 p = udf_log_polynomial(udf_log1p_fixed(x, 128), x < 0);
  udf_u128 v = udf_high_product_64(m, p); // in units of 2^-126
  int shift = __builtin_clzll((uint64_t)(v >> 64));
  return udf_pow_round(v << shift, (int)(bits >> 52) - 1023 + 1 - shift);
}

// For 2^-6 <= |x| <= 2^200; near is 1 + x, rounded.
UDF_INLINE udf_pow_rounded udf_log1p_beyond(double x, double near) {
  udf_log_argument of = udf_log_reduce(near);
  double scale = udf_f64_from_bits((uint64_t)(1023 - of.k) << 52);
  udf_u128 one = udf_log1p_fixed(scale, 125);
  udf_u128 rest = udf_log1p_fixed(x * scale, 125);
  udf_u128 m = x < 0 ? one - rest : one + rest;
  // r in units of 2^-131; the one of m c is beyond the 128 bits.
  udf_u128 r = m * (uint64_t)(udf_log_reciprocal[of.interval] * 64);
  int negative = (int)(r >> 127);
  r = (negative ? -r : r) >> 3;
  udf_u128 y = udf_high_product(r, udf_log_polynomial(r, negative));
  udf_log_sum series = {y >> 10, (uint64_t)y << 54};

  udf_log_leading found = udf_log_lead(
      udf_log_add(udf_log_multiple(of), series, negative ? -1 : 1));
  return udf_pow_round(found.y, found.exponent);
}

// |log1p(x)| with 128 bits, for LOG1P_SMALL <= |x| <= 2^200.
UDF_INLINE udf_pow_rounded udf_log1p_short(double x, double near) {
  return __builtin_fabs(x) < 0x1p-6 ? udf_log1p_near_zero(x)
                                    : udf_log1p_beyond(x, near);
}

// log1p(x) with 512 bits.
static UDF_COLD double udf_log1p_long(double x, double near) {
  int k = udf_log_reduce(near).k;
  double scale = udf_f64_from_bits((uint64_t)(1023 - k) << 52);
  udf_long m = udf_long_of(scale), rest = udf_long_of(x * scale);
  m = x < 0 ? udf_long_difference(m, rest) : udf_long_sum(m, rest);
  udf_long log = udf_pow_log_of(&m, near * scale, k);
  int negative = udf_long_negative(log);
  if (negative)
    log = udf_long_minus(log);
  int top = UDF_LONG_WORDS - 1;
  for (; log.word[top] == 0; --top)
    ;
  int shift = __builtin_clzll(log.word[top]);
  udf_u128 v = (udf_u128)log.word[top] << 64 | log.word[top - 1];
  v = v << shift | (shift ? log.word[top - 2] >> (64 - shift) : 0);
  // What is cut off is not zero: half-way is above half-way.
  int exponent = 64 * (top - UDF_LONG_WORDS + 1) + 63 - shift;
  double y = udf_pow_round(v | 1, exponent).value;
  return negative ? -y : y;
}

static UDF_COLD double udf_log1p_accurate(double x) {
  if (x != x)
    return x + x;
  if (x <= -1)
    return x == -1 ? -__builtin_inf() : __builtin_nan("");
  if (__builtin_fabs(x) < LOG1P_SMALL)
    return x;
  if (x > 0x1p200)
    return udf_log_accurate(x);
  double near = 1.0 + x;
  udf_pow_rounded found = udf_log1p_short(x, near);
  if (found.distance <= LOG1P_SHORT_ERROR)
    return udf_log1p_long(x, near);
  return x < 0 ? -found.value : found.value;
}
