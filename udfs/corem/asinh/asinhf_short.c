//===- asinhf_short.c - Short path of the scalar form of asinh ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// asinh|x| = log(z), z = |x| + sqrt(x^2 + 1), with log as in log_short.h; x^2
// is exact. z errs by less than 2^-51.6, and the result is 2^-6 at least, so
// that 2^-45.6 of it is added to the error of the logarithm. Arguments below
// 2^-6 in magnitude, infinities and NaN are left to the fast path.
//
// Left to the fast path by the rounding test: 1,081,602 of 2,214,592,514
// arguments. The hardest case is that of asinhf.c.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_short.h"

UDF_INLINE float udf_asinhf_short(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // The encodings of 2^-6 to the largest float.
  if (udf_f32_bits(a) - UINT32_C(0x3c800000) >= UINT32_C(0x43000000)) {
    *hard = 1;
    return x;
  }
  double d = a;
  double z = d + __builtin_sqrt(d * d + 1);
  double y = udf_log_short_sum(
      udf_log_short_split_double(z, udf_log_short_binade, udf_log_short_table),
      udf_log_short_poly);
  *hard = udf_near_boundary(y, UDF_LOG_SHORT_MARGIN);
  return udf_f32_add_sign((float)y, x);
}
