//===- erfcf.c - Correctly rounded float32 erfc in float-float ------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. For a = |x|, erfc(a) = exp(-a^2) F(a) and erfc(-a) = 2 - erfc(a).
// F(m + t) = A + t (B1 + t (B2 + ...)) of degree 8, where 1 + m is 1 + a
// rounded to four bits; the coefficients come from tables of 28 entries, the
// lowest four as pairs. exp as in exp_ff.h: a^2 is exact, its low part, below
// 2^-18, goes into s. Arguments from ERFC_MAX up give 0, those from ERFC_MIN
// down 2; subnormal results and NaN are left to corem.
//
// Error of hi + lo, relative: below 2^-39.39 (measured by measure_ff.c on every
// 71st input, the largest at 0x1.9fabep+1). It comes from the last terms of F
// and of exp, computed in float, and the roundings of s. The rounding test
// allows for ERFC_FF_ERROR = 0x1.2p-39.
//
// Of the inputs answered here the test leaves one in 2^16.4 to corem.
//
//===----------------------------------------------------------------------===//

#include "../../corem/erfc/erfcf.c"

#include "../common/exp_ff.h"

#include "constants.h"

#define ERFC_FF_ERROR 0x1.2p-39f
// Greater arguments have subnormal results.
#define ERFC_FF_SUBNORMAL 0x1.2639bep+3f

#ifdef __FMA__
#define ERFC_FF_PAIR(d)                                                        \
  ((udf_ff){udf_erfc_ff_high##d[i], udf_erfc_ff_low##d[i]})
#endif

UDF_INLINE float udf_erfcf_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  // For NaN too.
  a = a < ERFC_MAX ? a : ERFC_MAX;
  // 1 + m in the upper 12 bits; half-way cases go down, so that |t| <= a.
  uint32_t u = udf_f32_bits(1 + a) + UINT32_C(0x0007ffff);
  uint32_t i = (u >> 20) - (UINT32_C(0x3f800000) >> 20);
  // Exact, since it is not larger than a.
  float t = a - (udf_f32_from_bits(u & UINT32_C(0xfff00000)) - 1);
  float c = __builtin_fmaf(t, udf_erfc_ff_c8[i], udf_erfc_ff_c7[i]);
  c = __builtin_fmaf(t, c, udf_erfc_ff_c6[i]);
  c = __builtin_fmaf(t, c, udf_erfc_ff_c5[i]);
  c = __builtin_fmaf(t, c, udf_erfc_ff_c4[i]);
  udf_ff q = udf_ff_add(ERFC_FF_PAIR(3), udf_ff_two_prod(c, t));
  q = udf_ff_add(ERFC_FF_PAIR(2), udf_ff_mul_f(q, t));
  q = udf_ff_add(ERFC_FF_PAIR(1), udf_ff_mul_f(q, t));
  q = udf_ff_add(ERFC_FF_PAIR(0), udf_ff_mul_f(q, t));

  udf_ff square = udf_ff_two_prod(a, a);
  uint32_t n;
  float r, s;
  udf_exp_ff_split(-square.hi, &n, &r, &s);
  s -= square.lo;
  // exp(s) = 1 + s + s^2/2 up to 2^-56.
  s = __builtin_fmaf(0.5f * s, s, s);
  udf_ff y = udf_ff_mul(udf_ff_normal(udf_exp_ff_of(r, s)), q);

  _Bool negative = x < 0;
  float scale = udf_exp_ff_power(n);
  udf_ff rest = udf_ff_add_f(2, (udf_ff){-scale * y.hi, -scale * y.lo});
  y.hi = negative ? rest.hi : y.hi;
  y.lo = negative ? rest.lo : y.lo;
  n = negative ? 0 : n;
  int undecided;
  float rounded = udf_ff_round(y, ERFC_FF_ERROR, &undecided);
  rounded = udf_f32_from_bits(udf_f32_bits(rounded) + (n << 23));
  _Bool zero = x >= ERFC_MAX, two = x <= ERFC_MIN;
  *hard = !(zero | two) & (undecided | !(x <= ERFC_FF_SUBNORMAL));
  return zero ? 0 : two ? 2 : rounded;
#else
  return udf_erfcf_fast(x, hard);
#endif
}

static UDF_COLD float udf_erfcf_in_double(float x) {
  int hard;
  float y = udf_erfcf_fast(x, &hard);
  return hard ? udf_erfcf_accurate(x) : y;
}
