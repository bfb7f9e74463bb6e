//===- expm1f.c - Correctly rounded float32 expm1 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. x = k ln(2) + r as in exp, |r| <= 0.3469. With e = expm1(r) = r +
// r^2 Q(r), Q of degree 7, expm1(x) = 2^k e + (2^k - 1), in double. For k = 0
// this is e itself, so that small arguments keep their relative accuracy.
//
// Error of the fast path, relative. e: 2^-43.4 (certified by supnorm); the sum
// with 2^k - 1 raises it by 1.42 at most (k = 1, r = -0.3466). The reduction
// adds less than 2^-46.4 (k times the error of the double nearest to ln(2),
// and without FMA the rounding of their product), the evaluation less than
// 2^-50: 2^-42.7 in all, which is at most 2^10.3 units in the last place of
// the double. The rounding test sends everything within EXPM1_MARGIN = 2^11
// units of a boundary to the accurate path. For subnormal arguments the double
// result is the argument itself, which is no boundary.
//
// Accurate path. Double-double, relative error below 2^-76.
//
// Inputs that take the accurate path: 3,935 of 2^32 with FMA.
// Hardest case, 2^-52.8 relative from the boundary:
//   x      0x1.84a5bap-4 (0x3dc252dd)
//   result 0x1.97aed6p-4 (0x3dcbd76b)
//   next   0x1.97aed8p-4 (0x3dcbd76c)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_dd.h"

#include "constants.h"

// expm1(EXPM1_MAX) rounds to +inf and expm1(EXPM1_MIN) to -1, so that clamping
// the argument changes no result.
#define EXPM1_MAX 0x1.64p+6f
#define EXPM1_MIN -0x1.4p+4f
// UDF_ROUND_MAGIC plus the exponent bias: the low bits of d * log2(e) + it are
// the encoding of 2^k, to be shifted into place.
#define EXPM1_MAGIC (UDF_ROUND_MAGIC + 1023)
#define EXPM1_MARGIN (UINT64_C(1) << 11)

UDF_INLINE float udf_expm1f_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > EXPM1_MAX ? EXPM1_MAX : x;
  c = c < EXPM1_MIN ? EXPM1_MIN : c;
  double d = c;
  double kd = UDF_FMA(d, EXPM1_LOG2E, EXPM1_MAGIC);
  double k = kd - EXPM1_MAGIC;
  double r = UDF_FMA(k, -EXPM1_LN2, d);
  double r2 = r * r;
  double q12 = UDF_FMA(r, EXPM1_C2, EXPM1_C1);
  double q34 = UDF_FMA(r, EXPM1_C4, EXPM1_C3);
  double q56 = UDF_FMA(r, EXPM1_C6, EXPM1_C5);
  double q78 = UDF_FMA(r, EXPM1_C8, EXPM1_C7);
  double q58 = UDF_FMA(r2, q78, q56);
  double q38 = UDF_FMA(r2, q58, q34);
  double q = UDF_FMA(r2, q38, q12);
  double e = UDF_FMA(r2, q, r);
  double scale = udf_f64_from_bits(udf_f64_bits(kd) << 52);
  double y = UDF_FMA(scale, e, scale - 1);
  *hard = udf_near_boundary(y, EXPM1_MARGIN);
  // Only the sign of -0 is missing.
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_expm1f_accurate(float x) {
  if (x != x)
    return x + x;
  if (x >= EXPM1_MAX)
    return __builtin_inff();
  if (x <= EXPM1_MIN)
    return -1;
  // expm1(x) = x + x^2/2 + ... rounds to x, -0 and subnormals included.
  if (__builtin_fabsf(x) < 0x1p-26f)
    return x;
  return udf_dd_round(udf_expm1_dd(x));
}
