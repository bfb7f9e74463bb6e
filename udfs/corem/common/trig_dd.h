//===- trig_dd.h - Accurate paths of sin, cos and tan ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Exact argument reduction, as by Payne and Hanek (SIGNUM Newsletter 18(1),
// 1983), and sin in double and in double-double.
//
// x = M 2^e with an integer M < 2^24.  The bits of 2^e (2/pi) at and above
// weight 4 contribute multiples of 2 pi and are left out; the next 192 bits
// are multiplied by M, and the 128 upper ones kept: the angle x modulo 2 pi,
// in units of 2^-127 pi, cut short by less than one unit.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_TRIG_DD_H
#define UDF_TRIG_DD_H

#include "corem.h"
#include "dd_horner.h"

#include "trig_dd_constants.h"

// An angle modulo 2 pi: (hi 2^64 + lo) 2^-127 pi.
typedef struct {
  uint64_t hi, lo;
} udf_angle;

// Upper half of the product of a 24-bit and a 64-bit integer.
UDF_INLINE uint64_t udf_mul_high(uint64_t m, uint64_t w) {
  return (m * (w >> 32) + (m * (w & UINT32_MAX) >> 32)) >> 32;
}

// |x| modulo 2 pi, for finite |x| >= 2^-2.
UDF_INLINE udf_angle udf_angle_of(float x) {
  uint32_t u = udf_f32_bits(x) & UINT32_C(0x7fffffff);
  uint64_t m = (u & UINT32_C(0x007fffff)) | UINT32_C(0x00800000);
  // Bit 64 of the table has weight 1/2; weight 2 is wanted on top.
  int at = 62 + ((int)(u >> 23) - 150);
  const uint64_t *t = udf_two_over_pi + (at >> 6);
  int s = at & 63;
  uint64_t w0 = t[0] << s | t[1] >> 1 >> (63 - s);
  uint64_t w1 = t[1] << s | t[2] >> 1 >> (63 - s);
  uint64_t w2 = t[2] << s | t[3] >> 1 >> (63 - s);
  uint64_t carry = udf_mul_high(m, w2);
  udf_angle a;
  a.lo = m * w1 + carry;
  a.hi = m * w0 + udf_mul_high(m, w1) + (a.lo < carry);
  return a;
}

// a - pi if the angle is nearer to pi than to 0 (*odd = 1), else a, as a
// signed number.
UDF_INLINE udf_angle udf_angle_fold(udf_angle a, int *odd) {
  uint64_t k = (a.hi + (UINT64_C(1) << 62)) >> 63;
  *odd = (int)k;
  a.hi ^= k << 63;
  return a;
}

// A folded angle in radians, in double: relative error below 2^-51.
UDF_INLINE double udf_angle_double(udf_angle a) {
  return ((double)(int64_t)a.hi + (double)a.lo * 0x1p-64) *
         (udf_dd_pi.hi * 0x1p-63);
}

// A folded angle in radians, in double-double.
UDF_INLINE udf_dd udf_angle_dd(udf_angle a) {
  double unit = 0x1p-127;
  if (a.hi >> 63) {
    a.hi = ~a.hi + (a.lo == 0);
    a.lo = -a.lo;
    unit = -unit;
  }
  udf_dd f = udf_fast_two_sum((double)(a.hi >> 32) * 0x1p96,
                              (double)(a.hi & UINT32_MAX) * 0x1p64);
  f = udf_dd_add_d(f, (double)(a.lo >> 32) * 0x1p32);
  f = udf_dd_add_d(f, (double)(a.lo & UINT32_MAX));
  return udf_dd_mul((udf_dd){unit * f.hi, unit * f.lo}, udf_dd_pi);
}

// sin(r), |r| <= pi/2: relative error below 2^-49, fused or not.
UDF_INLINE double udf_sin_in_double(double r) {
  const double *p = udf_sin_double;
  double s = r * r;
  double s2 = s * s;
  double q = UDF_FMA(UDF_FMA(p[7], s, p[6]), s2, UDF_FMA(p[5], s, p[4]));
  q = UDF_FMA(q, s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  return r * UDF_FMA(s, q, 1.0);
}

// sin(r), |r| <= pi/2.  The leading r is added last, so that a tiny r keeps its
// cubic term in the low part.
UDF_INLINE udf_dd udf_sin_dd(udf_dd r) {
  udf_dd s = udf_dd_mul(r, r);
  udf_dd q =
      udf_dd_horner_decreasing(s, udf_sin_dd_low, UDF_COUNT(udf_sin_dd_low),
                               udf_sin_dd_high, UDF_COUNT(udf_sin_dd_high));
  return udf_dd_add(r, udf_dd_mul(udf_dd_mul(r, s), q));
}

// sin of an angle, correctly rounded.  Double decides nearly always; large
// arguments, which the fast paths leave to this one, depend on its speed.
UDF_INLINE float udf_sin_of_angle(udf_angle a) {
  int odd;
  a = udf_angle_fold(a, &odd);
  double y = udf_sin_in_double(udf_angle_double(a));
  float rounded = (float)y;
  if (udf_near_boundary(y, 64))
    rounded = udf_dd_round(udf_sin_dd(udf_angle_dd(a)));
  return odd ? -rounded : rounded;
}

#endif // UDF_TRIG_DD_H
