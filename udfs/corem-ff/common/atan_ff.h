//===- atan_ff.h - The arctangent in float-float --------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// atan(n/d) = atan(c) + atan(t), t = (n - c d) / (d + c n), c = i/8 the
// multiple of 1/8 nearest to n/d, |t| <= 1/16, and atan(t) = t + t z P(z), z =
// t^2, P of four terms, the last three in float. n - c d is exact: for i = 0 it
// is n; for i > 0, with d in [2^e, 2^(e+1)), it is a multiple of 2^(e-27),
// because n > d/16, and smaller than 2^(e-3).
//
//===----------------------------------------------------------------------===//

#ifndef UDF_ATAN_FF_H
#define UDF_ATAN_FF_H

#include "ff.h"

#include "atan_ff_constants.h"

#ifdef __FMA__

// atan(n / d) for 0 <= n <= d, d > 0; NaN gives NaN. Nothing may underflow:
// n is 0 or above 2^-100, and d in [1, 2^30].
UDF_INLINE udf_ff udf_atan_ff_of(float n, float d) {
  float im = __builtin_fmaf(n / d, 8, UDF_FF_ROUND_MAGIC);
  // At most 8; for NaN too.
  im = im < UDF_FF_ROUND_MAGIC + 8 ? im : UDF_FF_ROUND_MAGIC + 8;
  uint32_t i = udf_f32_bits(im) % 16;
  float c = (im - UDF_FF_ROUND_MAGIC) * 0.125f;
  udf_ff top = {__builtin_fmaf(-c, d, n), 0};
  udf_ff t = udf_ff_div(top, udf_ff_add_f(d, udf_ff_two_prod(c, n)));
  udf_ff z = udf_ff_mul(t, t);
  float p = __builtin_fmaf(z.hi, UDF_ATAN_FF_C4, UDF_ATAN_FF_C3);
  p = __builtin_fmaf(z.hi, p, UDF_ATAN_FF_C2);
  udf_ff q = udf_ff_add(UDF_FF(UDF_ATAN_FF_C1), udf_ff_mul_f(z, p));
  q = udf_ff_add(t, udf_ff_mul(udf_ff_mul(q, z), t));
  return udf_ff_add((udf_ff){udf_atan_ff_high[i], udf_atan_ff_low[i]}, q);
}

#endif

#endif // UDF_ATAN_FF_H
