//===- powf.c - Correctly rounded float32 pow -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: |x|^y = 2^t with t = y log2|x|. The arguments are float32, so that a
// double is enough for the logarithm.
//   log2: |x| = 2^k m with m in [sqrt(1/2), sqrt(2)); s = (m - 1) / (m + 1) and
//         log2|x| = k + s P(s^2), P of seven terms (constants.h).
//   exp2: as in exp2f.c, with its polynomial and constants.
// The sign of x, integer y and NaN results are dealt with in the fast path, and
// so is x = +0, whose logarithm is taken as -2^200.
//
// Error of the fast path: below 2^-39.7 relative. The logarithm errs by 2^-50.4
// relative (P contributes 2^-52.3, quotient, evaluation and sum the rest, with
// or without FMA), and t by 2^-42.9 where |t| <= 151, which is 2^-43.4 of the
// result. The polynomial of exp2 adds 2^-39.9. The rounding test's margin of
// 2^14 units in the last place of the double covers 2^-39; subnormal results
// are tested at their own spacing.
//
// Accurate path: 6765 of 134217728 pairs with x near 1 and results of every
// magnitude (1 in 19840), subnormal x, -0, infinities and NaNs. Powers that are
// float32 numbers or half-way between two are recognised and exact. The others
// are irrational, or have more bits; they are evaluated in double-double:
// log2|x| errs by 2^-98 relative, t by 2^-90.8 and the result by less than
// 2^-90. Some 2^60 pairs have results that are neither trivial nor out of
// range, so that the nearest to a half-way point may be expected around 2^-85,
// and one within 2^-90 is not likely but not excluded.
//
// Hardest case found: x = 0x1.1dda2p+75 (650eed10), y = -0x1.d7bddp-30
// (b0ebdee8), result 0x1.fffffep-1 (3f7fffff), next candidate 0x1.fffffcp-1
// (3f7ffffe), 2^-75.4 relative from the boundary between them.
//
// With FTZ and DAZ set, subnormal arguments count as zero and subnormal results
// are zero; others keep their bits.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/dd_horner.h"
#include "../exp2/constants.h"

#include "constants.h"

// 2^POW_MAX rounds to +inf and 2^POW_MIN to +0, so that clamping t changes no
// result.
#define POW_MAX 0x1p+7
#define POW_MIN -0x1.2ep+7
// Below it results are subnormal.
#define POW_SUBNORMAL -0x1.f8p+6
#define POW_MARGIN (UINT64_C(1) << 14)

UDF_INLINE int udf_pow_integer(float y) { return __builtin_rintf(y) == y; }

// y is an odd integer: y is an integer and y/2 is not.
UDF_INLINE int udf_pow_odd(float y) {
  return udf_pow_integer(y) & !udf_pow_integer(0.5f * y);
}

UDF_INLINE float udf_powf_fast(float x, float y, int *hard) {
  uint32_t u = udf_f32_bits(x) & UINT32_C(0x7fffffff);
  uint32_t v = u - UDF_POW_SQRT_HALF;
  // Not a conversion from int: in scalar code that waits for the register of
  // the previous result.
  double k =
      udf_f32_from_bits((uint32_t)((int32_t)v >> 23) + UINT32_C(0x4b400000)) -
      0x1.8p23f;
  float m = udf_f32_from_bits(u - (v & UINT32_C(0xff800000)));
  double n = m - 1.0f; // exact
  double s = n / (n + 2.0);

  const double *p = udf_pow_log2_poly;
  double w = s * s;
  double w2 = w * w;
  double q = UDF_FMA(p[6], w2, UDF_FMA(p[5], w, p[4]));
  q = UDF_FMA(q, w2, UDF_FMA(p[3], w, p[2]));
  q = UDF_FMA(q, w2, UDF_FMA(p[1], w, p[0]));
  double l = UDF_FMA(s, q, k);
  double t = y * (u == 0 ? -0x1p200 : l);

  t = t > POW_MAX ? POW_MAX : t;
  t = t < POW_MIN ? POW_MIN : t;
  double td = t + UDF_ROUND_MAGIC;
  double r = t - (td - UDF_ROUND_MAGIC);
  double r2 = r * r;
  double r4 = r2 * r2;
  double p01 = UDF_FMA(r, EXP2_C1, EXP2_C0);
  double p23 = UDF_FMA(r, EXP2_C3, EXP2_C2);
  double p45 = UDF_FMA(r, EXP2_C5, EXP2_C4);
  double p67 = UDF_FMA(r, EXP2_C7, EXP2_C6);
  double low = UDF_FMA(r2, p23, p01);
  double high = UDF_FMA(r2, UDF_FMA(r2, EXP2_C8, p67), p45);
  double e = UDF_FMA(r4, high, low);
  double z = udf_f64_from_bits(udf_f64_bits(e) + (udf_f64_bits(td) << 52));

  // Left to the accurate path: subnormal, infinite and NaN arguments, and -0.
  uint32_t sign = udf_f32_bits(x) & UINT32_C(0x80000000);
  uint32_t uy = udf_f32_bits(y) & UINT32_C(0x7fffffff);
  int special = (u - UINT32_C(0x00800000) >= UINT32_C(0x7f000000)) &
                (udf_f32_bits(x) != 0);
  special |= uy >= UINT32_C(0x7f800000);
  *hard =
      special | udf_near_boundary_subnormal(z, t < POW_SUBNORMAL, POW_MARGIN);

  // Where y is an integer, it is odd if y/2 is not one.
  uint32_t odd = udf_pow_integer(0.5f * y) ? 0 : sign;
  uint32_t nan = (x < 0) & !udf_pow_integer(y) ? UINT32_C(0x7fc00000) : 0;
  return udf_f32_from_bits(udf_f32_bits((float)z) | odd | nan);
}

// 2^k for an integer k, clamped where no float32 is left.
UDF_INLINE double udf_pow_scale(double k) {
  k = k > 300 ? 300 : k;
  k = k < -300 ? -300 : k;
  return udf_f64_from_bits((uint64_t)((int64_t)k + 1023) << 52);
}

// a^y where it is a number of at most 25 bits, or a power of two: all results
// that are float32 numbers or half-way between two. Returns 0 where it is not,
// and is irrational or has more bits.
//
// a = m 2^e with m odd. Where m = 1 the power is 2^(e y). Otherwise y is n /
// 2^f with n odd or f = 0, a must be a 2^f-th power, b^(2^f), and the result is
// b^n: as m >= 3, f <= 3 (m < 2^24), and n > 0 because 1/m is no dyadic number.
UDF_INLINE double udf_pow_exact(double a, double y) {
  uint64_t u = udf_f64_bits(a);
  uint64_t m = (u & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
  int64_t zeros = __builtin_ctzll(m);
  m >>= zeros;
  int64_t e = (int64_t)(u >> 52) - 1075 + zeros;
  if (m == 1) {
    double k = (double)e * y; // exact: 8 and 24 bits
    return k == __builtin_rint(k) ? udf_pow_scale(k) : 0;
  }
  // 3^16 has more than 25 bits.
  if (!(y > 0 && y < 16) || 8 * y != __builtin_rint(8 * y))
    return 0;
  int n = (int)(8 * y), f = 3;
  for (; f > 0 && n % 2 == 0; --f)
    n /= 2;
  for (; f > 0; --f) {
    uint64_t root = (uint64_t)__builtin_sqrt((double)m);
    if (root * root != m || e % 2 != 0)
      return 0;
    m = root;
    e /= 2;
  }
  uint64_t power = 1;
  for (int i = 0; i < n; ++i) {
    power *= m;
    if (power >> 25 != 0)
      return 0;
  }
  return (double)power * udf_pow_scale((double)(e * n));
}

// log2(a) for a normal double a > 0 of 24 bits. a = 2^k m, z = m c - 1 with c
// near 1/m, exact; log2(a) = k - log2(c) + log2(1 + z).
UDF_INLINE udf_dd udf_pow_log2(double a) {
  const uint64_t sqrt_half = UINT64_C(0x3fe6a09e667f3bcd);
  int64_t k = (int64_t)(udf_f64_bits(a) - sqrt_half) >> 52;
  double m = a * udf_f64_from_bits((uint64_t)(1023 - k) << 52);
  const udf_pow_entry *entry =
      &udf_pow_reciprocal[(int)__builtin_rint(64 * m) - UDF_POW_FIRST];
  double z = m * entry->c - 1;
  udf_dd q = udf_dd_horner_decreasing(
      (udf_dd){z, 0}, udf_pow_log2_low, UDF_COUNT(udf_pow_log2_low),
      udf_pow_log2_high, UDF_COUNT(udf_pow_log2_high));
  udf_dd l = udf_dd_add(entry->log2, udf_dd_mul_d(q, z));
  return udf_dd_add_d(l, (double)k);
}

// 2^t for |t| < 200.
UDF_INLINE udf_dd udf_pow_exp2(udf_dd t) {
  double k = __builtin_rint(t.hi);
  udf_dd r = udf_dd_add_d(t, -k);
  double i = __builtin_rint(32 * r.hi);
  r = udf_dd_add_d(r, -i / 32);
  udf_dd q =
      udf_dd_horner_decreasing(r, udf_pow_exp2_low, UDF_COUNT(udf_pow_exp2_low),
                               udf_pow_exp2_high, UDF_COUNT(udf_pow_exp2_high));
  q = udf_dd_add((udf_dd){1, 0}, udf_dd_mul(q, r));
  q = udf_dd_mul(q, udf_pow_exp2_table[(int)i + 16]);
  double scale = udf_pow_scale(k);
  return (udf_dd){q.hi * scale, q.lo * scale};
}

// a^y for a > 0, a != 1, y != 0, both finite.
UDF_INLINE float udf_pow_positive(float x, float y) {
  uint32_t u = udf_f32_bits(x);
  double a = u < UINT32_C(0x00800000) ? (double)u * 0x1p-149 : (double)x;
  udf_dd t = udf_dd_mul_d(udf_pow_log2(a), y);
  if (t.hi > 129)
    return __builtin_inff();
  if (t.hi < -152)
    return 0;
  double exact = udf_pow_exact(a, y);
  return exact != 0 ? (float)exact : udf_dd_round(udf_pow_exp2(t));
}

// The special values of the C standard, annex F.10.4.4.
static UDF_COLD float udf_powf_accurate(float x, float y) {
  float a = __builtin_fabsf(x);
  if (y == 0 || x == 1)
    return 1;
  if (x != x || y != y)
    return __builtin_nanf("");
  if (x < 0 && a < __builtin_inff() && !udf_pow_integer(y))
    return __builtin_nanf("");
  float r;
  if (a == 1)
    r = 1;
  else if (__builtin_isinf(y) || __builtin_isinf(a) || a == 0)
    r = (a > 1) == (y > 0) ? __builtin_inff() : 0;
  else
    r = udf_pow_positive(a, y);
  return udf_pow_odd(y) ? udf_f32_add_sign(r, x) : r;
}
