//===- fixed.h - Integers of 128 bits for the accurate paths --------------===//
// SPDX-License-Identifier: Apache-2.0
#ifndef UDF_FIXED_H
#define UDF_FIXED_H

#include "common/corem.h"

typedef unsigned __int128 udf_u128;
#define UDF_WORDS(high, low)                                                   \
  ((udf_u128)UINT64_C(high) << 64 | (udf_u128)UINT64_C(low))

// The high 128 bits of a product, less one unit at most: the sum of the
// products in the middle may carry from what is left out.
UDF_INLINE udf_u128 udf_high_product(udf_u128 a, udf_u128 b) {
  uint64_t ah = (uint64_t)(a >> 64), al = (uint64_t)a;
  uint64_t bh = (uint64_t)(b >> 64), bl = (uint64_t)b;
  udf_u128 left = (udf_u128)ah * bl;
  udf_u128 right = (udf_u128)al * bh;
  udf_u128 lowest = ((udf_u128)al * bl) >> 64;
  udf_u128 middle = lowest + (uint64_t)left + (uint64_t)right;
  return (udf_u128)ah * bh + (left >> 64) + (right >> 64) + (middle >> 64);
}

// Of the 192 bits of a product those above the lowest 64, which are dropped.
UDF_INLINE udf_u128 udf_high_product_64(uint64_t a, udf_u128 b) {
  udf_u128 low = (udf_u128)a * (uint64_t)b;
  return (udf_u128)a * (uint64_t)(b >> 64) + (low >> 64);
}

#endif // UDF_FIXED_H
