//===- lanes.h - Instructions that C has no operator for ------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The pass udf-lanes knows these functions by name. In a form for AVX-512 a
// call becomes the instruction that the comment names; elsewhere it is what
// stands here. Both round once, and give the same for all arguments, NaNs
// apart.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LANES_H
#define UDF_LANES_H

// The pass replaces calls, so they must not be inlined before.
#define UDF_LANE static __attribute__((noinline, unused))

// y 2^floor(n) (vscalefps).
UDF_LANE float udf_lane_scale(float y, float n) {
  return __builtin_ldexpf(y, (int)__builtin_floorf(n));
}

#endif // UDF_LANES_H
