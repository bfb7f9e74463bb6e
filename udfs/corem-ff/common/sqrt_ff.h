//===- sqrt_ff.h - Square roots in float-float ----------------------------===//
// SPDX-License-Identifier: Apache-2.0

#ifndef UDF_SQRT_FF_H
#define UDF_SQRT_FF_H

#include "ff.h"

#ifdef __FMA__

// sqrt(a), relative error below 2^-46: the root of the high part is corrected
// by its remainder, which is exact. 0 gives 0; a.hi is 0 or in [2^-100, 2^120].
UDF_INLINE udf_ff udf_ff_sqrt(udf_ff a) {
  float s = __builtin_sqrtf(a.hi);
  float rest = __builtin_fmaf(-s, s, a.hi) + a.lo;
  // The sum is 2 s, rounded, unless s is 0.
  return (udf_ff){s, rest / (s + s + 0x1p-80f)};
}

#endif

#endif // UDF_SQRT_FF_H
