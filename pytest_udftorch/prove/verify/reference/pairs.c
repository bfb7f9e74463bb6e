//===- pairs.c - Inputs: all encodings, or reproducible pairs -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// For one argument, input number i is the encoding i.  For two, input number i
// is a pair drawn by a counter-based generator, so that any range of pairs can
// be made anywhere, in any order, with the same bits on every machine: integer
// arithmetic only.  Eight kinds of pairs take turns; what they aim at is said
// beside each.
//
//===----------------------------------------------------------------------===//

#include "reference.h"

// Signaling NaNs are made quiet: C leaves open what pow(1, x) is for them.
static uint32_t quiet(uint32_t bits) {
  return (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x00400000 : bits;
}

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection that passes for
// random bits when it is fed a counter.
static uint64_t mix(uint64_t z) {
  z += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

// A number in [0, n).
static uint32_t below(uint64_t bits, uint32_t n) {
  return (uint32_t)(((bits & UINT32_MAX) * n) >> 32);
}

static uint32_t pack(uint32_t sign, uint32_t exponent, uint32_t fraction) {
  return sign << 31 | exponent << 23 | (fraction & 0x7fffff);
}

// The encoding of an integer below 2^24 in magnitude, divided by 2^shift.
static uint32_t scaled_integer(uint32_t sign, uint32_t n, uint32_t shift) {
  if (n == 0)
    return sign << 31;
  uint32_t top = 31 - (uint32_t)__builtin_clz(n);
  return pack(sign, 127 + top - shift, n << (23 - top));
}

static const uint32_t landmarks[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff,
    0x00800000, 0x80800000, 0x3f000000, 0xbf000000, 0x3f7fffff, 0xbf7fffff,
    0x3f800000, 0xbf800000, 0x3f800001, 0xbf800001, 0x40000000, 0xc0000000,
    0x40400000, 0xc0400000, 0x4b7fffff, 0xcb7fffff, 0x4b800000, 0xcb800000,
    0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
    0x3e800000, 0x40800000,
};
enum { LANDMARKS = sizeof landmarks / sizeof *landmarks };

// y such that |x|^y is about 2^target, in units of 1/1024 of an exponent;
// log2|x| is taken to be linear between powers of two.
static uint32_t exponent_for(uint32_t x, int32_t target, uint64_t bits) {
  int64_t log2_x = (int64_t)(x & 0x7fffffff) - (INT64_C(127) << 23);
  if (log2_x == 0)
    log2_x = 1;
  // 2^20 times y, so that both large and small y keep some bits.
  int64_t y = (int64_t)target * (INT64_C(1) << 33) / log2_x;
  uint64_t magnitude = (uint64_t)(y < 0 ? -y : y);
  if (magnitude == 0)
    magnitude = 1;
  uint32_t top = 63 - (uint32_t)__builtin_clzll(magnitude);
  uint32_t fraction =
      (uint32_t)(top >= 23 ? magnitude >> (top - 23) : magnitude << (23 - top));
  fraction ^= (uint32_t)bits & 0xff;
  return pack(y < 0, 127 + top - 20, fraction);
}

static void make_pair(uint64_t seed, uint64_t index, uint32_t *a, uint32_t *b) {
  uint64_t r = mix(mix(seed) ^ index), s = mix(r), t = mix(s);
  uint32_t sign_a = t & 1, sign_b = t >> 1 & 1;
  switch (index & 7) {
  case 0: // every encoding alike
    *a = (uint32_t)r;
    *b = (uint32_t)s;
    break;
  case 1: // ordinary magnitudes
    *a = pack(sign_a, 111 + below(t >> 8, 33), (uint32_t)r);
    *b = pack(sign_b, 111 + below(t >> 32, 33), (uint32_t)s);
    break;
  case 2: // few bits: exact and half-way results
    *a = pack(sign_a, 115 + below(t >> 8, 25),
              UINT32_C(1) << below(r, 24) | UINT32_C(1) << below(r >> 32, 24));
    *b = pack(sign_b, 115 + below(t >> 32, 25),
              UINT32_C(1) << below(s, 24) | UINT32_C(1) << below(s >> 32, 24));
    break;
  case 3: // small integers and their halves and quarters; integer legs
    *a = scaled_integer(sign_a & sign_b, below(r, 1 << 13), t >> 8 & 3);
    *b = scaled_integer(sign_b, below(s, t >> 16 & 1 ? 1 << 13 : 40),
                        t >> 10 & 3);
    break;
  case 4: // x near 1: the largest exponents
    *a = UINT32_C(0x3f800000) + below(r, 1 << 12) - (1 << 11);
    *b = exponent_for(*a, (int32_t)below(s, 290 << 10) - (155 << 10), s >> 32);
    break;
  case 5: // magnitudes close enough for both arguments to matter
    *a = pack(sign_a, 1 + below(t >> 8, 254), (uint32_t)r);
    *b = (*a & 0x7fffffff) + (below(s, 52 << 23) - (26 << 23));
    *b = (*b & 0x7fffffff) | sign_b << 31;
    break;
  case 6: // zeros, infinities, NaNs, thresholds, against anything
    *a = landmarks[below(r, LANDMARKS)];
    *b = t & 4 ? landmarks[below(s, LANDMARKS)] : (uint32_t)s;
    if (t & 8) {
      uint32_t swap = *a;
      *a = *b;
      *b = swap;
    }
    break;
  default: // powers over the whole range of results
    *a = (uint32_t)r & 0x7fffffff;
    *b = exponent_for(*a, (int32_t)below(s, 290 << 10) - (155 << 10), s >> 32);
    break;
  }
}

void udfref_inputs(int32_t arity, uint64_t seed, uint64_t first, uint64_t count,
                   float *a, float *b) {
  for (uint64_t i = 0; i < count; i++) {
    if (arity == 1) {
      a[i] = from_bits((uint32_t)(first + i));
    } else {
      uint32_t x, y;
      make_pair(seed, first + i, &x, &y);
      a[i] = from_bits(quiet(x));
      b[i] = from_bits(quiet(y));
    }
  }
}
