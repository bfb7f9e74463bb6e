//===- sinhf.c - Correctly rounded float32 sinh ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. x = k ln(2) + r as in exp, |r| <= 0.3469, for both signs of x.
// sinh(x) = (2^(k-1) - 2^(-k-1)) C(r) + (2^(k-1) + 2^(-k-1)) S(r) with even C
// ~ cosh and odd S ~ sinh of degrees 8 and 9, in double: no division, and for
// k = 0 it is S itself, so that small arguments keep their relative accuracy.
//
// Error of the fast path, relative. C: 2^-45.8, S: 2^-49.3 (certified by
// supnorm). The sum of terms of opposite sign raises the error of C by 2.25 at
// most (k = 1, r = -0.3466), where the reduction is almost exact; for large k
// it adds less than 2^-46.4 (k times the error of the double nearest to ln(2),
// and without FMA the rounding of their product) to the 2^-45.8 of C. The
// evaluation adds less than 2^-49: 2^-44.4 in all, which is at most 2^8.6
// units in the last place of the double. The rounding test sends everything
// within SINH_MARGIN = 2^10 units of a boundary to the accurate path. For
// subnormal arguments the double result is the argument itself, which is no
// boundary.
//
// Accurate path. (E + E / (1 + E)) / 2 with E = expm1(x) in double-double,
// relative error below 2^-74.
//
// Inputs that take the accurate path: 1,164 of 2^32 with FMA.
// Hardest case, 2^-54.3 relative from the boundary:
//   x      0x1.250bfep-11 (0x3a1285ff)
//   result 0x1.250bfep-11 (0x3a1285ff)
//   next   0x1.250cp-11 (0x3a128600)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_dd.h"

#include "constants.h"

// sinh(SINH_MAX) rounds to +inf, so that clamping the argument changes no
// result.
#define SINH_MAX 0x1.68p+6f
// UDF_ROUND_MAGIC plus the exponent bias less one: the low bits of
// d * log2(e) + it are the encoding of 2^(k-1), to be shifted into place.
#define SINH_MAGIC (UDF_ROUND_MAGIC + 1022)
#define SINH_MARGIN (UINT64_C(1) << 10)

UDF_INLINE float udf_sinhf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > SINH_MAX ? SINH_MAX : x;
  c = c < -SINH_MAX ? -SINH_MAX : c;
  double d = c;
  double kd = UDF_FMA(d, SINH_LOG2E, SINH_MAGIC);
  double k = kd - SINH_MAGIC;
  double r = UDF_FMA(k, -SINH_LN2, d);
  double r2 = r * r;
  double ch = UDF_FMA(r2, SINH_C8, SINH_C6);
  double sh = UDF_FMA(r2, SINH_S9, SINH_S7);
  ch = UDF_FMA(r2, ch, SINH_C4);
  sh = UDF_FMA(r2, sh, SINH_S5);
  ch = UDF_FMA(r2, ch, SINH_C2);
  sh = UDF_FMA(r2, sh, SINH_S3);
  ch = UDF_FMA(r2, ch, SINH_C0);
  sh = UDF_FMA(r2, sh, SINH_S1);
  sh *= r;
  uint64_t up_bits = udf_f64_bits(kd) << 52;
  double up = udf_f64_from_bits(up_bits);                            // 2^(k-1)
  double down = udf_f64_from_bits((UINT64_C(2044) << 52) - up_bits); // 2^(-k-1)
  double y = UDF_FMA(up - down, ch, (up + down) * sh);
  *hard = udf_near_boundary(y, SINH_MARGIN);
  // Only the sign of -0 is missing.
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_sinhf_accurate(float x) {
  if (x != x)
    return x + x;
  if (__builtin_fabsf(x) >= SINH_MAX)
    return x * __builtin_inff();
  // sinh(x) = x + x^3/6 + ... rounds to x, -0 and subnormals included.
  if (__builtin_fabsf(x) < 0x1p-13f)
    return x;
  // (e + e / (1 + e)) / 2 with e = expm1(x): two terms of one sign.
  udf_dd e = udf_expm1_dd(x);
  udf_dd q = udf_dd_div(e, udf_dd_add_d(e, 1));
  udf_dd s = udf_dd_add(e, q);
  return udf_dd_round((udf_dd){0.5 * s.hi, 0.5 * s.lo});
}
