//===- exp2.c - Correctly rounded float64 exp2 ----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// The method of exp.c, with its tables, polynomials, margin and quick path. x =
// n/16 + f is exact, and 2^f = exp(r + s) with r + s = f log(2): r is the
// rounded product, s has its error, f LN2_LO and what exp's table lacks. |s| <
// 2^-49, and the constants leave out less than in exp
// (tests/native/test_float64_bounds.py).
//
// Of 5 million arguments between -1022 and 1024 185 take the accurate path.
//
// Accurate path. The fraction of x, exact in units of 2^-128, times log(2),
// truncated, is what exp.c reduces its argument to; the relative error is below
// 2^-123. Whole numbers give powers of two, which are exact; -1075 is the only
// argument whose result, for which 0 is returned, is half-way.
// 2^x and 2^(x+1) have the same significand, so that the hard cases are those
// of one binade for each place of the last bit of x. The worst one that Lefevre
// and Muller (ARITH 15, 2001) list is 2^-112.54 from the middle of two doubles:
//   x      0x1.e4596526bf94dp-10 (0x3f5e4596526bf94d)
//
//===----------------------------------------------------------------------===//

#include "../exp/exp.c"

#define EXP2_END 1024.0
#define EXP2_ZERO -1075.0
#define EXP2_QUICK_END 0x1.ffp9 // 1022

UDF_INLINE udf_exp_argument udf_exp2_reduce(double x) {
  double shifted = x + EXP_MAGIC;
  double k = shifted - EXP_MAGIC;
  uint64_t i = udf_f64_bits(shifted);
  double f = x - k;
  udf_dd product = udf_two_prod(f, EXP_LN2_HI);
  double s =
      UDF_FMA(f, EXP_LN2_LO, product.lo) + (double)udf_exp_rest[i % EXP_STEPS];
  return (udf_exp_argument){i, k, product.hi, s};
}

UDF_INLINE double udf_exp2_fast(double x, int *hard) {
  udf_exp_argument of = udf_exp2_reduce(x);
  // NaN is hard.
  return udf_exp_scale(udf_exp_sum(of, EXP_MARGIN), of.i, x >= EXP2_END,
                       x <= EXP2_ZERO, x >= -1022.0, hard);
}

UDF_INLINE double udf_exp2_quick(double x, int *hard) {
  // NaN is outside.
  return udf_exp_quick_sum(udf_exp2_reduce(x),
                           !(__builtin_fabs(x) <= EXP2_QUICK_END), hard);
}

static UDF_COLD double udf_exp2_accurate(double x) {
  if (x != x)
    return x + x;
  if (x >= EXP2_END)
    return __builtin_inf();
  if (x <= EXP2_ZERO)
    return 0;
  if (__builtin_fabs(x) < 0x1p-54)
    return 1.0 + x;
  int k = (int)x;
  k -= (double)k > x;
  udf_u128 r = udf_high_product(udf_exp_fraction(x), EXP_LN2_WORDS);
  return udf_exp_round(udf_exp_fixed(r), k);
}
