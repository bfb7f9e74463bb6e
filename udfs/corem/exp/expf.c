//===- expf.c - Correctly rounded float32 exp -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Fast path. x = k ln(2) + r, where k, the integer nearest to x / ln(2), is
// read from the low bits of x log2(e) + 1.5 * 2^52 and |r| <= 0.3469. exp(x) =
// 2^k P(r) with P of degree 8, in double; 2^k is added to the exponent field. P
// is evaluated by Estrin's scheme: latencies count for more than units.
// Clamping the argument leaves no special cases.
//
// Its error, relative. P: 2^-39.9 (certified by supnorm). The reduction adds
// less than 2^-46.4 (k times the error of the double nearest to ln(2), and
// without FMA the rounding of their product), the evaluation less than 2^-50:
// 2^-39.8 in all, which is at most 2^13.2 units in the last place of the
// double. The rounding test sends everything within EXP_MARGIN = 2^14 units of
// a boundary to the accurate path; subnormal results are tested at their own
// spacing, so that arguments down to -104 are as cheap as others.
//
// Quick path, see exp_quick.h. x = n ln(2)/J + r + s, where n is read from the
// low bits of x J / ln(2) + 1.5 * 2^23. r, the fused x - n STEP_HI, is exact:
// for n != 0 it is a multiple of 2^-30 below 2^-6 (J = 16: of 2^-29 below
// 2^-5). s is below 2^-21.6 and known to 2^-46.
//
// Accurate path. Double-double, relative error below 2^-78.
//
// Inputs that take the accurate path: 33,591 of 2^32 with FMA.
// Hardest case, 2^-52.6 relative from the boundary:
//   x      -0x1.d2259ap+3 (0xc16912cd)
//   result 0x1.fa6636p-22 (0x34fd331b)
//   next   0x1.fa6634p-22 (0x34fd331a)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_quick.h"
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

#ifdef __FMA__
// The square of 87.29: results are normal and finite below it.
#define EXP_QUICK_MAX_SQUARE 7620.0f

UDF_INLINE float udf_expf_quick(float x, int *hard) {
  float nm = __builtin_fmaf(x, UDF_EXP_QUICK_INV_STEP, 0x1.8p23f);
  float n = nm - 0x1.8p23f;
  uint32_t i = udf_f32_bits(nm) - udf_f32_bits(0x1.8p23f);
  float r = __builtin_fmaf(n, -UDF_EXP_QUICK_STEP_HI, x);
  float s = __builtin_fmaf(n, -UDF_EXP_QUICK_STEP_LO, udf_exp_quick_rest(i));
  int undecided;
  float y = udf_exp_quick(i, r, s, &undecided);
  // NaN is hard.
  _Bool zero = x < EXP_MIN;
  *hard = !zero & (undecided | !(x * x <= EXP_QUICK_MAX_SQUARE));
  return zero ? 0 : y;
}
#endif

static UDF_COLD float udf_expf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x >= EXP_MAX)
    return __builtin_inff();
  if (x <= EXP_MIN)
    return 0;
  return udf_dd_round(udf_exp_dd(x));
}
