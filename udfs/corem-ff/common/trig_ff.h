//===- trig_ff.h - Sine and cosine in float-float -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = n pi/2 + r, n the integer nearest to 2x/pi, |r| <= 0.7855, for |x| below
// UDF_TRIG_FF_MAX. pi/2 is taken in four parts; x less n times the first is
// exact, and so are the sum with the second and its rounding error. Sine and
// cosine of r are 1 + z (...) in z = r^2, times r and 1: one polynomial with
// selected coefficients, its last two terms in float.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_TRIG_FF_H
#define UDF_TRIG_FF_H

#include "ff.h"

#include "trig_ff_constants.h"

#ifdef __FMA__

#define UDF_TRIG_FF_MAX 8192.0f

// r, with n in the low bits.
UDF_INLINE udf_ff udf_trig_ff_reduce(float x, uint32_t *n) {
  float nm = __builtin_fmaf(x, UDF_TRIG_FF_TWO_OVER_PI, UDF_FF_ROUND_MAGIC);
  float k = nm - UDF_FF_ROUND_MAGIC;
  *n = udf_f32_bits(nm);
  float first = __builtin_fmaf(k, -UDF_TRIG_FF_HALF_PI_1, x);
  udf_ff second = udf_ff_two_prod(k, -UDF_TRIG_FF_HALF_PI_2);
  udf_ff r = udf_ff_two_sum(first, second.hi);
  udf_ff third = udf_ff_two_prod(k, -UDF_TRIG_FF_HALF_PI_3);
  third.lo = __builtin_fmaf(k, -UDF_TRIG_FF_HALF_PI_4, third.lo);
  udf_ff rest = udf_ff_two_sum(second.lo, third.hi);
  rest.lo += third.lo;
  // r.hi + r.lo is exact; r.lo is zero where they cancel.
  udf_ff low = udf_ff_two_sum(r.lo, rest.hi);
  r = udf_ff_fast_two_sum(r.hi, low.hi);
  r.lo += low.lo + rest.lo;
  return r;
}

// cos(r) if cosine, else sin(r).
UDF_INLINE udf_ff udf_trig_ff_of(udf_ff r, _Bool cosine) {
#define UDF_TRIG_FF_EITHER(i)                                                  \
  ((udf_ff){cosine ? UDF_TRIG_FF_C##i##_HI : UDF_TRIG_FF_S##i##_HI,            \
            cosine ? UDF_TRIG_FF_C##i##_LO : UDF_TRIG_FF_S##i##_LO})
  udf_ff z = udf_ff_mul(r, r);
  float t = __builtin_fmaf(z.hi, cosine ? UDF_TRIG_FF_C5 : UDF_TRIG_FF_S5,
                           cosine ? UDF_TRIG_FF_C4 : UDF_TRIG_FF_S4);
  udf_ff q = udf_ff_add(UDF_TRIG_FF_EITHER(3), udf_ff_two_prod(t, z.hi));
  q = udf_ff_step(q, z, UDF_TRIG_FF_EITHER(2));
  q = udf_ff_step(q, z, UDF_TRIG_FF_EITHER(1));
  q = udf_ff_add_f(1, udf_ff_mul(q, z));
  return udf_ff_mul(q, (udf_ff){cosine ? 1 : r.hi, cosine ? 0 : r.lo});
#undef UDF_TRIG_FF_EITHER
}

#endif

#endif // UDF_TRIG_FF_H
