//===- posit.h - Results as 16-bit posits ---------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// corem's float32 result, rounded once more to the nearest posit of 16 bits
// with two bits of exponent (Posit Working Group, Standard for Posit
// Arithmetic, 2022).  A posit is a sign, a run of equal bits that says the
// exponent over 4 (the regime), the rest of the exponent, and a fraction; the
// longer the run, the fewer bits are left.  Rounding cuts the string of bits,
// ties to even: udf_format_round builds the string of a float32 without its
// sign, cuts it after 15 bits, and reads it again.
//
// No result but zero becomes zero, and none becomes infinite: the smallest and
// the largest posit are 2^-56 and 2^56.  NaN stands for NaR.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_FORMAT_POSIT_H
#define UDF_FORMAT_POSIT_H

#include "common/corem.h"

#define POSIT_BITS 15 // without the sign
#define POSIT_MAX_EXPONENT 56
// Bits behind the regime: two of the exponent, 23 of the fraction.
#define POSIT_TAIL 25

UDF_INLINE float udf_format_round(float y) {
  const uint32_t largest = (uint32_t)(127 + POSIT_MAX_EXPONENT) << 23;
  const uint32_t smallest = (uint32_t)(127 - POSIT_MAX_EXPONENT) << 23;
  uint32_t u = udf_f32_bits(y) & UINT32_C(0x7fffffff);
  // What lies outside is set below; here it only has to be shifted validly.
  uint32_t v = u < smallest ? smallest : u;
  v = v < largest ? v : largest - 1;
  int32_t exponent = (int32_t)(v >> 23) - 127;
  int32_t k = ((exponent + POSIT_MAX_EXPONENT) >> 2) - POSIT_MAX_EXPONENT / 4;
  int32_t ones = k < 0 ? 0 : k + 1;
  uint64_t regime = k < 0 ? 1 : (UINT64_C(1) << (ones + 1)) - 2;
  int32_t length = k < 0 ? 1 - k : k + 2;
  uint64_t tail =
      ((uint64_t)(uint32_t)(exponent - 4 * k) << 23) | (v & UINT32_C(0x7fffff));
  uint64_t string = (regime << POSIT_TAIL) | tail;
  int32_t cut = length + POSIT_TAIL - POSIT_BITS;
  string += ((UINT64_C(1) << (cut - 1)) - 1) + ((string >> cut) & 1);
  string = (string >> cut) << cut;
  // A carry into the regime leaves no other bits: the first number of the next.
  int32_t next = (string >> POSIT_TAIL) != regime ? 1 : 0;
  uint32_t rest = (uint32_t)(string & ((UINT64_C(1) << POSIT_TAIL) - 1));
  uint32_t r = ((uint32_t)(4 * (k + next) + 127) << 23) + rest;
  r = u < largest ? r : largest;
  r = u > smallest ? r : smallest;
  float magnitude = udf_f32_from_bits(r);
  magnitude = u < UINT32_C(0x7f800000) ? magnitude : __builtin_nanf("");
  return u == 0 ? 0.0f : udf_f32_add_sign(magnitude, y);
}

#endif // UDF_FORMAT_POSIT_H
