//===- wide.h - Numbers of 192 bits for the accurate paths ----------------===//
// SPDX-License-Identifier: Apache-2.0
#ifndef UDF_WIDE_H
#define UDF_WIDE_H

#include "common/corem.h"

// The lowest word first.
typedef struct {
  uint64_t word[3];
} udf_wide;

// The high half of a product; what lies below is dropped.
UDF_INLINE udf_wide udf_wide_product(udf_wide a, udf_wide b) {
  uint64_t sum[6] = {0};
  for (int i = 0; i < 3; ++i) {
    uint64_t carry = 0;
    for (int j = 0; j < 3; ++j) {
      unsigned __int128 part =
          (unsigned __int128)a.word[i] * b.word[j] + sum[i + j] + carry;
      sum[i + j] = (uint64_t)part;
      carry = (uint64_t)(part >> 64);
    }
    sum[i + 3] = carry;
  }
  return (udf_wide){{sum[3], sum[4], sum[5]}};
}

// a - b modulo 2^192.
UDF_INLINE udf_wide udf_wide_difference(udf_wide a, udf_wide b) {
  uint64_t borrow = 0;
  for (int i = 0; i < 3; ++i) {
    unsigned __int128 part = (unsigned __int128)a.word[i] - b.word[i] - borrow;
    a.word[i] = (uint64_t)part;
    borrow = (uint64_t)(part >> 64) & 1;
  }
  return a;
}

// Whether a >= b.
UDF_INLINE int udf_wide_not_less(udf_wide a, udf_wide b) {
  for (int i = 2; i > 0; --i)
    if (a.word[i] != b.word[i])
      return a.word[i] > b.word[i];
  return a.word[0] >= b.word[0];
}

// 2 a modulo 2^192.
UDF_INLINE udf_wide udf_wide_twice(udf_wide a) {
  return (udf_wide){{a.word[0] << 1, a.word[1] << 1 | a.word[0] >> 63,
                     a.word[2] << 1 | a.word[1] >> 63}};
}

// a 2^-count, for any count from 0.
UDF_INLINE udf_wide udf_wide_shift_right(udf_wide a, int count) {
  for (; count >= 64; count -= 64)
    a = (udf_wide){{a.word[1], a.word[2], 0}};
  if (count > 0)
    for (int i = 0; i < 3; ++i)
      a.word[i] = a.word[i] >> count |
                  (i < 2 ? a.word[i + 1] << (64 - count) : UINT64_C(0));
  return a;
}

// a 2^63, 2^62, ..., such that the highest bit is set, and how many. a's
// highest word is not zero.
UDF_INLINE udf_wide udf_wide_normal(udf_wide a, int *count) {
  *count = __builtin_clzll(a.word[2]);
  if (*count > 0)
    for (int i = 2; i >= 0; --i)
      a.word[i] = a.word[i] << *count |
                  (i > 0 ? a.word[i - 1] >> (64 - *count) : UINT64_C(0));
  return a;
}

#endif // UDF_WIDE_H
