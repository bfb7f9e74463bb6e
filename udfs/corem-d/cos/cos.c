//===- cos.c - Correctly rounded float64 cos ------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// common/trig.h has the method, the bounds and their sources.
//
// Of 2^25 random arguments between -4 and 4 10,737 take the accurate path.
// A hard case, 2^-107.7 from the middle of two doubles, relative:
//   x      0x1.6b8a6273d7c21p+0 (0x3ff6b8a6273d7c21)
//
//===----------------------------------------------------------------------===//

#include "../common/trig.h"

UDF_INLINE double udf_cos_fast(double x, int *hard) {
  return udf_trig_fast(x, TRIG_STEPS / 2, hard);
}

UDF_INLINE double udf_cos_quick(double x, int *hard) {
  return udf_trig_quick(x, TRIG_STEPS / 2, hard);
}

static UDF_COLD double udf_cos_accurate(double x) {
  if (x - x != 0)
    return __builtin_nan("");
  if (__builtin_fabs(x) < 0x1p-27)
    return 1;
  return udf_trig_accurate(x, 1);
}
