//===- rsqrtf.c - Correctly rounded float32 rsqrt -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// rsqrt(x) = 1 / sqrt(x) for real x > 0; infinity at 0, -infinity at -0 and 0
// at infinity (IEEE 754-2019, 9.2.1), NaN below.
//
// Method. A square root and a division in double.
//
// Error of the fast path: less than 1.5 units in the last place of the double.
// The rounding test sends everything within RSQRT_MARGIN = 4 units of a
// boundary to the accurate path.
//
// Accurate path. The same in double-double, relative error below 2^-96. There
// are no ties: a midpoint of float32 has 25 bits, and its square more than 24.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "common/corem.h"

#define RSQRT_MARGIN (UINT64_C(1) << 2)

UDF_INLINE float udf_rsqrtf_fast(float x, int *hard) {
  double y = 1 / __builtin_sqrt((double)x);
  *hard = udf_near_boundary(y, RSQRT_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_rsqrtf_accurate(float x) {
  if (!(x > 0 && x < __builtin_inff()))
    return (float)(1 / __builtin_sqrt((double)x));
  udf_dd s = udf_dd_sqrt((udf_dd){x, 0});
  return udf_dd_round(udf_dd_div((udf_dd){1, 0}, s));
}
