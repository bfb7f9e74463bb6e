//===- exp2f.c - Correctly rounded float32 exp2 ---------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Fast path. x = k + r with k the integer nearest to x, read from the low bits
// of x + 1.5 * 2^52; both are exact and |r| <= 1/2. 2^x = 2^k P(r) with P of
// degree 8, in double, by Estrin's scheme; 2^k is added to the exponent field.
// Clamping the argument leaves no special cases.
//
// Its error, relative. P: 2^-39.9 (certified by supnorm), the
// evaluation less than 2^-50: 2^-39.8 in all, which is at most 2^13.2 units in
// the last place of the double. The rounding test sends everything within
// EXP2_MARGIN = 2^14 units of a boundary to the accurate path; subnormal
// results are tested at their own spacing. Integers are exact, as P(0) = 1.
//
// Quick path, see exp_quick.h. x = n/J + d, n being read from the low bits of
// x + 1.5 * 2^23 / J; d is exact. d ln(2) = r + s, with s below 2^-23 and known
// to 2^-47.
//
// Accurate path. Double-double, relative error below 2^-78.
//
// Inputs that take the accurate path: 33,720 of 2^32 with FMA.
// Hardest case, 2^-58.9 relative from the boundary:
//   x      -0x1.5a3f34p-21 (0xb52d1f9a)
//   result 0x1.fffffp-1 (0x3f7ffff8)
//   next   0x1.fffff2p-1 (0x3f7ffff9)
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_quick.h"
#include "../common/expm1_dd.h"

#include "constants.h"

// 2^EXP2_MAX rounds to +inf and 2^EXP2_MIN to +0, so that clamping the argument
// changes no result.
#define EXP2_MAX 0x1p+7f
#define EXP2_MIN -0x1.2ep+7f
// Arguments below it have subnormal results.
#define EXP2_SUBNORMAL -0x1.f8p+6
#define EXP2_MARGIN (UINT64_C(1) << 14)

UDF_INLINE float udf_exp2f_fast(float x, int *hard) {
  // Comparisons are written so that NaN passes.
  float c = x > EXP2_MAX ? EXP2_MAX : x;
  c = c < EXP2_MIN ? EXP2_MIN : c;
  double d = c;
  double kd = d + UDF_ROUND_MAGIC;
  double k = kd - UDF_ROUND_MAGIC;
  double r = d - k;
  double r2 = r * r;
  double r4 = r2 * r2;
  double p01 = UDF_FMA(r, EXP2_C1, EXP2_C0);
  double p23 = UDF_FMA(r, EXP2_C3, EXP2_C2);
  double p45 = UDF_FMA(r, EXP2_C5, EXP2_C4);
  double p67 = UDF_FMA(r, EXP2_C7, EXP2_C6);
  double low = UDF_FMA(r2, p23, p01);
  double high = UDF_FMA(r2, UDF_FMA(r2, EXP2_C8, p67), p45);
  double p = UDF_FMA(r4, high, low);
  // Adding k to the exponent field.  A NaN argument came with 29 zero low bits,
  // so that nothing is added and p stays NaN.
  double y = udf_f64_from_bits(udf_f64_bits(p) + (udf_f64_bits(kd) << 52));
  *hard = udf_near_boundary_subnormal(y, d < EXP2_SUBNORMAL, EXP2_MARGIN);
  return (float)y;
}

#ifdef __FMA__
#define EXP2_QUICK_MAGIC (0x1.8p23f / UDF_EXP_QUICK_STEPS)
// The square of 126: results are normal and finite up to it.
#define EXP2_QUICK_MAX_SQUARE 15876.0f

UDF_INLINE float udf_exp2f_quick(float x, int *hard) {
  float nm = x + EXP2_QUICK_MAGIC;
  float d = x - (nm - EXP2_QUICK_MAGIC);
  uint32_t i = udf_f32_bits(nm) - udf_f32_bits(EXP2_QUICK_MAGIC);
  float r = d * UDF_EXP_QUICK_LN2_HI;
  float s = __builtin_fmaf(d, UDF_EXP_QUICK_LN2_HI, -r) +
            __builtin_fmaf(d, UDF_EXP_QUICK_LN2_LO, udf_exp_quick_rest(i));
  int undecided;
  float y = udf_exp_quick(i, r, s, &undecided);
  // NaN is hard.
  _Bool zero = x < EXP2_MIN;
  *hard = !zero & (undecided | !(x * x <= EXP2_QUICK_MAX_SQUARE));
  return zero ? 0 : y;
}
#endif

static UDF_COLD float udf_exp2f_accurate(float x) {
  if (x != x)
    return x + x;
  if (x >= EXP2_MAX)
    return __builtin_inff();
  if (x <= EXP2_MIN)
    return 0;
  double k = ((double)x + UDF_ROUND_MAGIC) - UDF_ROUND_MAGIC;
  // (x - k) ln(2); the difference is exact.
  udf_dd r = udf_dd_mul_d((udf_dd){EXP2_LN2_HI, EXP2_LN2_LO}, x - k);
  udf_dd e = udf_dd_add((udf_dd){1, 0}, udf_expm1_dd_poly(r));
  double scale = udf_pow2(k);
  return udf_dd_round((udf_dd){e.hi * scale, e.lo * scale});
}
