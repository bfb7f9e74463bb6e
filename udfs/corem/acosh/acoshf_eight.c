//===- acoshf_eight.c - Quick path of acosh at AVX2 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_eight_pair.h. x^2 - 1 is a pair: d = x^2 rounded - 1 is exact up to
// LIMIT.
//
// Errors found, over all arguments: 2^-32.4 relative below CAP, elsewhere
// 2^-35.6, which MARGIN CAP covers.
//
// Arguments from LIMIT on and NaN are left to the fast path, and so are 1 and
// those below it, whose s_low is NaN; by the rounding test 18,552 of
// 100,663,295 between 1 and LIMIT. A run of all 2^32 arguments found no wrong
// result.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_eight_pair.h"

#ifdef __FMA__
#define ACOSH_EIGHT_MARGIN 0x1.8p-33f
#define ACOSH_EIGHT_CAP 0.13f
#define ACOSH_EIGHT_LIMIT 0x1p12f
// Where s = sinh(acosh(x)) is below it the series is used.
#define ACOSH_EIGHT_SMALL 0x1.8p-5f

UDF_INLINE udf_log_eight_pair udf_acoshf_eight_pair(float x) {
  // sinh = sqrt(x^2 - 1) in a pair.
  // |x|, so that x <= -1 gives NaN.
  float a = __builtin_fabsf(x);
  float p = x * a;
  float p_low = __builtin_fmaf(x, a, -p);
  float d = p - 1.0f;
  float h = d + p_low;
  float h_low = p_low - (h - d);
  float s = __builtin_sqrtf(h);
  float rest = __builtin_fmaf(-s, s, h) + h_low;
  float s_low = 0.5f * (rest / s);
  float f = x + s;
  float e = s_low + (s - (f - x));
  return udf_asinh_eight(udf_log_eight_of_pair(f, e), s, s_low,
                         ACOSH_EIGHT_SMALL);
}

UDF_INLINE float udf_acoshf_eight(float x, int *hard) {
  udf_log_eight_pair y = udf_acoshf_eight_pair(x);
  float width = y.high < ACOSH_EIGHT_CAP ? y.high : ACOSH_EIGHT_CAP;
  float upper = y.high + __builtin_fmaf(width, ACOSH_EIGHT_MARGIN, y.low);
  float lower = y.high + __builtin_fmaf(width, -ACOSH_EIGHT_MARGIN, y.low);
  *hard = (upper != lower) | !(x < ACOSH_EIGHT_LIMIT);
  return upper;
}
#endif
