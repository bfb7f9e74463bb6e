//===- tanhf.c - tanh of fewer bits ---------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// E / (E + 2) with E = expm1(2|x|) = 2^k r P(r) + (2^k - 1), where 2|x| = k
// ln(2)
// + r: nothing cancels, and near zero E has its relative error.
//
//===----------------------------------------------------------------------===//

#include "ladder.h"

UDF_INLINE float udf_ladder_tanhf(float x) {
  float a = __builtin_fabsf(x);
  a = a > LADDER_TANH_MAX ? LADDER_TANH_MAX : a;
  float z = a + a;
  float km = LADDER_STEP(z, 0x1.715476p+0f, LADDER_MAGIC);
  float n = km - LADDER_MAGIC;
  float r = LADDER_STEP(n, -0x1.62e4p-1f, z);
  r = LADDER_STEP(n, -0x1.7f7d1cp-20f, r);
  float s = udf_ladder_scale((int32_t)((udf_f32_bits(km) & UINT32_C(0xff))));
  float e = LADDER_STEP(s * r, LADDER_EXPM1(r), s - 1.0f);
  float y = e / (e + 2.0f);
  return udf_f32_add_sign(y, x);
}
