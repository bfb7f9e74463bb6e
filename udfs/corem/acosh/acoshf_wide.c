//===- acoshf_wide.c - Quick path of acosh at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See asinh_wide.h. x^2 - 1 is a pair: d = x^2 rounded - 1 is exact up to
// LIMIT. acosh(x) is asinh(s), s = sqrt(x^2 - 1); s has a low part, so that the
// width of the rounding test is in proportion to s and not to s^3.
//
// Arguments from LIMIT on and NaN are left to the fast path, and so are those
// below 1, whose s is NaN.
//
// Left to the fast path by the rounding test: 5,176 of 100,663,296 arguments in
// [1, LIMIT). A run of all 2^32 arguments found no wrong result; with half the
// width those in [1, 8) did.
//
//===----------------------------------------------------------------------===//

#include "../common/asinh_wide.h"
#include "../common/corem.h"

#ifdef __FMA__
#define ACOSH_WIDE_LIMIT 0x1p12f

UDF_INLINE float udf_acoshf_wide(float x, int *hard) {
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
  float s_low = udf_log1p_wide_half_quotient(rest, s);
  float f = x + s;
  float e = s_low + (s - (f - x));
  udf_log1p_wide_pair large = udf_log1p_wide_of_pair(f, e);
  const float *c = udf_asinh_wide_poly;
  float w = s * s;
  float q = __builtin_fmaf(__builtin_fmaf(c[2], w, c[1]), w, c[3]);
  q = __builtin_fmaf(q, w, UDF_LOG1P_WIDE_PAIR_LINEAR);
  _Bool small = s < UDF_LOG1P_WIDE_PAIR_END;
  float high = small ? s : large.high;
  float low = small ? __builtin_fmaf(s, q, s_low) : large.low;
  float size = small ? s : UDF_LOG1P_WIDE_PAIR_END;
  return udf_log1p_wide_pair_round((udf_log1p_wide_pair){high, low}, size,
                                   2 * UDF_LOG1P_WIDE_PAIR_LINEAR,
                                   x < ACOSH_WIDE_LIMIT, hard);
}
#endif
