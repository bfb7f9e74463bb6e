//===- atanf_eight.c - Quick path of atan at AVX2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// atan(v) for v = |x| up to 1, and pi/2 - atan(v) for v = 1/|x| beyond it, in
// pairs of floats. SCALE v, rounded to an integer, numbers eight rows, so that
// a look-up is one permutation. With c near the middle of a row, r = v - c is
// exact and
//
//   atan(c + r) = value + slope r + p2 r^2 + r^3 (p3 + p4 r + ...)
//
// The centers are chosen (atan_eight.py) so that value and p2 are floats but
// for little, and value a multiple of 2^-23: then pi/2 less value is one, too.
// Only slope has a low part. value + r (slope + p2 r) is rounded twice, and
// fused multiply-adds give the errors, which begin low. So the branches cost no
// more than a sign of value and r, and what the quotient lacks, times the
// derivative.
//
// Error: four roundings of the terms from r^3 on, 2^-24 of them each, and that
// of the polynomial. atan_eight.py adds these at some points of each row, and
// the tenth table has a width: the factor, 1.3 times the least, by which r^2 +
// PART v is larger than the sum. In the first row the error is relative to v.
// Beyond pi/2 a little is added to v, as the width falls below the last place
// of low for small v. No error that was found, of every eleventh argument from
// 2^-15 to 2^33, was above 0.77 of a width. eight.gappa has the proof but
// for ends of some rows, which tests/native/test_atan_eight_bounds.py runs. Of
// all arguments none that the test decides is wrong. With
// the least width none was from 2^-11 to 2^31, with 0.8 of it 129.
//
// The rounding test leaves 589,288 of 4,278,190,080 arguments to the fast path:
// one in 120 from 1/32 to 1/16, one in 2,500 below 2^-11, and one in 1,800 from
// -20 to 20. It also has the infinities and NaN.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"

#include "eight_constants.h"

#ifdef __FMA__
// What is added to v, times pi/2.
#define ATAN_EIGHT_MORE 0x1p-10f

#define ATAN_EIGHT_ENTRY(table) udf_atan_eight_##table[i % 8]

UDF_INLINE float udf_atanf_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  float quotient = 1.0f / a;
  int inverse = a > 1.0f;
  // Written so that NaN passes.
  float v = quotient < a ? quotient : a;
  float rest = inverse ? __builtin_fmaf(quotient, a, -1.0f) : 0.0f;
  uint32_t sign = inverse ? UINT32_C(0x80000000) : 0;
  uint32_t i = udf_f32_bits(__builtin_fmaf(v, UDF_ATAN_EIGHT_SCALE, 0x1.8p23f));
  float r = v - ATAN_EIGHT_ENTRY(center);
  float slope = ATAN_EIGHT_ENTRY(slope);
  float p2 = ATAN_EIGHT_ENTRY(p2);
  float t = __builtin_fmaf(p2, r, slope);
  float t_low = __builtin_fmaf(p2, r, slope - t) + ATAN_EIGHT_ENTRY(slope_low);
  float q = __builtin_fmaf(r, ATAN_EIGHT_ENTRY(p6), ATAN_EIGHT_ENTRY(p5));
  q = __builtin_fmaf(r, q, ATAN_EIGHT_ENTRY(p4));
  q = __builtin_fmaf(r, q, ATAN_EIGHT_ENTRY(p3));
  float square = r * r;
  t_low = __builtin_fmaf(square, q, t_low);
  // pi/2 less value is exact.
  float base = inverse ? UDF_ATAN_EIGHT_HALF_PI : 0.0f;
  float one = udf_f32_from_bits(udf_f32_bits(1.0f) | sign);
  float value = __builtin_fmaf(ATAN_EIGHT_ENTRY(value), one, base);
  float signed_r = udf_f32_from_bits(udf_f32_bits(r) ^ sign);
  float high = __builtin_fmaf(t, signed_r, value);
  float low = __builtin_fmaf(t, signed_r, value - high);
  low = __builtin_fmaf(t_low, signed_r, low);
  float more = inverse ? UDF_ATAN_EIGHT_HALF_PI_LOW : 0.0f;
  // t_low is p3 r^2 but for little.
  float derivative = __builtin_fmaf(t_low, 3.0f, __builtin_fmaf(p2, r, t));
  low += __builtin_fmaf(v * rest, derivative, more);
  float width = ATAN_EIGHT_ENTRY(width);
  float scale = __builtin_fmaf(base, ATAN_EIGHT_MORE, v);
  scale = __builtin_fmaf(scale, UDF_ATAN_EIGHT_PART, square);
  float upper = high + __builtin_fmaf(scale, width, low);
  float lower = high + __builtin_fmaf(scale, -width, low);
  // Infinities and NaN make NaN of rest, which the test finds.
  *hard = upper != lower;
  return udf_f32_add_sign(upper, x);
}
#endif
