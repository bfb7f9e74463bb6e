//===- tanhf_wide.c - Quick path of tanh at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in odd_quick.h, with fewer vector instructions. |x| + ORIGIN numbers the
// intervals, eight to an octave from 5/8 to 10, without a product. That makes
// them shorter, too, where the function bends.
//
// The centers (odd_wide.py) suit three numbers at once: value, slope and p2 are
// floats but for errors that do not count, and slope has no low part. The error
// is that of odd_quick.h, and so are the margins, one for each interval. Near
// zero slope is 1, and the terms from r^3 on alone are too small by 2^-22.
//
// The rounding test leaves 444,234 arguments to the fast path. odd_quick.gappa
// proves the bound, wide.gappa in the interval of 0
// (tests/native/test_odd_wide_bounds.py). The path has been compared with the
// function for all arguments.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/odd_quick.h"

#include "wide_constants.h"

#ifdef __FMA__
// Where the tables end: the result is 1 from 0x1.205966p+3 on.
#define TANH_WIDE_MAX 0x1.22p+3f

UDF_INLINE float udf_tanhf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  a = a > TANH_WIDE_MAX ? TANH_WIDE_MAX : a;
  uint32_t i = udf_f32_bits(a + UDF_TANH_WIDE_ORIGIN) >> 20;
  float r = a - udf_tanh_wide_center[i % 32];
  float value = udf_tanh_wide_value[i % 32];
  float slope = udf_tanh_wide_slope[i % 32];
  float p2 = udf_tanh_wide_p2[i % 32];
  float t = __builtin_fmaf(p2, r, slope);
  float t_low = __builtin_fmaf(p2, r, slope - t);
  float high = __builtin_fmaf(t, r, value);
  float error = __builtin_fmaf(t, r, value - high);
  float q =
      __builtin_fmaf(r, udf_tanh_wide_p6[i % 32], udf_tanh_wide_p5[i % 32]);
  q = __builtin_fmaf(r, q, udf_tanh_wide_p4[i % 32]);
  q = __builtin_fmaf(r, q, udf_tanh_wide_p3[i % 32]);
  float low = __builtin_fmaf(r, __builtin_fmaf(r * r, q, t_low), error);
  // Near 0, where errors of roundings are lost, high is a and right.
  float y = udf_odd_quick_round((udf_odd_pair){high, low},
                                udf_tanh_wide_width[i % 32], hard);
  return udf_f32_add_sign(y, x);
}
#endif
