//===- area_ff.h - asinh and acosh in float-float -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Both are log(1 + g). As in log1p, k is taken from 1 + g rounded to float;
// where it is 0, g itself is the argument of log_ff.h, so that nothing is lost
// near 0.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_AREA_FF_H
#define UDF_AREA_FF_H

#include "log_ff.h"
#include "sqrt_ff.h"

#ifdef __FMA__

// From here on asinh(a) and acosh(a) are log(2 a) up to 2^-50, relative.
#define UDF_AREA_FF_LARGE 0x1p22f

// log(2 a) for a >= UDF_AREA_FF_LARGE, else log(1 + g) for g >= 0.
UDF_INLINE udf_ff udf_area_ff_of(float a, udf_ff g) {
  _Bool large = a >= UDF_AREA_FF_LARGE;
  udf_ff u = udf_ff_two_sum(1, g.hi);
  u.hi = large ? a : u.hi;
  float k;
  float m = udf_log_ff_split(u.hi, &k);
  float scale = udf_f32_from_bits(udf_f32_bits(m) - udf_f32_bits(u.hi) +
                                  UINT32_C(0x3f800000));
  // The scale of very large arguments is no float.
  udf_ff f = udf_ff_two_sum(m - 1, large ? 0 : (u.lo + g.lo) * scale);
  f.hi = k == 0 ? g.hi : f.hi;
  f.lo = k == 0 ? g.lo : f.lo;
  return udf_log_ff_add(large ? k + 1 : k, UDF_FF(UDF_LOG_FF_LN2),
                        udf_log_ff_of(f));
}

#endif

#endif // UDF_AREA_FF_H
