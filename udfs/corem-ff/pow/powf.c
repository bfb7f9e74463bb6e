//===- powf.c - Correctly rounded float32 pow in float-float --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. |x|^y = 2^t with t = y log2|x|.
//   log2: |x| = 2^k m with m in [sqrt(1/2), sqrt(2)), c from a table of 23
//         entries near 1/m, z = m c - 1 (exact); log2|x| = k - log2(c) +
//         z P(z), P of eight terms, the last four in float.
//   exp2: t = n + d + s, n the integer nearest to t, and 2^(d + s) as in
//         exp_ff.h; s may be as large as 2^-17.
// Powers with exponent 0 are 1, those of +0 are 0 or infinity, and those of
// negative numbers with an exponent that is no integer NaN. Subnormal results,
// other x that are subnormal, zero or infinite, infinite y and NaN are left to
// corem.
//
// Error of hi + lo, relative, with u = 2^-24. log2: the last product and sum
// and the roundings of Horner's rule, 12 u^2, and the product with y, 5 u^2, in
// all |t| ln(2) 17 u^2 of the result; s and what is made of it, of magnitude
// |t| 2^-24 at most, is rounded five times, |t| 2^-47. 2^(d + s) adds the
// 2^-42.2 of exp. Below 2^-42 + |t| 2^-44.2 in all; measured by measure_ff.c on
// six million pairs: 2^-42.5 for |t| <= 4, 2^-39.7 for all. The rounding test
// allows for POW_FF_ERROR + |t| POW_FF_ERROR_T, 2^-41 + |t| 2^-44, and leaves
// one in 2^13.2 of those pairs to corem, of those with |t| <= 4 one in 2^15.
//
//===----------------------------------------------------------------------===//

#include "../../corem/pow/powf.c"

#include "../common/exp_ff.h"

#include "constants.h"

#define POW_FF_ERROR 0x1p-41f
// Times |t|.
#define POW_FF_ERROR_T 0x1p-44f

#ifdef __FMA__
// log2 of the number with the encoding u, which is normal.
UDF_INLINE udf_ff udf_pow_ff_log2(uint32_t u) {
  uint32_t v = u - UDF_POW_SQRT_HALF;
  float k =
      udf_f32_from_bits((uint32_t)((int32_t)v >> 23) + UINT32_C(0x4b400000)) -
      UDF_FF_ROUND_MAGIC;
  // In [sqrt(1/2), sqrt(2)), whatever u is.
  float m = udf_f32_from_bits(u - (v & UINT32_C(0xff800000)));
  uint32_t i = udf_f32_bits(__builtin_fmaf(m, 32, UDF_FF_ROUND_MAGIC)) -
               (UINT32_C(0x4b400000) + UDF_POW_FF_FIRST);
  udf_ff z = udf_ff_two_prod(m, udf_pow_ff_reciprocal[i]);
  z = udf_ff_fast_two_sum(z.hi - 1, z.lo);
  float p = __builtin_fmaf(z.hi, UDF_POW_FF_C7, UDF_POW_FF_C6);
  p = __builtin_fmaf(z.hi, p, UDF_POW_FF_C5);
  p = __builtin_fmaf(z.hi, p, UDF_POW_FF_C4);
  udf_ff q = udf_ff_add(UDF_FF(UDF_POW_FF_C3), udf_ff_mul_f(z, p));
  q = udf_ff_step(q, z, UDF_FF(UDF_POW_FF_C2));
  q = udf_ff_step(q, z, UDF_FF(UDF_POW_FF_C1));
  q = udf_ff_step(q, z, UDF_FF(UDF_POW_FF_C0));
  udf_ff l = udf_ff_add_f(k, (udf_ff){udf_pow_ff_high[i], udf_pow_ff_low[i]});
  return udf_ff_normal(udf_ff_sum(l, udf_ff_mul(q, z)));
}
#endif

UDF_INLINE float udf_powf_ff(float x, float y, int *hard) {
#ifdef __FMA__
  uint32_t u = udf_f32_bits(x) & UINT32_C(0x7fffffff);
  udf_ff t = udf_ff_normal(udf_ff_mul_f(udf_pow_ff_log2(u), y));
  t.hi = u == 0 ? (y > 0 ? -256.0f : 256.0f) : t.hi;
  float nm = t.hi + UDF_FF_ROUND_MAGIC;
  udf_ff r = {t.hi - (nm - UDF_FF_ROUND_MAGIC), t.lo};
  r = udf_ff_mul(UDF_FF(UDF_EXP_FF_LN2), r);
  // exp(s) = 1 + s + s^2/2 up to 2^-53.
  float s = __builtin_fmaf(0.5f * r.lo, r.lo, r.lo);
  float error =
      __builtin_fmaf(__builtin_fabsf(t.hi), POW_FF_ERROR_T, POW_FF_ERROR);
  int undecided;
  float z = udf_ff_round(udf_exp_ff_of(r.hi, s), error, &undecided);
  z = udf_f32_from_bits(udf_f32_bits(z) + (udf_f32_bits(nm) << 23));

  _Bool zero = t.hi < -151, infinite = t.hi > 128;
  z = infinite ? __builtin_inff() : zero ? 0 : z;
  undecided = !(zero | infinite) & (undecided | !(t.hi > -126) | (t.hi == 128));
  uint32_t uy = udf_f32_bits(y) & UINT32_C(0x7fffffff);
  int special = (u - UINT32_C(0x00800000) >= UINT32_C(0x7f000000)) &
                (udf_f32_bits(x) != 0);
  special |= uy >= UINT32_C(0x7f800000);
  _Bool one = uy == 0, nan = (x < 0) & !udf_pow_integer(y);
  *hard = !one & (special | (!nan & undecided));
  // Where y is an integer, it is odd if y/2 is not one.
  uint32_t sign = udf_f32_bits(x) & UINT32_C(0x80000000);
  sign = udf_pow_integer(0.5f * y) ? 0 : sign;
  z = udf_f32_from_bits(udf_f32_bits(z) | sign);
  return one ? 1 : nan ? __builtin_nanf("") : z;
#else
  return udf_powf_fast(x, y, hard);
#endif
}

static UDF_COLD float udf_powf_in_double(float x, float y) {
  int hard;
  float z = udf_powf_fast(x, y, &hard);
  return hard ? udf_powf_accurate(x, y) : z;
}
