//===- expm1f.c - Correctly rounded float32 expm1 in float-float ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. expm1(x) = 2^n expm1(r + s) + (2^n - 1), see exp_ff.h, computed as
// its half, since 2^n may overflow. Arguments below 2^-26 give themselves,
// those from -20 down -1 and those above EXPM1_FF_MAX infinity; NaN is left to
// corem.
//
// Error of hi + lo, relative: below 2^-40.83 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.62ebcap-2). It comes from the upper half of
// Q, computed in float, and the sum with 2^n - 1 raises it by 1.42 at most (n =
// 1, r = -0.3466). The rounding test allows for EXPM1_FF_ERROR = 0x1p-40, and
// all 2^32 inputs give the digest of corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^15.5 to corem (1,607 of
// 72,501,542).
//
//===----------------------------------------------------------------------===//

#include "../../corem/expm1/expm1f.c"

#include "../common/exp_ff.h"

#define EXPM1_FF_ERROR 0x1p-40f

// expm1(x) = x + x^2/2 + ... rounds to x below.
#define EXPM1_FF_TINY 0x1p-26f
// Greater arguments overflow.
#define EXPM1_FF_MAX 0x1.62e42ep+6f

UDF_INLINE float udf_expm1f_ff(float x, int *hard) {
#ifdef __FMA__
  uint32_t n;
  float r, s;
  udf_exp_ff_split(x, &n, &r, &s);
  // One half of the result: 2^n may overflow.
  float half = udf_exp_ff_power(n - 1);
  udf_ff e = udf_expm1_ff_of(r, s);
  udf_ff y = udf_ff_sum(udf_ff_two_sum(half, -0.5f),
                        (udf_ff){half * e.hi, half * e.lo});
  int undecided;
  float rounded = 2 * udf_ff_round(y, EXPM1_FF_ERROR, &undecided);
  _Bool tiny = __builtin_fabsf(x) < EXPM1_FF_TINY;
  _Bool least = x <= EXPM1_MIN, infinite = x > EXPM1_FF_MAX;
  *hard = !(tiny | least | infinite) & undecided;
  return tiny ? x : infinite ? __builtin_inff() : least ? -1 : rounded;
#else
  return udf_expm1f_fast(x, hard);
#endif
}

static UDF_COLD float udf_expm1f_in_double(float x) {
  int hard;
  float y = udf_expm1f_fast(x, &hard);
  return hard ? udf_expm1f_accurate(x) : y;
}
