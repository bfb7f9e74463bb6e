//===- root_wide.h - What the rounding of a root lost, at AVX-512 ---------===//
// SPDX-License-Identifier: Apache-2.0
//
// The root of s is v + (s - v^2) / (2 v), where v is its rounding. Few bits of
// 1 / (2 v) do, and a division would wait for the unit that takes the root. The
// difference of a constant and the encoding of v is y, near to 1 / (sqrt(2) v);
// one step of Newton's method, with a constant that fits best, leaves an error
// of 2^-12.5. Of what the rounding lost, at most 2^-24 of v, that is 2^-36.5.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ROOT_WIDE_H
#define UDF_ROOT_WIDE_H

#include "corem.h"

#include "root_wide_constants.h"

#ifdef __FMA__

// 1 / (2 v) but for 2^-12.5 of it, for a normal v.
UDF_INLINE float udf_root_wide_half_inverse(float v) {
  float y = udf_f32_from_bits(UDF_ROOT_WIDE_MAGIC - udf_f32_bits(v));
  return y * __builtin_fmaf(-v, y, UDF_ROOT_WIDE_STEP);
}

#endif

#endif // UDF_ROOT_WIDE_H
