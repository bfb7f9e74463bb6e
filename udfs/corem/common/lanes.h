//===- lanes.h - Instructions that C has no operator for ------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The pass udf-lanes knows these functions by name. In a form for AVX-512 a
// call becomes the instruction that the comment names; elsewhere it is what
// stands here. Both round once at most, and give the same for all arguments
// for which neither gives NaN.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LANES_H
#define UDF_LANES_H

// The pass replaces calls, so they must not be inlined before.
#define UDF_LANE static __attribute__((noinline, unused))

// y 2^floor(n) (vscalefps).
UDF_LANE float udf_lane_scale(float y, float n) {
  // What is beyond says no more, and no int holds it.
  n = n < 512.0f ? n : 512.0f;
  n = n > -512.0f ? n : -512.0f;
  return __builtin_ldexpf(y, (int)__builtin_floorf(n));
}

// floor(log2(|x|)), and -infinity of zero (vgetexpps).
UDF_LANE float udf_lane_exponent(float x) { return __builtin_logbf(x); }

// x 2^-floor(log2(x)), in [1, 2); 1 with its sign of zero, 1 of infinity, and
// NaN of x < 0 (vgetmantps).
UDF_LANE float udf_lane_mantissa(float x) {
  float e = __builtin_logbf(x);
  if (!(x >= 0))
    return __builtin_nanf("");
  // Zero and infinity have no exponent.
  return e - e == 0 ? __builtin_ldexpf(x, -(int)e)
                    : __builtin_copysignf(1.0f, x);
}

#endif // UDF_LANES_H
