//===- expm1f_wide.c - Quick path of expm1 at AVX-512 ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = n ln(2)/32 + r0 as in exp_quick.h. T, near 2^(j/32), is a multiple of
// 2^-7, so that t - 1 with t = 2^k T is exact for -17 < k < 24. r = r0 - center
// is exact, because both are multiples of 2^-30 and |r| < 2^-6; s, the rest, is
// below 2^-31 but for n STEP_LO. As in exp_wide.h two instructions scale, and a
// t of zero gives -1.
//
// exp(r + s) - 1 = p + low as in exp_eight.h, and t p + (t - 1) is rounded to
// high. For n = 0 t - 1, center and s are zero, and the result keeps its
// relative accuracy.
//
// Error, relative to low, which has all but p. r^5/120 is made up for by
// r^3: 2^-17.5 of r^3/6. Four roundings: 2^-22. s r^2/6 is left out: 2^-16.6 of
// low at most, for |x| = 11, where low is at least 2^-25. A sum of two floats
// can be near a boundary only if low is half a unit in the last place of high
// or more, so that a width in proportion to low is enough: two fused
// multiply-adds test the rounding.
//
// No script proves it; the path has been compared with the function for all
// arguments. A width of 2^-17 gave wrong results, 2^-16 none.
//
// Arguments from EXPM1_WIDE_MAX on are left to the fast path, but for those
// with the result -1, and by the rounding test one in 100 with |x| near 2^-7,
// one in 1,000 near 2^-5 and one in 20,000 above 1.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_wide_constants.h"

#ifdef __FMA__
// t - 1 is exact below.
#define EXPM1_WIDE_MAX 11.75f
// The rounding test leaves it undecided.
#define EXPM1_WIDE_HARD 0x1.60610ap+3f
// The result is -1 below.
#define EXPM1_WIDE_MIN -17.5f
#define EXPM1_WIDE_MAGIC (0x1.8p23f + 127 * UDF_EXPM1_WIDE_STEPS)
#define EXPM1_WIDE_WIDTH 0x1.8p-16f

UDF_INLINE float udf_expm1f_wide(float x, int *hard) {
  // NaN is hard.
  float c = __builtin_fabsf(x) < EXPM1_WIDE_MAX ? x : EXPM1_WIDE_HARD;
  float nm = __builtin_fmaf(c, UDF_EXPM1_WIDE_INV_STEP, EXPM1_WIDE_MAGIC);
  float n = nm - EXPM1_WIDE_MAGIC;
  uint32_t i = udf_f32_bits(nm);
  uint32_t j = i % UDF_EXPM1_WIDE_STEPS;
  float r =
      __builtin_fmaf(n, -UDF_EXPM1_WIDE_STEP_HI, c) - udf_expm1_wide_center[j];
  float s = __builtin_fmaf(n, -UDF_EXPM1_WIDE_STEP_LO, udf_expm1_wide_rest[j]);
  // Without fabs LLVM loads an integer, and udf-tables knows only look-ups of
  // floats.
  uint32_t b =
      udf_f32_bits(__builtin_fabsf(udf_expm1_wide_power[j])) ^ (i << 18);
  float t = udf_f32_from_bits(x < EXPM1_WIDE_MIN ? 0 : b);
  // exp(r + s) - 1 = p + low.
  float half = 0.5f * r;
  float p = __builtin_fmaf(r, half, r);
  float error = __builtin_fmaf(r, half, r - p) + s;
  float q = __builtin_fmaf(r, UDF_EXPM1_WIDE_C4, UDF_EXPM1_WIDE_C3);
  float d = r + s;
  float low = __builtin_fmaf(r, __builtin_fmaf(d * d, q, s), error);
  // Exact.
  float a = t - 1;
  float high = __builtin_fmaf(t, p, a);
  low = __builtin_fmaf(t, low, __builtin_fmaf(t, p, a - high));
  float upper = __builtin_fmaf(low, 1 + EXPM1_WIDE_WIDTH, high);
  float lower = __builtin_fmaf(low, 1 - EXPM1_WIDE_WIDTH, high);
  *hard = upper != lower;
  // Only the sign of -0 is missing.
  return udf_f32_add_sign(upper, x);
}
#endif
