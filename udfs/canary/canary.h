//===- canary.h - Deliberately wrong in the last bit ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// canary(x) is corem(x) with the lowest bit of its encoding inverted, for
// every result that is finite and not zero; zeros, infinities and NaNs are
// corem's.  The same for functions of two arguments.  A result is thus always
// the float32 next to the correctly rounded one: an operator that shows corem's
// bits under canary was not reached, and a checker that lets canary pass does
// not check.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_CANARY_H
#define UDF_CANARY_H

#include "common/corem.h"

UDF_INLINE float udf_canary_flip(float y) {
  uint32_t u = udf_f32_bits(y);
  uint32_t magnitude = u & UINT32_C(0x7fffffff);
  int plain = (magnitude != 0) & (magnitude < UINT32_C(0x7f800000));
  return udf_f32_from_bits(u ^ (uint32_t)plain);
}

#define UDF_CANARY(NAME)                                                       \
  UDF_INLINE float udf_canary_##NAME##_fast(float x, int *hard) {              \
    return udf_canary_flip(udf_##NAME##_fast(x, hard));                        \
  }                                                                            \
  static UDF_COLD float udf_canary_##NAME##_accurate(float x) {                \
    return udf_canary_flip(udf_##NAME##_accurate(x));                          \
  }

#define UDF_CANARY_2(NAME)                                                     \
  UDF_INLINE float udf_canary_##NAME##_fast(float x, float y, int *hard) {     \
    return udf_canary_flip(udf_##NAME##_fast(x, y, hard));                     \
  }                                                                            \
  static UDF_COLD float udf_canary_##NAME##_accurate(float x, float y) {       \
    return udf_canary_flip(udf_##NAME##_accurate(x, y));                       \
  }

#endif // UDF_CANARY_H
