//===- powf_wide.c - Quick path of pow at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// log2(x) is that of log_wide.h, made a pair whose second part is below 2^-24
// of the first. Its product with y is t + t_low, exact but for 2^-48 of it.
// 2^t is that of exp_wide.h as high + low, and (high + low) (u + u^2/2), u =
// log(2) t_low, is added to low. u^2/2 is up to 2^-36.9.
//
// Error, relative to the result. That of log2(x), times y log(2), is 2^-23.4
// |y| r^2 from the terms that begin with r^2, as in log_wide.h. The low parts
// of its tables, and the sums with them, are known to 2^-42 or better: |y|
// 2^-42.5. That of 2^t is eleven units of exp_wide.h, 2^-22.6 d^2. The
// roundings of the product and of u are the rest. The width of the rounding
// test has a part for each of these: LOG, Y, EXP and ALL.
//
// wide.gappa and exp_wide.gappa have the proof for all pairs that are decided
// (tests/native/test_pow_wide_bounds.py). Random pairs with x near 1 show what
// smaller parts do: with half of LOG 7 of 2^25 were wrong, with 2^-39 for ALL
// and 2^-42 for Y one of 2^25 with x of any size, and with 0x1p-23 for EXP one
// in 2 million.
//
// The power of a negative x is that of |x|, with a sign where y is odd. y is
// added to 1.5 2^23: what the sum lacks says whether y is a whole number, and
// its last bit whether it is odd, as long as |y| < 2^22.
//
// x that is zero, infinite or NaN, negative x with another y, and
// |t| from 64 on are left to the fast path. By the rounding test it is one in
// 1,000 pairs with both arguments up to 5, one in 260 with |t| up to 10 and x
// near the middle of an interval of the table, and all from about |y| = 2^18
// on.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_wide.h"
#include "../common/log_wide.h"

#include "wide_constants.h"

#ifdef __FMA__
// Parts of the width: of |y| r^2, of |y|, of d^2, and of 1.
#define POW_WIDE_LOG 0x1p-23f
#define POW_WIDE_Y 0x1.8p-41f
#define POW_WIDE_EXP 0x1.cp-23f
#define POW_WIDE_ALL 0x1.8p-38f
// LOG, of r^2 as it is scaled.
#define POW_WIDE_UNIT (POW_WIDE_LOG / UDF_LOG_WIDE_SQUARE)

#define POW_WIDE_MAX 64.0f

// Added to y, and where |y| ends for that.
#define POW_WIDE_WHOLE 0x1.8p23f
#define POW_WIDE_WHOLE_MAX 0x1p22f

UDF_INLINE float udf_powf_wide(float x, float y, int *hard) {
  float a = __builtin_fabsf(x);
  udf_log_wide_reduced e = udf_log_wide_reduce(a);
  float base = e.k + udf_log2_wide_high[e.i];
  float first = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base);
  float more = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C1_HI, base - first) +
               udf_log2_wide_low[e.i];
  float q = __builtin_fmaf(e.r, UDF_LOG2_WIDE_C5, UDF_LOG2_WIDE_C4);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C3);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C2);
  q = __builtin_fmaf(e.r, q, UDF_LOG2_WIDE_C1_LO);
  more = __builtin_fmaf(e.r, q, more);
  float log = first + more;
  float log_low = (first - log) + more;

  float t = y * log;
  float t_low = __builtin_fmaf(y, log_low, __builtin_fmaf(y, log, -t));
  float nm = t + UDF_EXP_WIDE_MAGIC;
  float n = nm - UDF_EXP_WIDE_MAGIC;
  float d = t - n;
  uint32_t i = udf_f32_bits(nm) % UDF_EXP_WIDE_STEPS;
  float power = udf_exp_wide_power[i];
  float p = __builtin_fmaf(d, UDF_EXP_WIDE_D4, UDF_EXP_WIDE_D3);
  p = __builtin_fmaf(d, p, UDF_POW_WIDE_D2);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest_d[i]);
  p = __builtin_fmaf(d, p, udf_exp_wide_rest[i]);
  float slope = power * UDF_EXP_WIDE_LN2;
  float high = __builtin_fmaf(slope, d, power);
  float low = __builtin_fmaf(power, p, __builtin_fmaf(slope, d, power - high));
  // exp of it, less 1.
  float u = t_low * UDF_EXP_WIDE_LN2;
  u = __builtin_fmaf(u * 0.5f, u, u);
  low = __builtin_fmaf(high + low, u, low);

  // In units of POW_WIDE_UNIT.
  float width = __builtin_fmaf(d * d, POW_WIDE_EXP / POW_WIDE_UNIT,
                               POW_WIDE_ALL / POW_WIDE_UNIT);
  float square = __builtin_fmaf(e.r, e.r, POW_WIDE_Y / POW_WIDE_UNIT);
  float y_size = __builtin_fabsf(y);
  width = __builtin_fmaf(square, y_size, width);
  float unit = power * POW_WIDE_UNIT;
  float upper = high + __builtin_fmaf(width, unit, low);
  float lower = high + __builtin_fmaf(-width, unit, low);
  float whole = y + POW_WIDE_WHOLE;
  _Bool real =
      (x > 0) | ((whole - POW_WIDE_WHOLE == y) & (y_size < POW_WIDE_WHOLE_MAX));
  uint32_t sign = udf_f32_bits(x) & (udf_f32_bits(whole) << 31);
  _Bool inside = (__builtin_fabsf(t) < POW_WIDE_MAX) & real;
  // Masked, the last sum costs nothing more. No sum is negative; NaN is hard.
  lower = inside ? lower : -1.0f;
  *hard = upper != lower;
  uint32_t power_bits = udf_f32_bits(udf_lane_scale(upper, n));
  return udf_f32_from_bits(power_bits ^ sign);
}
#endif
