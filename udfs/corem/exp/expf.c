//===- expf.c - Correctly rounded float32 exp -----------------------------===//
//
// HEADER-TODO
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/expm1_dd.h"

#include "constants.h"

// exp(EXP_MAX) rounds to +inf and exp(EXP_MIN) < 2^-150 rounds to +0, so that
// clamping the argument changes no result.
#define EXP_MAX 0x1.64p+6f
#define EXP_MIN -0x1.ap+6f
// Arguments below it have subnormal results.
#define EXP_SUBNORMAL -0x1.5d589ep+6
#define EXP_MARGIN (UINT64_C(1) << 14)

UDF_INLINE float udf_expf_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > EXP_MAX ? EXP_MAX : x;
  c = c < EXP_MIN ? EXP_MIN : c;
  double d = c;
  double kd = UDF_FMA(d, EXP_LOG2E, UDF_ROUND_MAGIC);
  double k = kd - UDF_ROUND_MAGIC;
  double r = UDF_FMA(k, -EXP_LN2, d);
  double r2 = r * r;
  double r4 = r2 * r2;
  double p01 = UDF_FMA(r, EXP_C1, EXP_C0);
  double p23 = UDF_FMA(r, EXP_C3, EXP_C2);
  double p45 = UDF_FMA(r, EXP_C5, EXP_C4);
  double p67 = UDF_FMA(r, EXP_C7, EXP_C6);
  double low = UDF_FMA(r2, p23, p01);
  double high = UDF_FMA(r2, UDF_FMA(r2, EXP_C8, p67), p45);
  double p = UDF_FMA(r4, high, low);
  // Adding k to the exponent field.  A NaN argument came with 29 zero low bits,
  // so that nothing is added and p stays NaN.
  double y = udf_f64_from_bits(udf_f64_bits(p) + (udf_f64_bits(kd) << 52));
  *hard = udf_near_boundary_subnormal(y, d < EXP_SUBNORMAL, EXP_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_expf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x >= EXP_MAX)
    return __builtin_inff();
  if (x <= EXP_MIN)
    return 0;
  return udf_dd_round(udf_exp_dd(x));
}
