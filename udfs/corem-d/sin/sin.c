//===- sin.c - Correctly rounded float64 sin ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// common/trig.h has the method, the bounds and their sources.
//
// Of 2^25 random arguments between -4 and 4 10,501 take the accurate path.
// A hard case, 2^-112.5 from the middle of two doubles, relative:
//   x      0x1.598bae9e632f6p-7 (0x3f8598bae9e632f6)
//
//===----------------------------------------------------------------------===//

#include "../common/trig.h"

UDF_INLINE double udf_sin_fast(double x, int *hard) {
  double y = udf_trig_fast(x, 0, hard);
  return x == 0 ? x : y; // the sign of zero
}

UDF_INLINE double udf_sin_quick(double x, int *hard) {
  double y = udf_trig_quick(x, 0, hard);
  return x == 0 ? x : y;
}

static UDF_COLD double udf_sin_accurate(double x) {
  if (x - x != 0)
    return __builtin_nan("");
  if (__builtin_fabs(x) < 0x1p-27)
    return x;
  double y = udf_trig_accurate(x, 0);
  return x < 0 ? -y : y;
}
