//===- expm1f.c - expm1 of fewer bits -------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// 2^k (r P(r) + (1 - 2^-k)) with x = k ln(2) + r.  For k = 0 it is r P(r), with
// its relative error near zero; elsewhere little cancels.
//
//===----------------------------------------------------------------------===//

#include "ladder.h"

UDF_INLINE float udf_ladder_expm1f(float x) {
  // Comparisons are written so that NaN passes.
  float c = x > 90.0f ? 90.0f : x;
  c = c < -20.0f ? -20.0f : c;
  float km = LADDER_STEP(c, 0x1.715476p+0f, LADDER_MAGIC);
  float n = km - LADDER_MAGIC;
  float r = LADDER_STEP(n, -0x1.62e4p-1f, c);
  r = LADDER_STEP(n, -0x1.7f7d1cp-20f, r);
  int32_t k = (int32_t)(udf_f32_bits(km) & UINT32_C(0x7fffff)) - 0x400000;
  // NaN has an arbitrary k, and stays NaN.
  k = k < -160 ? 0 : k;
  int32_t low = k > 126 ? 126 : k;
  float p = LADDER_STEP(r, LADDER_EXPM1(r), 1.0f - udf_ladder_scale(-low));
  int32_t half = k >> 1;
  float y = p * udf_ladder_scale(half) * udf_ladder_scale(k - half);
  // What overflows is decided as by exact results.
  y = y > 0x1.fffffep127f ? 0x1.fffffep127f : y;
  y = x > 0x1.62e42ep6f ? __builtin_inff() : y;
  return x == 0 ? x : y;
}
