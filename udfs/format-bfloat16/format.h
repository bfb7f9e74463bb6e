//===- format.h - Results in a shorter number format ----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// corem's float32 result, rounded once more to the nearest number of a format,
// ties to even.  The macros describe the format:
//
//   FORMAT_PRECISION     bits of a significand, with the implied one
//   FORMAT_MIN_EXPONENT  of the smallest normal number
//   FORMAT_MAX           the largest finite number
//   FORMAT_OVERFLOW      what a result beyond it becomes: FORMAT_INFINITY, or
//                        FORMAT_NAN where there is no infinity (OCP E4M3)
//
// With FORMAT_POSIT it is a posit of 16 bits instead (posit.h).
//
// Adding and subtracting 1.5 * 2^52 units in the last place of the format
// rounds a double to it; a float32 result and the constant fit in.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_FORMAT_H
#define UDF_FORMAT_H

#include "common/corem.h"

#ifdef FORMAT_POSIT
#include "posit.h"
#else

#define FORMAT_INFINITY __builtin_inff()
#define FORMAT_NAN __builtin_nanf("")

UDF_INLINE float udf_format_round(float y) {
  uint32_t u = udf_f32_bits(y) & UINT32_C(0x7fffffff);
  int32_t exponent = (int32_t)(u >> 23) - 127;
  exponent = exponent < FORMAT_MIN_EXPONENT ? FORMAT_MIN_EXPONENT : exponent;
  double magic = udf_f64_from_bits(
      ((uint64_t)(exponent - FORMAT_PRECISION + 1 + 52 + 1023) << 52) |
      (UINT64_C(1) << 51));
  double a = udf_f32_from_bits(u);
  double rounded = (a + magic) - magic;
  float r = rounded > FORMAT_MAX ? FORMAT_OVERFLOW : (float)rounded;
  // Infinities and NaNs.
  r = u < UINT32_C(0x7f800000) ? r : udf_f32_from_bits(u) + FORMAT_OVERFLOW;
  return udf_f32_add_sign(r, y);
}

#endif // FORMAT_POSIT

#define UDF_FORMAT(NAME)                                                       \
  UDF_INLINE float udf_format_##NAME##_fast(float x, int *hard) {              \
    return udf_format_round(udf_##NAME##_fast(x, hard));                       \
  }                                                                            \
  static UDF_COLD float udf_format_##NAME##_accurate(float x) {                \
    return udf_format_round(udf_##NAME##_accurate(x));                         \
  }

#endif // UDF_FORMAT_H
