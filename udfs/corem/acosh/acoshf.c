//===- acoshf.c - Correctly rounded float32 acosh -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: acosh(x) = log(1 + z), z = (x - 1) + sqrt((x - 1) (x + 1)), where all
// terms are positive and x - 1, x + 1 exact, so that nothing is lost near 1;
// log as in log_fast.h: 1 + z = 2^k m, k from 1 + z rounded to float32.
//
// Error of the fast path: below 2^-44.9 relative. P contributes 2^-45.09
// (certified, see log_fast_constants.h); the roundings of z, r, s and the sums
// stay below 2^-50, with or without FMA. The rounding test's margin of 2^9
// units in the last place of the double covers 2^-44.
//
// Accurate path: 2079 inputs of 1048576000 (1 in 504366), and all of the
// 3246391296 special ones (x < 1, NaN, x >= 2^125).
//
// Hardest case: x = 0x1.b121a6p+75 (655890d3), result 0x1.a9a3f2p+5 (4254d1f9),
// next candidate 0x1.a9a3fp+5 (4254d1f8), 2^-57.8 relative from the boundary
// between them.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_dd.h"
#include "../common/log_fast.h"

UDF_INLINE float udf_acoshf_fast(float x, int *hard) {
  // acosh(x) = log(1 + z), z = (x - 1) + sqrt((x - 1) (x + 1)), without loss
  // near 1.  1 + z rounded to float32 chooses k.
  double d = (double)x - 1.0;
  double z = d + __builtin_sqrt(d * ((double)x + 1.0));
  uint32_t u = udf_f32_bits((float)(z + 1.0));
  uint32_t t = udf_log_offset(u);
  double k = udf_log_k(t);
  double scale = udf_log_scale(t);
  double r = UDF_FMA(scale, z, scale - 1.0);
  double y = udf_log_series(r, udf_log1p_poly, k, UDF_LOG_LN2);

  // x < 1, NaN and 1 + z >= 2^126, where the scale would be subnormal, are left
  // to the accurate path.
  int special = !(x >= 1.0f) | (u >= UINT32_C(0x7e800000));
  *hard = special | udf_near_boundary(y, UDF_LOG_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_acoshf_accurate(float x) {
  if (!(x >= 1))
    return __builtin_nanf("");
  if (x == 1)
    return 0;
  if (x == __builtin_inff())
    return x;
  udf_dd d = udf_two_sum(x, -1);
  udf_dd root = udf_dd_sqrt(udf_dd_mul(d, udf_two_sum(x, 1)));
  return udf_dd_round(udf_log1p_dd(udf_dd_add(d, root)));
}
