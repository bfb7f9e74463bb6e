//===- powf_short.c - Short path of the scalar form of pow ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x^y = 2^t, t = y log2(x), for a normal x > 0 and |t| < 126; log2 as in
// log_short.h, with a polynomial of degree 5, 2^t as in exp_short.h. Everything
// else is left to the fast path: there t is NaN, or as large.
//
// Error, relative. log2: the polynomial's, 2^-46.6 in the interval of 1 with k
// = 0 and 2^-54.1 absolute elsewhere, which is 2^-46.0 of the result, and less
// than 2^-51 of roundings. |t| log(2) is below 2^6.45, so that 2^t errs by
// 2^-39.5 for that; the polynomial of 2^t adds 2^-41.2. In all less than 2^-39,
// or 2^14 units in the last place.
//
//===----------------------------------------------------------------------===//

// powf.c, which is compiled behind this file, has a condition a & b ? c : d, as
// it means to. Parentheses there would be other sources, and end the
// certificates of all forms.
#pragma clang diagnostic ignored "-Wbitwise-conditional-parentheses"

#include "../common/corem.h"
#include "../common/exp_short.h"
#include "../common/log_short.h"

#define POW_SHORT_LARGE 126.0
#define POW_SHORT_MARGIN (UINT64_C(1) << 14)

UDF_INLINE float udf_powf_short(float x, float y, int *hard) {
  udf_log_short_parts a = udf_log_short_split(
      udf_f32_bits(x), udf_pow_short_binade, udf_log2_short_table);
  const double *p = udf_pow_short_poly;
  double r2 = a.r * a.r;
  double first = UDF_FMA(a.r, p[0], a.base);
  double q = UDF_FMA(r2, UDF_FMA(a.r, p[4], p[3]), UDF_FMA(a.r, p[2], p[1]));
  double t = y * UDF_FMA(r2, q, first);
  if (!(__builtin_fabs(t) < POW_SHORT_LARGE)) {
    *hard = 1;
    return x;
  }
  double nd = t + UDF_EXP_SHORT_MAGIC;
  double r = t - (nd - UDF_EXP_SHORT_MAGIC);
  double z = udf_exp2_short(udf_f64_bits(nd), r);
  *hard = udf_near_boundary(z, POW_SHORT_MARGIN);
  return (float)z;
}
