//===- long.h - Numbers of 512 bits after the point -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// For what no shorter path decides. Two's complement, in units of 2^-512: the
// last of nine words is the whole part.
//
//===----------------------------------------------------------------------===//
#ifndef UDF_LONG_H
#define UDF_LONG_H

#include "common/corem.h"

#define UDF_LONG_WORDS 9

// The lowest word first.
typedef struct {
  uint64_t word[UDF_LONG_WORDS];
} udf_long;

UDF_INLINE int udf_long_negative(udf_long a) {
  return (int)(a.word[UDF_LONG_WORDS - 1] >> 63);
}

UDF_INLINE udf_long udf_long_sum(udf_long a, udf_long b) {
  unsigned __int128 carry = 0;
  for (int i = 0; i < UDF_LONG_WORDS; ++i) {
    carry += (unsigned __int128)a.word[i] + b.word[i];
    a.word[i] = (uint64_t)carry;
    carry >>= 64;
  }
  return a;
}

UDF_INLINE udf_long udf_long_minus(udf_long a) {
  unsigned __int128 carry = 1;
  for (int i = 0; i < UDF_LONG_WORDS; ++i) {
    carry += ~a.word[i];
    a.word[i] = (uint64_t)carry;
    carry >>= 64;
  }
  return a;
}

UDF_INLINE udf_long udf_long_difference(udf_long a, udf_long b) {
  return udf_long_sum(a, udf_long_minus(b));
}

// a 2^-count for a >= 0, truncated.
UDF_INLINE udf_long udf_long_shift_right(udf_long a, int count) {
  int words = count / 64, bits = count % 64;
  for (int i = 0; i < UDF_LONG_WORDS; ++i) {
    int from = i + words;
    uint64_t low = from < UDF_LONG_WORDS ? a.word[from] : 0;
    uint64_t high = from + 1 < UDF_LONG_WORDS ? a.word[from + 1] : 0;
    a.word[i] = bits ? low >> bits | high << (64 - bits) : low;
  }
  return a;
}

// The product of numbers that are not negative, truncated. Functions that are
// not inlined take structures by address: by value, the LLVM of Triton 3.6
// cannot compile them for GPUs.
static UDF_COLD udf_long udf_long_product(const udf_long *a,
                                          const udf_long *b) {
  uint64_t sum[2 * UDF_LONG_WORDS] = {0};
  for (int i = 0; i < UDF_LONG_WORDS; ++i) {
    uint64_t carry = 0;
    for (int j = 0; j < UDF_LONG_WORDS; ++j) {
      unsigned __int128 part =
          (unsigned __int128)a->word[i] * b->word[j] + sum[i + j] + carry;
      sum[i + j] = (uint64_t)part;
      carry = (uint64_t)(part >> 64);
    }
    sum[i + UDF_LONG_WORDS] = carry;
  }
  udf_long product;
  for (int i = 0; i < UDF_LONG_WORDS; ++i)
    product.word[i] = sum[i + UDF_LONG_WORDS - 1];
  return product;
}

// a times a whole number times 2^places, for a >= 0, truncated.
UDF_INLINE udf_long udf_long_scaled(udf_long a, uint64_t whole, int places) {
  // One word more above, and none lost below before the shift.
  uint64_t sum[UDF_LONG_WORDS + 1];
  unsigned __int128 carry = 0;
  for (int i = 0; i < UDF_LONG_WORDS; ++i) {
    carry += (unsigned __int128)a.word[i] * whole;
    sum[i] = (uint64_t)carry;
    carry >>= 64;
  }
  sum[UDF_LONG_WORDS] = (uint64_t)carry;
  // Left by up to 63 bits, or right.
  int left = places > 0 ? places : 0, right = places > 0 ? 0 : -places;
  int words = right / 64, bits = right % 64;
  for (int i = 0; i < UDF_LONG_WORDS; ++i) {
    int from = i + words;
    uint64_t below = i > 0 ? sum[i - 1] : 0;
    uint64_t low = from <= UDF_LONG_WORDS ? sum[from] : 0;
    uint64_t high = from < UDF_LONG_WORDS ? sum[from + 1] : 0;
    if (left > 0)
      a.word[i] = sum[i] << left | below >> (64 - left);
    else
      a.word[i] = bits ? low >> bits | high << (64 - bits) : low;
  }
  return a;
}

// |x|, for |x| < 2^63 a multiple of 2^-512.
UDF_INLINE udf_long udf_long_of(double x) {
  uint64_t bits = udf_f64_bits(x) & UINT64_C(0x7fffffffffffffff);
  udf_long one = {{0}};
  one.word[UDF_LONG_WORDS - 1] = 1;
  if (bits == 0)
    return (udf_long){{0}};
  uint64_t m = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1) << 52;
  return udf_long_scaled(one, m, (int)(bits >> 52) - 1075);
}

#endif // UDF_LONG_H
