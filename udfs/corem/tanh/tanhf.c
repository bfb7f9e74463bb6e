//===- tanhf.c - Correctly rounded float32 tanh ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. tanh(x) = E / (E + 2) with E = expm1(2x), in double, for both signs
// of x. 2x = k ln(2) + r, |r| <= 0.3469. With H = (r/2) coth(r/2), an even
// function of r, e^r = (H + r/2) / (H - r/2); fdlibm's e_exp.c divides so, too.
// Here H is a polynomial of degree 4 in r^2. With h = H - r/2 and s = 2^k,
//
//   E = (s - 1) + s r / h,   tanh(x) = ((s - 1) h + s r) / ((s + 1) h + s r),
//
// so that there is no division but that of tanh itself; its latency hides
// behind the polynomials of other lanes. For k = 0 the quotient is r / 2H:
// small arguments keep their relative accuracy.
//
// Error of the fast path, relative. H: 2^-49.5 (certified by supnorm), which
// reaches tanh as 1.1 times that at most, as dE/E = -s r / (h^2 E) dH and
// tanh multiplies it by 2 / (E + 2). The reduction (|k| <= 29) adds less than
// 2^-48, the evaluation and the division less than 2^-49: 2^-46.9 in all, which
// is below 2^7 units in the last place of the double. The rounding test sends
// everything within TANH_MARGIN = 2^8 units of a boundary to the accurate path.
// For subnormal arguments the double result is the argument itself, which is no
// boundary.
//
// Quick path, at AVX-512: see odd_quick.h. Its rounding test leaves 403,410
// arguments to the fast path.
//
// Accurate path. E / (E + 2) in double-double, relative error below 2^-74.
//
// Inputs that take the accurate path: 260 of 2^32 with FMA.
// Hardest case, 2^-50.3 relative from the boundary:
//   x      0x1.86fbc4p-10 (0x3ac37de2)
//   result 0x1.86fbb2p-10 (0x3ac37dd9)
//   next   0x1.86fbbp-10 (0x3ac37dd8)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_dd.h"
#include "../common/odd_quick.h"

#include "constants.h"
#include "quick_constants.h"

// tanh(TANH_MAX) rounds to 1, so that clamping the argument changes no result.
#define TANH_MAX 0x1.4p+3f
// UDF_ROUND_MAGIC plus the exponent bias: the low bits of d * log2(e) + it are
// the encoding of 2^k, to be shifted into place.
#define TANH_MAGIC (UDF_ROUND_MAGIC + 1023)
#define TANH_MARGIN (UINT64_C(1) << 8)

UDF_INLINE float udf_tanhf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > TANH_MAX ? TANH_MAX : x;
  c = c < -TANH_MAX ? -TANH_MAX : c;
  double d = c + c;
  double kd = UDF_FMA(d, TANH_LOG2E, TANH_MAGIC);
  double k = kd - TANH_MAGIC;
  double r = UDF_FMA(k, -TANH_LN2, d);
  double z = r * r;
  double p34 = UDF_FMA(z, TANH_C4, TANH_C3);
  double p24 = UDF_FMA(z, p34, TANH_C2);
  double p14 = UDF_FMA(z, p24, TANH_C1);
  double h = UDF_FMA(r, -0.5, UDF_FMA(z, p14, TANH_C0));
  double scale = udf_f64_from_bits(udf_f64_bits(kd) << 52);
  double num = UDF_FMA(scale - 1, h, scale * r);
  double den = UDF_FMA(h, 2.0, num);
  double y = num / den;
  *hard = udf_near_boundary(y, TANH_MARGIN);
  // Only the sign of -0 is missing.
  return udf_f32_add_sign((float)y, x);
}

#ifdef UDF_TANH_QUICK_STEPS
// Where the tables end: the result is 1 from 0x1.205966p+3 on.
#define TANH_QUICK_MAX 0x1.22p+3f

UDF_INLINE float udf_tanhf_quick(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  a = a > TANH_QUICK_MAX ? TANH_QUICK_MAX : a;
  float b = __builtin_fmaf(a, UDF_TANH_QUICK_SCALE, UDF_TANH_QUICK_ORIGIN);
  uint32_t i = udf_f32_bits(b) >> UDF_TANH_QUICK_SHIFT;
  udf_odd_entries e = {
      udf_tanh_quick_center[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_value[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_slope[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_slope_low[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_p2[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_p3[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_p4[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_p5[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_p6[i % UDF_TANH_QUICK_STEPS],
      udf_tanh_quick_width[i % UDF_TANH_QUICK_STEPS],
  };
  // Near 0, where errors of roundings are lost, high is a and right.
  udf_odd_pair p = udf_odd_quick_series(a - e.center, e);
  float y = udf_odd_quick_round(p, e.width, hard);
  return udf_f32_add_sign(y, x);
}
#endif

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
