//===- erff.c - erf of fewer bits -----------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// a P(a^2 - center) for a = |x| up to where erf is 1 to a quarter of the bound.
// Above 12 bits in double: in float32 the terms of P would leave too few.
//
//===----------------------------------------------------------------------===//

#include "ladder.h"

UDF_INLINE float udf_ladder_erff(float x) {
  float a = __builtin_fabsf(x);
  a = a > LADDER_ERF_MAX ? LADDER_ERF_MAX : a;
#if LADDER_BITS <= 12
  float t = LADDER_STEP(a, a, -LADDER_ERF_CENTER);
  float y = a * LADDER_ERF(t);
#else
  double t = UDF_FMA((double)a, (double)a, -LADDER_ERF_CENTER);
  float y = (float)(a * LADDER_ERF(t));
#endif
  return udf_f32_add_sign(y, x);
}
