//===- asinhf.c - Correctly rounded float32 asinh -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: asinh|x| = log(e), e = |x| + sqrt(x^2 + 1) (x^2 is exact), with log
// as in log_fast.h: e = 2^k m, k from e rounded to float32. Below |x| = 2^-6,
// where e - 1 loses bits, x S(x^2) with S of three terms.
//
// Error of the fast path: below 2^-44.3 relative. P contributes 2^-45.09 and S
// 2^-45.48 (certified, see log_fast_constants.h and constants.h). e has an
// absolute error below 2^-51.6 for k = 0, which is 2^-45.6 relative to the
// smallest result of the logarithm, 2^-6. The rounding test's margin of 2^9
// units in the last place of the double covers 2^-44.
//
// Accurate path: 4578 inputs of 4227858432 (1 in 923516), and all of the
// 67108864 special ones (infinities, NaN, |x| >= 2^125).
//
// Hardest case: x = 0x1.b121a6p+75 (655890d3), result 0x1.a9a3f2p+5 (4254d1f9),
// next candidate 0x1.a9a3fp+5 (4254d1f8), 2^-57.8 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_dd.h"
#include "../common/log_fast.h"

#include "constants.h"

UDF_INLINE float udf_asinhf_fast(float x, int *hard) {
  float a = __builtin_fabsf(x);
  double d = a;
  double d2 = d * d;
  // asinh(a) = log(e), e = a + sqrt(a^2 + 1).  Rounded to float32, e chooses k.
  double e = d + __builtin_sqrt(d2 + 1.0);
  uint32_t u = udf_f32_bits((float)e);
  uint32_t t = udf_log_offset(u);
  double k = udf_log_k(t);
  double scale = udf_log_scale(t);
  double r = UDF_FMA(scale, e, -1.0);
  double y = udf_log_series(r, udf_log1p_poly, k, UDF_LOG_LN2);

  const double *c = udf_asinh_small;
  double small = UDF_FMA(UDF_FMA(c[2], d2, c[1]), d2, c[0]);
  y = a < 0x1p-6f ? d * small : y;

  // NaN and e >= 2^126, where the scale would be subnormal, are left to the
  // accurate path.
  int special = u >= UINT32_C(0x7e800000);
  *hard = special | udf_near_boundary(y, UDF_LOG_MARGIN);
  return udf_f32_add_sign((float)y, x);
}

static UDF_COLD float udf_asinhf_accurate(float x) {
  if (x != x)
    return __builtin_nanf("");
  if (x == 0 || x - x != 0)
    return x;
  // asinh(a) = log1p(a + a^2 / (1 + sqrt(1 + a^2))).
  double a = __builtin_fabsf(x);
  udf_dd a2 = udf_two_prod(a, a);
  udf_dd root = udf_dd_sqrt(udf_dd_add_d(a2, 1));
  udf_dd z = udf_dd_add_d(udf_dd_div(a2, udf_dd_add_d(root, 1)), a);
  udf_dd y = udf_log1p_dd(z);
  return x < 0 ? -udf_dd_round(y) : udf_dd_round(y);
}
