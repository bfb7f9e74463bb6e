//===- asin_ff.h - The arcsine in float-float -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// For a = |x| <= 1/2, asin(a) = t P(t^2) with t = a; above, pi/2 - asin(a) =
// acos(a) = 2 t P(t^2) with t = sqrt((1 - a) / 2), t^2 being exact. P has ten
// terms, the last four in float.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ASIN_FF_H
#define UDF_ASIN_FF_H

#include "ff.h"
#include "sqrt_ff.h"

#include "asin_ff_constants.h"

#ifdef __FMA__

// asin(a) for 0 <= a <= 1/2, acos(a) if upper, for 1/2 <= a <= 1.
UDF_INLINE udf_ff udf_asin_ff_of(float a, _Bool upper) {
  udf_ff square = udf_ff_two_prod(a, a);
  udf_ff z = {upper ? 0.5f - 0.5f * a : square.hi, upper ? 0 : square.lo};
  float t = __builtin_fmaf(z.hi, UDF_ASIN_FF_C9, UDF_ASIN_FF_C8);
  t = __builtin_fmaf(z.hi, t, UDF_ASIN_FF_C7);
  t = __builtin_fmaf(z.hi, t, UDF_ASIN_FF_C6);
  udf_ff q = udf_ff_add(UDF_FF(UDF_ASIN_FF_C5), udf_ff_mul_f(z, t));
  q = udf_ff_step(q, z, UDF_FF(UDF_ASIN_FF_C4));
  q = udf_ff_step(q, z, UDF_FF(UDF_ASIN_FF_C3));
  q = udf_ff_step(q, z, UDF_FF(UDF_ASIN_FF_C2));
  q = udf_ff_step(q, z, UDF_FF(UDF_ASIN_FF_C1));
  q = udf_ff_add_f(1, udf_ff_mul(q, z));
  udf_ff root = udf_ff_sqrt(z);
  return udf_ff_mul(q,
                    (udf_ff){upper ? 2 * root.hi : a, upper ? 2 * root.lo : 0});
}

#endif

#endif // UDF_ASIN_FF_H
