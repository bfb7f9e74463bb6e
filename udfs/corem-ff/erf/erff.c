//===- erff.c - Correctly rounded float32 erf in float-float --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. erf(i/4 + t) = A + t (B1 + t (B2 + ...)) for i the integer nearest to
// 4 |x|, at most 15, of degree 9; the coefficients come from tables of 16
// entries, the lowest five as pairs. Arguments are clamped to where the result
// is 1, as in corem. Arguments below 2^-60 other than zero, and NaN, are left
// to corem.
//
// Error of hi + lo, relative: below 2^-40.05 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.000cf8p-3). The polynomials contribute
// 2^-45.3 (see constants.h), their last terms, computed in float, the rest. The
// rounding test allows for ERF_FF_ERROR = 0x1.6p-40, and all 2^32 inputs give
// the digest of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^15.0 to corem (4,542 of
// 148,523,300).
//
//===----------------------------------------------------------------------===//

#include "../../corem/erf/erff.c"

#include "../common/ff.h"

#include "constants.h"

#define ERF_FF_ERROR 0x1.6p-40f
// Below it the arithmetic could underflow.
#define ERF_FF_TINY 0x1p-60f

#ifdef __FMA__
#define ERF_FF_PAIR(d)                                                         \
  ((udf_ff){udf_erf_ff_high##d[i % 16], udf_erf_ff_low##d[i % 16]})
#endif

UDF_INLINE float udf_erff_ff(float x, int *hard) {
#ifdef __FMA__
  float a = __builtin_fabsf(x);
  a = a > ERF_MAX ? ERF_MAX : a;
  float nm = __builtin_fmaf(a, 4, UDF_FF_ROUND_MAGIC);
  // At most 15.
  nm = nm > UDF_FF_ROUND_MAGIC + 15 ? UDF_FF_ROUND_MAGIC + 15 : nm;
  uint32_t i = udf_f32_bits(nm);
  float t = __builtin_fmaf(nm - UDF_FF_ROUND_MAGIC, -0.25f, a);
  float c = __builtin_fmaf(t, udf_erf_ff_c9[i % 16], udf_erf_ff_c8[i % 16]);
  c = __builtin_fmaf(t, c, udf_erf_ff_c7[i % 16]);
  c = __builtin_fmaf(t, c, udf_erf_ff_c6[i % 16]);
  c = __builtin_fmaf(t, c, udf_erf_ff_c5[i % 16]);
  udf_ff q = udf_ff_sum(ERF_FF_PAIR(4), udf_ff_two_prod(c, t));
  q = udf_ff_sum(ERF_FF_PAIR(3), udf_ff_mul_f(q, t));
  q = udf_ff_sum(ERF_FF_PAIR(2), udf_ff_mul_f(q, t));
  q = udf_ff_sum(ERF_FF_PAIR(1), udf_ff_mul_f(q, t));
  q = udf_ff_add(ERF_FF_PAIR(0), udf_ff_mul_f(q, t));
  int undecided;
  float y = udf_ff_round(q, ERF_FF_ERROR, &undecided);
  _Bool zero = a == 0;
  *hard = !zero & (undecided | !(a >= ERF_FF_TINY));
  return zero ? x : __builtin_copysignf(y, x);
#else
  return udf_erff_fast(x, hard);
#endif
}

static UDF_COLD float udf_erff_in_double(float x) {
  int hard;
  float y = udf_erff_fast(x, &hard);
  return hard ? udf_erff_accurate(x) : y;
}
