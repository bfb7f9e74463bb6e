//===- atan2f_wide.c - Quick path of atan2 at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//

#include "../common/corem.h"

#include "wide_constants.h"

#ifdef __FMA__

// Adding it leaves an integer in the low bits of the encoding.
#define ATAN2_WIDE_MAGIC 0x1.8p23f
// Sets bit 30 of the encoding of a divisor from 2^-40 to 2^88.
#define ATAN2_WIDE_RANGE UINT32_C(0x14800000)
// The encoding of 2^-40.
#define ATAN2_WIDE_LEAST UINT32_C(0x2b800000)

UDF_INLINE float udf_atan2f_wide(float y, float x, int *hard) {
  float a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  int inverse = b > a;
  float n = inverse ? -x : b;
  float d = inverse ? b : x;
  // 1 / d.
  float z = udf_f32_from_bits(UDF_ATAN2_WIDE_MAGIC - udf_f32_bits(d));
  z = z * __builtin_fmaf(-d, z, UDF_ATAN2_WIDE_STEP);
  z = __builtin_fmaf(z, __builtin_fmaf(-d, z, UDF_ATAN2_WIDE_SECOND), z);
  // n / d = v + rest.
  float v = n * z;
  float rest = __builtin_fmaf(-v, d, n) * z;
  uint32_t i =
      udf_f32_bits(__builtin_fmaf(v, UDF_ATAN2_WIDE_SCALE, ATAN2_WIDE_MAGIC));
  float r = v - udf_atan2_wide_center[i % 32];
  float slope = udf_atan2_wide_slope[i % 32];

  // 0, pi/2 or pi, and the value: exact.
  float part = inverse ? 0.0f : udf_f32_add_sign(UDF_ATAN2_WIDE_HALF_PI, x);
  float base = UDF_ATAN2_WIDE_HALF_PI - part;
  float value = udf_atan2_wide_value[i % 32] + base;

  float high = __builtin_fmaf(slope, r, value);
  float low = __builtin_fmaf(slope, r, value - high);
  low += __builtin_fmaf(slope, rest, base * UDF_ATAN2_WIDE_LOW);
  float q =
      __builtin_fmaf(r, udf_atan2_wide_p5[i % 32], udf_atan2_wide_p4[i % 32]);
  q = __builtin_fmaf(r, q, udf_atan2_wide_p3[i % 32]);
  q = __builtin_fmaf(r, q, udf_atan2_wide_p2[i % 32]);
  // The square of r + rest.
  float square = r * __builtin_fmaf(rest, 2.0f, r);
  low = __builtin_fmaf(square, q, low);
  float capped = high < UDF_ATAN2_WIDE_CAP ? high : UDF_ATAN2_WIDE_CAP;
  float upper = high + low;
  float lower =
      high + __builtin_fmaf(capped, udf_atan2_wide_width[i % 32], low);
  *hard =
      !((upper == lower) &
        (((udf_f32_bits(d) + ATAN2_WIDE_RANGE) & UINT32_C(0x40000000)) != 0) &
        (udf_f32_bits(high) - 1 >= ATAN2_WIDE_LEAST));
  return udf_f32_add_sign(upper, y);
}
#endif
