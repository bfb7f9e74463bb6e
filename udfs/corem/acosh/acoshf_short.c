//===- acoshf_short.c - Short path of the scalar form of acosh ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// acosh(x) = log(z), z = x + sqrt(x^2 - 1), with log as in log_short.h; x^2 and
// x^2 - 1 are exact as long as the latter counts. z errs by 2^-53 relative
// where it is near 1, and the result is 2^-11 there at least, so that 2^-42 of
// it is added to the error of the logarithm. Arguments below 1, infinities and
// NaN are left to the fast path.
//
// Left to the fast path by the rounding test: 516,075 of 1,056,964,609
// arguments. The hardest case is that of acoshf.c.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_short.h"

UDF_INLINE float udf_acoshf_short(float x, int *hard) {
  // The encodings of 1 to the largest float.
  if (udf_f32_bits(x) - UINT32_C(0x3f800000) >= UINT32_C(0x40000000)) {
    *hard = 1;
    return x;
  }
  double d = x;
  double z = d + __builtin_sqrt(d * d - 1);
  double y = udf_log_short_sum(
      udf_log_short_split_double(z, udf_log_short_binade, udf_log_short_table),
      udf_log_short_poly);
  *hard = udf_near_boundary(y, UDF_LOG_SHORT_MARGIN);
  return (float)y;
}
