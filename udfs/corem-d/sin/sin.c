//===- sin.c - Correctly rounded float64 sin ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// common/trig.h has the method, the bounds and their sources.
//
// @rates@
//
//===----------------------------------------------------------------------===//

#include "../common/trig.h"

UDF_INLINE double udf_sin_fast(double x, int *hard) {
  double y = udf_trig_fast(x, 0, hard);
  return x == 0 ? x : y; // the sign of zero
}

static UDF_COLD double udf_sin_accurate(double x) {
  if (x - x != 0)
    return __builtin_nan("");
  if (__builtin_fabs(x) < 0x1p-27)
    return x;
  double y = udf_trig_accurate(x, 0);
  return x < 0 ? -y : y;
}
