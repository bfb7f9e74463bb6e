//===- atanf_wide.c - Quick path of atan at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// atan(a) = base + atan(t) for a = |x|, in pairs of floats, as in atanf_eight.c
// but with 32 intervals. b = a + 1/16 numbers them by its exponent and the
// first two bits of its significand. The first has base 0 and t = a; the others
// have a center c, base atan(c) and t = (a - c) / (1 + a c). The center of the
// last is 2^48, so that t is -1/a and base pi/2: no selection is needed. a - c
// is exact, but in the last interval, where what it lacks changes t by 2^-48 at
// most.
//
// |t| stays below 0.072, so that t^3 U(t^2) needs no low part. t is the
// numerator times the reciprocal of the denominator; fused multiply-adds give
// what the denominator and this product lack, and 1 - t^2 stands for the
// derivative of atan there.
//
// Error, relative to the result. The term t^3 U has the roundings of t^2, of
// t^3, of U and of the sum that it joins, each below 2^-24 of it, and U errs by
// 2^-26.5: in all 2^-21.9 of |t|^3 / 3. That is 2^-35.5 at the end of the first
// interval, 2^-35.4 near 1, and less elsewhere. All other roundings are those
// of low parts, below 2^-24 of 2^-24. The width of the test is 2^-35.4 on
// either side. This is an estimate by hand; what is sure is a run of all
// arguments, which found no wrong result. With 2^-37 13 positive ones were
// wrong.
//
// Arguments from 2^80 on, for which the denominator overflows, infinities and
// NaN are left to the fast path.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"

#include "wide_constants.h"

#ifdef __FMA__
#define ATAN_WIDE_WIDTH 0x1.8p-36f

UDF_INLINE float udf_atanf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  float b = a + UDF_ATAN_WIDE_ORIGIN;
  b = b < UDF_ATAN_WIDE_MAX ? b : UDF_ATAN_WIDE_MAX;
  uint32_t i = udf_f32_bits(b) >> 21;
  float center = udf_atan_wide_center[i % 32];
  float n = a - center;
  float d = __builtin_fmaf(a, center, 1.0f);
  float d_low = __builtin_fmaf(a, center, 1.0f - d);
  float inverse = 1.0f / d;
  float t = n * inverse;
  float s = t * t;
  float rest = __builtin_fmaf(-t, d, n);
  rest = __builtin_fmaf(-t, d_low, rest);
  float slope = __builtin_fmaf(-s, inverse, inverse);

  const float *p = udf_atan_wide_poly;
  float u = __builtin_fmaf(p[2], s, p[1]);
  u = __builtin_fmaf(u, s, p[0]);
  float base = udf_atan_wide_base[i % 32];
  float high = base + t;
  float low = (base - high) + t + udf_atan_wide_base_low[i % 32];
  low = __builtin_fmaf(rest, slope, low);
  low = __builtin_fmaf(s * t, u, low);
  float upper = high + __builtin_fmaf(high, ATAN_WIDE_WIDTH, low);
  float lower = high + __builtin_fmaf(high, -ATAN_WIDE_WIDTH, low);
  // Infinities and NaN make NaN, which the test finds.
  *hard = upper != lower;
  return udf_f32_add_sign(upper, x);
}
#endif
