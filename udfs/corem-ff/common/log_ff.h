//===- log_ff.h - The logarithms in float-float ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1 (exact), s = f / (f + 2)
// and log(m) = s P(s^2), P of six terms, the last three in float.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LOG_FF_H
#define UDF_LOG_FF_H

#include "ff.h"

#include "log_ff_constants.h"

#ifdef __FMA__

// Splits x > 0, normal: returns m and gives k.
UDF_INLINE float udf_log_ff_split(float x, float *k) {
  uint32_t u = udf_f32_bits(x);
  uint32_t t = u - UDF_LOG_FF_SQRT_HALF;
  *k = udf_f32_from_bits((uint32_t)((int32_t)t >> 23) + UINT32_C(0x4b400000)) -
       UDF_FF_ROUND_MAGIC;
  return udf_f32_from_bits(u - (t & UINT32_C(0xff800000)));
}

// 2 atanh(s) for |s| <= 0.1718.
UDF_INLINE udf_ff udf_atanh2_ff(udf_ff s) {
  udf_ff z = udf_ff_mul(s, s);
  float t = __builtin_fmaf(z.hi, UDF_LOG_FF_C5, UDF_LOG_FF_C4);
  t = __builtin_fmaf(z.hi, t, UDF_LOG_FF_C3);
  udf_ff q = udf_ff_add(UDF_FF(UDF_LOG_FF_C2), udf_ff_two_prod(t, z.hi));
  q = udf_ff_step(q, z, UDF_FF(UDF_LOG_FF_C1));
  q = udf_ff_add_f(2, udf_ff_mul(q, z));
  return udf_ff_mul(q, s);
}

// log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)]; f.lo is a float's last bits.
UDF_INLINE udf_ff udf_log_ff_of(udf_ff f) {
  udf_ff d = udf_ff_fast_two_sum(2, f.hi);
  d.lo += f.lo;
  return udf_atanh2_ff(udf_ff_div(f, d));
}

// k c + y, where |y| is not above |c| / 2, for integers k below 2^8.
UDF_INLINE udf_ff udf_log_ff_add(float k, udf_ff c, udf_ff y) {
  return udf_ff_add(udf_ff_mul_f(c, k), y);
}

// Zero, subnormal, negative, infinite and NaN arguments of a logarithm.
UDF_INLINE int udf_log_ff_special(float x) {
  return udf_f32_bits(x) - UINT32_C(0x00800000) >= UINT32_C(0x7f000000);
}

#endif

#endif // UDF_LOG_FF_H
