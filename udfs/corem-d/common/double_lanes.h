//===- double_lanes.h - Instructions that C has no operator for -----------===//
// SPDX-License-Identifier: Apache-2.0
//
// As corem's lanes.h, for double.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_DOUBLE_LANES_H
#define UDF_DOUBLE_LANES_H

// The pass udf-lanes replaces calls, so they must not be inlined before.

// y 2^floor(n) (vscalefpd).
static __attribute__((noinline, unused)) double
udf_lane_scale_double(double y, double n) {
  // What is beyond says no more, and no int holds it.
  n = n < 4096.0 ? n : 4096.0;
  n = n > -4096.0 ? n : -4096.0;
  return __builtin_ldexp(y, (int)__builtin_floor(n));
}

#endif // UDF_DOUBLE_LANES_H
