//===- trig_short.h - Short paths of sin and cos --------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = n pi/2 + r, |r| <= pi/4, and sin(x) is that of r + (n mod 4) pi/2: one of
// sin(r), cos(r), -sin(r), -cos(r), which differ in the coefficients that are
// loaded and in nothing else. For the scalar forms: in vectors these loads
// would be gathers. With FMA pi/2 is taken in two parts, without in three,
// whose products with n are exact as long as |x| < 2^22; other arguments are
// left to the fast path.
//
// Error, relative: the polynomials', 2^-43.6 at most, and less than 2^-50 for
// the rest, with or without FMA: no float32 below 2^22 is nearer than 2^-27 to
// a multiple of pi/2 but zero, which the reduction knows to 2^-80. That is less
// than 2^10 units in the last place, UDF_TRIG_SHORT_MARGIN.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_TRIG_SHORT_H
#define UDF_TRIG_SHORT_H

#include "corem.h"

#include "trig_short_constants.h"

#define UDF_TRIG_SHORT_MARGIN (UINT64_C(1) << 10)
// Encoding of 2^22.
#define UDF_TRIG_SHORT_LARGE UINT32_C(0x4a800000)

// sin(x + quarters pi/2) for 0 <= quarters < 4, and whether the rounding is not
// certain.
UDF_INLINE float udf_trig_short(float x, double quarters, int *hard) {
  if ((udf_f32_bits(x) & UINT32_C(0x7fffffff)) >= UDF_TRIG_SHORT_LARGE) {
    *hard = 1;
    return x;
  }
  double d = x;
  // The quarters are in the low bits of nd and not in n.
  const double magic = UDF_ROUND_MAGIC + quarters;
  double nd = UDF_FMA(d, UDF_TRIG_SHORT_INV_HALF_PI, magic);
  double n = nd - magic;
#ifdef __FMA__
  double r = UDF_FMA(n, -UDF_TRIG_SHORT_HALF_PI_HI, d);
  r = UDF_FMA(n, -UDF_TRIG_SHORT_HALF_PI_LO, r);
#else
  double r = d - n * UDF_TRIG_SHORT_HALF_PI_A;
  r = r - n * UDF_TRIG_SHORT_HALF_PI_B;
  r = r - n * UDF_TRIG_SHORT_HALF_PI_C;
#endif
  const udf_trig_short_quarter *t = &udf_trig_short_table[udf_f64_bits(nd) % 4];
  double s = r * r;
  double q = UDF_FMA(UDF_FMA(t->c[4], s, t->c[3]), s, t->c[2]);
  q = UDF_FMA(UDF_FMA(q, s, t->c[1]), s, t->c[0]);
  double y = UDF_FMA(r, t->times, t->one) * UDF_FMA(q, s, 1.0);
  *hard = udf_near_boundary(y, UDF_TRIG_SHORT_MARGIN);
  return (float)y;
}

#endif // UDF_TRIG_SHORT_H
