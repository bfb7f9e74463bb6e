//===- atanf_eight.c - Quick path of atan at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// atan(a) = base + atan(t) for a = |x|, in pairs of floats. Of six intervals,
// numbered by the exponent of a, the first has base 0 and t = a, the last base
// pi/2 and t = -1/a, and those between have a center c, base atan(c) and
// t = (a - c) / (1 + a c). a - c is exact, and |t| <= 1/4. t is the numerator
// times the reciprocal of the denominator; fused multiply-adds give what the
// denominator and this product lack. The sum is as in asin_eight.h:
//
//   base + t (1 + s U(s)),  s = t^2
//
// Error: below 2^-30.5 |t| s, from the roundings of two coefficients of U
// (2^-26.9 s^2 |t|), from U itself (2^-32.8 s |t|, by Sollya's dirtyinfnorm),
// and from what the derivative by s lacks. The margin is 2^-30 |t| s. For the
// roundings of the low parts it has 2^-47 |t| more, and 2^-47 in the last
// interval, where t is tiny for most arguments. Near the centers
// these roundings may exceed it. These bounds are estimates by hand;
// no script proves them. What is sure is a run of all arguments: none that the
// test decides is wrong.
//
// The rounding test leaves 23,740 of 4,278,190,080 arguments to the fast path,
// which also has the infinities and NaN.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"

#include "eight_constants.h"

#ifdef __FMA__
// What the margin has beside its multiple of |t| s: this times that multiple.
#define ATAN_EIGHT_MORE 0x1p-17f

UDF_INLINE float udf_atanf_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  int last = a >= 4.0f;
  // The intervals end at powers of two.
  float within = a > 0.125f ? a : 0.125f;
  within = within < 4.0f ? within : 4.0f;
  uint32_t i = udf_f32_bits(within) >> 23;
  float center = udf_atan_eight_center[i % 8];
  float d = __builtin_fmaf(a, center, 1.0f);
  float d_low = __builtin_fmaf(a, center, 1.0f - d);
  float n = last ? -1.0f : a - center;
  d = last ? a : d;
  float inverse = 1.0f / d;
  float t = n * inverse;
  float rest = __builtin_fmaf(-t, d, n);
  float t_low = __builtin_fmaf(-t, d_low, rest) * inverse;
  float s = t * t;
  float s_low = __builtin_fmaf(t + t, t_low, __builtin_fmaf(t, t, -s));

  const float *p = udf_atan_eight_poly;
  float v = __builtin_fmaf(p[4], s, p[3]);
  v = __builtin_fmaf(v, s, p[2]);
  v = __builtin_fmaf(v, s, p[1]);
  float u = __builtin_fmaf(v, s, p[0]);
  float u_low = __builtin_fmaf(v, s, p[0] - u) + UDF_ATAN_EIGHT_FIRST_LOW;
  float f = __builtin_fmaf(u, s, 1.0f);
  float f_low = __builtin_fmaf(u, s, 1.0f - f);
  f_low = __builtin_fmaf(u_low, s, f_low);
  f_low = __builtin_fmaf(__builtin_fmaf(v, s, u), s_low, f_low);
  float base = udf_atan_eight_base[i % 8];
  float high = __builtin_fmaf(t, f, base);
  float low =
      __builtin_fmaf(t, f, base - high) + udf_atan_eight_base_low[i % 8];
  low = __builtin_fmaf(t, f_low, low);
  low = __builtin_fmaf(t_low, f, low);
  float more =
      __builtin_fmaf(t, ATAN_EIGHT_MORE, last ? -ATAN_EIGHT_MORE : 0.0f);
  low = __builtin_fmaf(more, -0.5f * UDF_ATAN_EIGHT_WIDTH, low);
  // The sum is too large by the margin, in the direction of t.
  float upper = high + low;
  float width = __builtin_fmaf(t, s, more);
  float lower = high + __builtin_fmaf(width, UDF_ATAN_EIGHT_WIDTH, low);
  // Infinities and NaN make NaN of t_low, which the test finds.
  *hard = upper != lower;
  return udf_f32_add_sign(upper, x);
}
#endif
