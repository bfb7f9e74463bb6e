//===- logf.c - log of fewer bits -----------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = 2^k (1 + t) with 1 + t in [sqrt(1/2), sqrt(2)): k ln(2) + t P(t).  t is
// exact, so results near 1 have their relative error.
//
//===----------------------------------------------------------------------===//

#include "ladder.h"

UDF_INLINE float udf_ladder_logf(float x) {
  uint32_t u = udf_f32_bits(x);
  _Bool subnormal = u < UINT32_C(0x00800000);
  // Below the magic number a subnormal becomes normal without a multiplication,
  // which would flush it where denormals count as zero.
  float normal = udf_f32_from_bits(u | UINT32_C(0x3f800000)) - 1.0f; // u 2^-23
  uint32_t v = subnormal ? udf_f32_bits(normal) : u;
  int32_t k = (int32_t)(v - UINT32_C(0x3f3504f3)) >> 23;
  float t = udf_f32_from_bits(v - ((uint32_t)k << 23)) - 1.0f;
  float n = (float)(subnormal ? k - 126 : k);
  float y = LADDER_STEP(n, 0x1.62e43p-1f, t * LADDER_LOG(t));
  // NaN and infinity have an exponent of 128.
  y = u < UINT32_C(0x7f800000) ? y : x + x;
  y = u > UINT32_C(0x80000000) ? __builtin_nanf("") : y;
  return (u << 1) == 0 ? -__builtin_inff() : y;
}
