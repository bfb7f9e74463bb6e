//===- expf.c - exp of fewer bits -----------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Up to 12 bits: 2^(k + f) with k + f = x log2(e) in float32, whose rounding
// errs by less than 2^-17.  Above: x = k ln(2) + r, with ln(2) in two parts, of
// which k times the first is exact.  2^k is two factors, so that results
// become subnormal as they should.
//
//===----------------------------------------------------------------------===//

#include "ladder.h"

UDF_INLINE float udf_ladder_expf(float x) {
  // Comparisons are written so that NaN passes.
  float c = x > 90.0f ? 90.0f : x;
  c = c < -105.0f ? -105.0f : c;
#if LADDER_BITS <= 12
  float t = c * 0x1.715476p+0f;
  float km = t + LADDER_MAGIC;
  float f = t - (km - LADDER_MAGIC);
  float p = LADDER_EXP2(f);
#else
  float km = LADDER_STEP(c, 0x1.715476p+0f, LADDER_MAGIC);
  float n = km - LADDER_MAGIC;
  float r = LADDER_STEP(n, -0x1.62e4p-1f, c);
  r = LADDER_STEP(n, -0x1.7f7d1cp-20f, r);
  float p = LADDER_EXP(r);
#endif
  // NaN has an arbitrary k, and stays NaN.
  int32_t k = (int32_t)(udf_f32_bits(km) & UINT32_C(0x7fffff)) - 0x400000;
  k = k < -160 ? 0 : k;
  int32_t half = k >> 1;
  float y = p * udf_ladder_scale(half) * udf_ladder_scale(k - half);
  // What overflows is decided as by exact results.
  y = y > 0x1.fffffep127f ? 0x1.fffffep127f : y;
  return x > 0x1.62e42ep6f ? __builtin_inff() : y;
}
