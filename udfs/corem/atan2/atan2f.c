//===- atan2f.c - Correctly rounded float32 atan2 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: with t = |y|/x where |y| <= |x|, and t = -x/|y| beyond, the angle of
// (x, |y|) is atan(t) plus 0, pi (x < 0) or pi/2 (|y| > |x|); t lies in [-1,
// 1], and atan(t) = t P(t^2) with the polynomial of atanf.c and its constants.
// The sign is that of y.
//
// Error of the fast path: below 2^-39.2 relative, as in atanf.c: P contributes
// 2^-39.28; quotient, evaluation and the constants stay below 2^-49, with or
// without FMA; and where a multiple of pi/2 is added the result is not smaller
// than the polynomial part. The rounding test's margin of 2^14 units in the
// last place of the double covers 2^-39. Subnormal results are tested at their
// own spacing.
//
// Accurate path: 8319 of 134217728 pairs of ordinary magnitudes (1 in 16134),
// pairs with a NaN, and those of two infinities. It errs by less than 2^-90
// relative (atan_dd.h), and by less than 2^-98 for small quotients, among which
// the hardest case lies. Some 2^53 different quotients matter, so that the
// nearest of them may be expected around 2^-78. A half-way result is not
// possible: y/x can only be half-way where the result is subnormal (a quotient
// of 24-bit integers is no odd integer of 25 bits, times a power of two), and
// atan is then smaller by (y/x)^2/3 at most, which the low part still holds.
//
// Hardest case found: y = 0x1.800006p+1 (40400003), x = 0x1.000006p+23
// (4b000003), result 0x1.7ffffep-22 (34bfffff), next candidate 0x1.7ffffcp-22
// (34bffffe), 2^-89.2 relative from the boundary between them.
//
// With FTZ and DAZ set, subnormal arguments count as zero and subnormal results
// are zero; others keep their bits.
//
//===----------------------------------------------------------------------===//

#include "../atan/constants.h"
#include "../common/atan_dd.h"
#include "../common/corem.h"

#define ATAN2_MARGIN (UINT64_C(1) << 14)

UDF_INLINE float udf_atan2f_fast(float y, float x, int *hard) {
  float a = __builtin_fabsf(x), b = __builtin_fabsf(y);
  int inverse = b > a;
  int negative = udf_f32_bits(x) >> 31 != 0;
  float divisor = inverse ? b : x;
  double n = inverse ? -x : b;
  // 0/1 instead of 0/0: the angle of (0, 0) is that of (1, 0) or (-1, 0).
  double d = divisor == 0 ? 1.0f : divisor;
  double t = n / d;
  double base = negative ? 2 * UDF_ATAN_HALF_PI : 0.0;
  base = inverse ? UDF_ATAN_HALF_PI : base;

  const double *p = udf_atan_poly;
  double s = t * t;
  double s2 = s * s;
  double q = UDF_FMA(p[13], s, p[12]);
  q = UDF_FMA(q, s2, UDF_FMA(p[11], s, p[10]));
  q = UDF_FMA(q, s2, UDF_FMA(p[9], s, p[8]));
  q = UDF_FMA(q, s2, UDF_FMA(p[7], s, p[6]));
  q = UDF_FMA(q, s2, UDF_FMA(p[5], s, p[4]));
  q = UDF_FMA(q, s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  double r = UDF_FMA(t, q, base);

  // t < 0 comes with a large base, to which the test's 2^-126 adds nothing.
  *hard = (t != t) | udf_near_boundary_subnormal(r, t < 0x1p-126, ATAN2_MARGIN);
  return udf_f32_add_sign((float)r, y);
}

static UDF_COLD float udf_atan2f_accurate(float y, float x) {
  if (x != x || y != y)
    return __builtin_nanf("");
  double n = __builtin_fabsf(y), d = __builtin_fabsf(x);
  if (__builtin_isinf(y)) {
    d = __builtin_isinf(x) ? 1 : 0;
    n = 1;
  } else if (__builtin_isinf(x)) {
    n = 0;
  }
  udf_dd r = {0, 0};
  if (n != 0)
    r = udf_atan_dd((udf_dd){n, 0}, (udf_dd){d, 0});
  if (udf_f32_bits(x) >> 31) {
    udf_dd pi = {2 * udf_dd_half_pi.hi, 2 * udf_dd_half_pi.lo};
    r = udf_dd_sub(pi, r);
  }
  return udf_f32_add_sign(r.hi == 0 ? 0.0f : udf_dd_round(r), y);
}
