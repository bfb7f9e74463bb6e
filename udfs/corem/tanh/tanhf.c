//===- tanhf.c - Correctly rounded float32 tanh ---------------------------===//
//
// Method. tanh(x) = E / (E + 2) with E = expm1(2x), in double, for both signs
// of x. 2x = k ln(2) + r, |r| <= 0.3469, e = expm1(r) = r + r^2 Q(r), Q of
// degree 7, E = 2^k e + (2^k - 1). One division; its latency hides behind the
// polynomials of other lanes.
//
// Error of the fast path, relative. e: 2^-43.4 (certified by supnorm). E:
// 2^-42.9, and the quotient multiplies that by 2 / (E + 2): below 2^-43.1,
// since E has its largest error where E > 0. The reduction (|k| <= 29) and the
// evaluation add less than 2^-48: 2^-43 in all, which is at most 2^10 units in
// the last place of the double. The rounding test sends everything within
// TANH_MARGIN = 2^11 units of a boundary to the accurate path. For subnormal
// arguments the double result is the argument itself, which is no boundary.
//
// Accurate path. The same formula in double-double, relative error below
// 2^-74.
//
// Inputs that take the accurate path: 1,958 of 2^32 with FMA.
// Hardest case, 2^-50.3 relative from the boundary:
//   x      0x1.86fbc4p-10 (0x3ac37de2)
//   result 0x1.86fbb2p-10 (0x3ac37dd9)
//   next   0x1.86fbbp-10 (0x3ac37dd8)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_dd.h"

#include "constants.h"

// tanh(TANH_MAX) rounds to 1, so that clamping the argument changes no result.
#define TANH_MAX 0x1.4p+3f
// UDF_ROUND_MAGIC plus the exponent bias: the low bits of d * log2(e) + it are
// the encoding of 2^k, to be shifted into place.
#define TANH_MAGIC (UDF_ROUND_MAGIC + 1023)
#define TANH_MARGIN (UINT64_C(1) << 11)

UDF_INLINE float udf_tanhf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > TANH_MAX ? TANH_MAX : x;
  c = c < -TANH_MAX ? -TANH_MAX : c;
  double d = c + c;
  double kd = UDF_FMA(d, TANH_LOG2E, TANH_MAGIC);
  double k = kd - TANH_MAGIC;
  double r = UDF_FMA(k, -TANH_LN2, d);
  double r2 = r * r;
  double r4 = r2 * r2;
  double q12 = UDF_FMA(r, TANH_C2, TANH_C1);
  double q34 = UDF_FMA(r, TANH_C4, TANH_C3);
  double q56 = UDF_FMA(r, TANH_C6, TANH_C5);
  double q78 = UDF_FMA(r, TANH_C8, TANH_C7);
  double low = UDF_FMA(r2, q34, q12);
  double high = UDF_FMA(r2, q78, q56);
  double q = UDF_FMA(r4, high, low);
  double e = UDF_FMA(r2, q, r);
  double scale = udf_f64_from_bits(udf_f64_bits(kd) << 52);
  // expm1(2x) / (expm1(2x) + 2)
  double num = UDF_FMA(scale, e, scale - 1);
  double den = UDF_FMA(scale, e, scale + 1);
  double y = num / den;
  *hard = udf_near_boundary(y, TANH_MARGIN);
  // Only the sign of -0 is missing.
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_tanhf_accurate(float x) {
  if (x != x)
    return x + x;
  if (__builtin_fabsf(x) >= TANH_MAX)
    return __builtin_copysignf(1, x);
  // tanh(x) = x - x^3/3 + ... rounds to x, -0 and subnormals included.
  if (__builtin_fabsf(x) < 0x1p-13f)
    return x;
  udf_dd e = udf_expm1_dd(2 * (double)x);
  return udf_dd_round(udf_dd_div(e, udf_dd_add_d(e, 2)));
}
