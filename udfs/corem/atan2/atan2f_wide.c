//===- atan2f_wide.c - Quick path of atan2 at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/root_wide.h"

#include "wide_constants.h"

#ifdef __FMA__

// Adding it leaves an integer in the low bits of the encoding.
#define ATAN2_WIDE_MAGIC 0x1.8p23f
// Sets bit 30 of the encoding of a divisor from 2^-40 to 2^88.
#define ATAN2_WIDE_RANGE UINT32_C(0x14800000)
// The encoding of 2^-40.
#define ATAN2_WIDE_LEAST UINT32_C(0x2b800000)
#ifndef TEST_FACTOR
#define TEST_FACTOR 1.0f
#endif

UDF_INLINE float udf_atan2f_wide(float y, float x, int *hard) {
  float a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  int inverse = b > a;
  float n = inverse ? -x : b;
  float d = inverse ? b : x;
  // n / d = v + rest.
  float half = udf_root_wide_half_inverse(d);
  float z = 4.0f * half * __builtin_fmaf(-d, half, 1.0f);
  float v = n * z;
  float rest = __builtin_fmaf(-v, d, n) * z;

  float size = __builtin_fabsf(v);
  float sign = udf_f32_add_sign(1.0f, v);
  uint32_t i = udf_f32_bits(
      __builtin_fmaf(size, UDF_ATAN2_WIDE_SCALE, ATAN2_WIDE_MAGIC));
  float center = udf_atan2_wide_center[i % 32];
  float r = size - center;
  // The same with the sign of v.
  float s = __builtin_fmaf(-sign, center, v);

  // 0, pi/2 or pi, and the value: exact.
  float part = inverse ? 0.0f : udf_f32_add_sign(UDF_ATAN2_WIDE_HALF_PI, x);
  float base = UDF_ATAN2_WIDE_HALF_PI - part;
  float value = __builtin_fmaf(sign, udf_atan2_wide_value[i % 32], base);

  float slope = udf_atan2_wide_slope[i % 32];
  float high = __builtin_fmaf(slope, s, value);
  float low = __builtin_fmaf(slope, s, value - high);
  low += __builtin_fmaf(slope, rest, base * UDF_ATAN2_WIDE_LOW);
  float q =
      __builtin_fmaf(r, udf_atan2_wide_p4[i % 32], udf_atan2_wide_p3[i % 32]);
  q = __builtin_fmaf(r, q, udf_atan2_wide_p2[i % 32]);
  // The square of r + rest.
  float square = r * __builtin_fmaf(rest, 2.0f, s);
  low = __builtin_fmaf(square, q, low);
  float capped = high < UDF_ATAN2_WIDE_CAP ? high : UDF_ATAN2_WIDE_CAP;
  float width = udf_atan2_wide_width[i % 32] * TEST_FACTOR;
  float upper = high + __builtin_fmaf(capped, width, low);
  float lower = high + __builtin_fmaf(capped, -width, low);
  *hard =
      !((upper == lower) &
        (((udf_f32_bits(d) + ATAN2_WIDE_RANGE) & UINT32_C(0x40000000)) != 0) &
        (udf_f32_bits(high) - 1 >= ATAN2_WIDE_LEAST));
  return udf_f32_add_sign(upper, y);
}
#endif
