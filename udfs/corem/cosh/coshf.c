//===- coshf.c - Correctly rounded float32 cosh ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. x = k ln(2) + r as in exp, |r| <= 0.3469, for both signs of x.
// cosh(x) = (2^(k-1) + 2^(-k-1)) C(r) + (2^(k-1) - 2^(-k-1)) S(r) with even C
// ~ cosh and odd S ~ sinh of degrees 8 and 9, in double: no division.
//
// Error of the fast path, relative. C: 2^-45.8, S: 2^-49.3 (certified by
// supnorm), their sum with the factors above: 2^-45.4. The reduction adds less
// than 2^-46.4 (k times the error of the double nearest to ln(2), and without
// FMA the rounding of their product), the evaluation less than 2^-50: 2^-44.7
// in all, which is at most 2^8.3 units in the last place of the double. The
// rounding test sends everything within COSH_MARGIN = 2^10 units of a boundary
// to the accurate path.
//
// Accurate path. 1 + E^2 / (2 (1 + E)) with E = expm1(x) in double-double,
// relative error below 2^-74.
//
// Inputs that take the accurate path: 1,246 of 2^32 with FMA.
// Hardest case, 2^-53.3 relative from the boundary:
//   x      0x1.deeeap-11 (0x3a6f7750)
//   result 0x1.000008p+0 (0x3f800004)
//   next   0x1.000006p+0 (0x3f800003)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_dd.h"

#include "constants.h"

// cosh(COSH_MAX) rounds to +inf, so that clamping the argument changes no
// result.
#define COSH_MAX 0x1.68p+6f
// UDF_ROUND_MAGIC plus the exponent bias less one: the low bits of
// d * log2(e) + it are the encoding of 2^(k-1), to be shifted into place.
#define COSH_MAGIC (UDF_ROUND_MAGIC + 1022)
#define COSH_MARGIN (UINT64_C(1) << 10)

UDF_INLINE float udf_coshf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > COSH_MAX ? COSH_MAX : x;
  c = c < -COSH_MAX ? -COSH_MAX : c;
  double d = c;
  double kd = UDF_FMA(d, COSH_LOG2E, COSH_MAGIC);
  double k = kd - COSH_MAGIC;
  double r = UDF_FMA(k, -COSH_LN2, d);
  double r2 = r * r;
  double ch = UDF_FMA(r2, COSH_C8, COSH_C6);
  double sh = UDF_FMA(r2, COSH_S9, COSH_S7);
  ch = UDF_FMA(r2, ch, COSH_C4);
  sh = UDF_FMA(r2, sh, COSH_S5);
  ch = UDF_FMA(r2, ch, COSH_C2);
  sh = UDF_FMA(r2, sh, COSH_S3);
  ch = UDF_FMA(r2, ch, COSH_C0);
  sh = UDF_FMA(r2, sh, COSH_S1);
  sh *= r;
  uint64_t up_bits = udf_f64_bits(kd) << 52;
  double up = udf_f64_from_bits(up_bits);                            // 2^(k-1)
  double down = udf_f64_from_bits((UINT64_C(2044) << 52) - up_bits); // 2^(-k-1)
  double y = UDF_FMA(up + down, ch, (up - down) * sh);
  *hard = udf_near_boundary(y, COSH_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_coshf_accurate(float x) {
  if (x != x)
    return x + x;
  if (__builtin_fabsf(x) >= COSH_MAX)
    return __builtin_inff();
  // cosh(x) = 1 + x^2/2 + ... rounds to 1.
  if (__builtin_fabsf(x) < 0x1p-13f)
    return 1;
  // 1 + e^2 / (2 (1 + e)) with e = expm1(x): no cancellation.
  udf_dd e = udf_expm1_dd(x);
  udf_dd q = udf_dd_div(udf_dd_mul(e, e), udf_dd_add_d(e, 1));
  return udf_dd_round(
      udf_dd_add((udf_dd){1, 0}, (udf_dd){0.5 * q.hi, 0.5 * q.lo}));
}
