//===- cosf_wide.c - Quick path of cos at AVX-512 -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// As in trig_wide.h. The width of the rounding test is absolute: near the zeros
// of cos, where it is many units in the last place, there are few arguments.
//
//===----------------------------------------------------------------------===//

#include "../common/trig_wide.h"

#ifdef __FMA__

#define COS_WIDE_WIDTH 0x1.cp-38f
// A quarter of a circle is 16 units, of 2^-22.
#define COS_WIDE_MAGIC (UDF_TRIG_WIDE_MAGIC + 0x1p-18f)

UDF_INLINE float udf_cosf_wide(float x, int *hard) {
  float t = __builtin_fmaf(x, UDF_TRIG_WIDE_INVERSE, COS_WIDE_MAGIC);
  uint32_t i = udf_f32_bits(t);
  udf_trig_wide_pair y = udf_trig_wide_series(x, t - COS_WIDE_MAGIC, i);
  float upper = y.high + (y.low + COS_WIDE_WIDTH);
  float lower = y.high + (y.low - COS_WIDE_WIDTH);
  *hard = udf_trig_wide_hard(upper, lower, i);
  return udf_trig_wide_sign(upper, i);
}

#endif
