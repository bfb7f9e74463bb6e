//===- asin_eight.h - Quick paths of asin and acos at AVX2 ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in asinf.c: asin(a) for a = |x| up to UDF_ASIN_EIGHT_END, which is a
// little above 1/2, and pi/2 - 2 asin(sqrt((1 - a) / 2)) beyond it. All of it
// is in pairs of floats: the square of a with the error of its rounding, and
// the root, whose error is (root^2 - w) / (2 root). The result is
//
//   base + t (1 + s U(s)),  t = a and s = a^2, or t = -2 sqrt(s) and
//                           s = (1 - a) / 2, and base 0 or pi/2
//
// Two steps of Horner's scheme are exact: u = p0 + v s and f = 1 + u s are
// rounded once each, and fused multiply-adds give the errors of these
// roundings, which join the low part. So does that of high = base + t f. The
// range ends where base - high is still exact.
//
// Error: below 2^-29.1 |t| s + 2^-46.4 (|t| where base is zero). The first part
// is that of v, which has the roundings of two coefficients (2^-27.7 s^2 |t|),
// of what the derivative by s lacks (2^-31.6 s |t|), and of U (2^-33.8 s |t|,
// by Sollya's dirtyinfnorm). The second part has the roundings of the low
// parts, which are below 2^-24 of the result. The margin covers both: 2^-29.09
// of |t| s and of 2^-17, or of 2^-17 |t|. The sum is too large by the margin
// (in the direction of t), so that the true value lies between high + low and
// the same less twice the margin. asin_eight.gappa has the proof but for what
// tests/native/test_asin_eight_bounds.py runs. All arguments were run: none
// that the test decides is wrong, but with a margin smaller by a third some
// are, and without the second part, too.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ASIN_EIGHT_H
#define UDF_ASIN_EIGHT_H

#include "corem.h"

#include "asin_eight_constants.h"

#ifdef __FMA__

// What the margin has beside its multiple of |t| s: this times that multiple.
#define UDF_ASIN_EIGHT_MORE 0x1p-17f

// -sqrt(2 - 2 a) as a pair.
typedef struct {
  float square, root, root_low;
} udf_asin_eight_root;

UDF_INLINE udf_asin_eight_root udf_asin_eight_root_of(float a) {
  float w = __builtin_fmaf(a, -2.0f, 2.0f);
  float root = __builtin_sqrtf(w);
  // The divisor is not zero.
  float twice = __builtin_fmaf(root, 2.0f, 0x1p-100f);
  return (udf_asin_eight_root){w, -root,
                               __builtin_fmaf(root, root, -w) / twice};
}

// base + (t + t_low) (1 + s U(s)). more has the sign of t.
UDF_INLINE float udf_asin_eight(float t, float t_low, float s, float s_low,
                                float base, float base_low, float more,
                                int *undecided) {
  const float *p = udf_asin_eight_poly;
  float v = __builtin_fmaf(p[7], s, p[6]);
  v = __builtin_fmaf(v, s, p[5]);
  v = __builtin_fmaf(v, s, p[4]);
  v = __builtin_fmaf(v, s, p[3]);
  v = __builtin_fmaf(v, s, p[2]);
  v = __builtin_fmaf(v, s, p[1]);
  float u = __builtin_fmaf(v, s, p[0]);
  float u_low = __builtin_fmaf(v, s, p[0] - u) + UDF_ASIN_EIGHT_FIRST_LOW;
  float f = __builtin_fmaf(u, s, 1.0f);
  float f_low = __builtin_fmaf(u, s, 1.0f - f);
  f_low = __builtin_fmaf(u_low, s, f_low);
  f_low = __builtin_fmaf(__builtin_fmaf(v, s, u), s_low, f_low);
  float high = __builtin_fmaf(t, f, base);
  float low = __builtin_fmaf(t, f, base - high) + base_low;
  low = __builtin_fmaf(t, f_low, low);
  low = __builtin_fmaf(t_low, f, low);
  low = __builtin_fmaf(more, -0.5f * UDF_ASIN_EIGHT_WIDTH, low);
  float upper = high + low;
  float width = __builtin_fmaf(t, s, more);
  float lower = high + __builtin_fmaf(width, UDF_ASIN_EIGHT_WIDTH, low);
  *undecided = upper != lower;
  return upper;
}

#endif

#endif // UDF_ASIN_EIGHT_H
