//===- asinhf_wide.c - Quick path of asinh at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See asinh_wide.h. h = a^2 + 1 rounded is at least 1, and h - 1 is exact up
// to LIMIT, so that h_low is a^2 + 1 - h but for one rounding. Arguments from
// LIMIT on, infinities and NaN are left to the fast path.
//
// Left to the fast path by the rounding test: 125,878 of 2,332,033,024
// arguments below LIMIT. A run of all 2^32 arguments found no wrong result;
// with half the width those in [2^-7, 1) did.
//
//===----------------------------------------------------------------------===//

#include "../common/asinh_wide.h"
#include "../common/corem.h"

#ifdef __FMA__
#define ASINH_WIDE_LIMIT 0x1p12f

UDF_INLINE float udf_asinhf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // cosh = sqrt(a^2 + 1) in a pair.
  float h = __builtin_fmaf(a, a, 1.0f);
  float h_low = __builtin_fmaf(a, a, 1.0f - h);
  float c = __builtin_sqrtf(h);
  float rest = __builtin_fmaf(-c, c, h) + h_low;
  float f = c + a;
  float e = (a - (f - c)) + udf_log1p_wide_half_quotient(rest, c);
  udf_log1p_wide_pair large = udf_log1p_wide_of_pair(f, e);
  const float *p = udf_asinh_wide_poly;
  float w = a * a;
  float cube = a * w;
  float q = __builtin_fmaf(__builtin_fmaf(p[2], w, p[1]), w, p[0]);
  _Bool small = a < UDF_LOG1P_WIDE_PAIR_END;
  float high = small ? a : large.high;
  float low = small ? cube * q : large.low;
  float size =
      cube < UDF_LOG1P_WIDE_PAIR_CUBE ? cube : UDF_LOG1P_WIDE_PAIR_CUBE;
  return udf_f32_add_sign(
      udf_log1p_wide_pair_round((udf_log1p_wide_pair){high, low}, size,
                                UDF_LOG1P_WIDE_PAIR_CUBIC, a < ASINH_WIDE_LIMIT,
                                hard),
      x);
}
#endif
