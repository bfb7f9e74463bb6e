//===- flip.h - Inverts the lowest bit of a double ------------------------===//
// SPDX-License-Identifier: Apache-2.0
#ifndef UDF_CANARY_D_FLIP_H
#define UDF_CANARY_D_FLIP_H

#include "common/corem.h"

// Finite, nonzero results only, as canary does for float32.
UDF_INLINE double udf_canary_flip(double y) {
  uint64_t u = udf_f64_bits(y);
  uint64_t magnitude = u & UINT64_C(0x7fffffffffffffff);
  _Bool plain = (magnitude != 0) & (magnitude < UINT64_C(0x7ff0000000000000));
  return udf_f64_from_bits(u ^ (uint64_t)plain);
}

#endif // UDF_CANARY_D_FLIP_H
