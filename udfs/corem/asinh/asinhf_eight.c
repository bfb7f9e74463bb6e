//===- asinhf_eight.c - Quick path of asinh at AVX2 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_eight_pair.h. h = a^2 + 1 rounded is at least 1, and h - 1 is exact
// up to LIMIT, so that h_low is a^2 + 1 - h but for one rounding.
//
// Errors found, over all arguments in [2^-6, 2^4) and every third of others:
// 2^-32.5 relative below 1/8, which MARGIN covers, and elsewhere 2^-35.5, which
// MARGIN CAP covers.
//
// Arguments from LIMIT on, infinities and NaN are left to the fast path, and by
// the rounding test 426,073 of 209,715,200 arguments in [2^-13, LIMIT), and
// none below. A run of all 2^32 arguments found no wrong result.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_eight_pair.h"

#ifdef __FMA__
#define ASINH_EIGHT_MARGIN 0x1.8p-33f
#define ASINH_EIGHT_CAP 0.13f
#define ASINH_EIGHT_LIMIT 0x1p12f
// Below it the series is used.
#define ASINH_EIGHT_SMALL 0x1.4p-4f

UDF_INLINE udf_log_eight_pair udf_asinhf_eight_pair(float a) {
  // cosh = sqrt(a^2 + 1) in a pair.
  float h = __builtin_fmaf(a, a, 1.0f);
  float h_low = __builtin_fmaf(a, a, 1.0f - h);
  float c = __builtin_sqrtf(h);
  float rest = __builtin_fmaf(-c, c, h) + h_low;
  float f = c + a;
  float e = __builtin_fmaf(rest / c, 0.5f, a - (f - c));
  return udf_asinh_eight(udf_log_eight_of_pair(f, e), a, 0, ASINH_EIGHT_SMALL);
}

UDF_INLINE float udf_asinhf_eight(float x, int *hard) {
  float a = __builtin_fabsf(x);
  udf_log_eight_pair y = udf_asinhf_eight_pair(a);
  float width = y.high < ASINH_EIGHT_CAP ? y.high : ASINH_EIGHT_CAP;
  float upper = y.high + __builtin_fmaf(width, ASINH_EIGHT_MARGIN, y.low);
  float lower = y.high + __builtin_fmaf(width, -ASINH_EIGHT_MARGIN, y.low);
  *hard = (upper != lower) | !(a < ASINH_EIGHT_LIMIT);
  return udf_f32_add_sign(upper, x);
}
#endif
