//===- erfcf_wide.c - Quick path of erfc at AVX-512 -----------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// erfc(a) = exp(-a^2) g(a) for a = |x|, in pairs of floats, with tables of 32
// entries, a look-up in which is one permutation. g has one polynomial for
// each of 32 intervals, as in odd_quick.h. In the interval of 0 its center is
// 0, where value and p2 are 1. exp(-a^2) is reduced as in exp_quick.h, a^2
// being a pair: high and what a fused multiply-add says it lacks, which joins
// the rest of the argument. The table of powers has encodings less j 2^18, to
// which n 2^18 is added. The product of T and g is a pair, which takes the
// place of T in exp_quick.h. erfc(-a) = 2 - erfc(a), a sum without error.
//
// Error, relative to erfc(a): the polynomial and the roundings of its terms
// from r^3 on 2^-33.4, the rounding of the low part of T g 2^-35.4, exp
// 2^-35.8, and 2^-40 for all others. These are largest between 3.5 and 4, and
// 2^-36 in most intervals. Every result is moved up by half of WIDTH, through
// the table of offsets, and the test looks at the whole WIDTH below. Half of
// it, 2^-33.7, is less than the sum, whose parts do not meet: among random
// arguments the largest error was 2^-33.9. So this is no proved bound. All 2^32
// arguments were run, and none that the test decides is wrong; nor is one of
// 2^29 with six tenths of the width. The test leaves two arguments in 1000 to
// the fast path, and one in 3000 below 0.
//
// Arguments above END are left to the fast path: low parts of smaller results
// would be subnormal, which may be flushed. The argument is clamped, so that
// those below -END have 2.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/odd_quick.h"

#include "wide_constants.h"

#ifdef __FMA__
UDF_INLINE float udf_erfcf_wide(float x, int *hard) {
  float a = __builtin_fabsf(x);
  // Written so that NaN passes.
  float c = a > UDF_ERFC_WIDE_MAX ? UDF_ERFC_WIDE_MAX : a;
  float b = __builtin_fmaf(c, UDF_ERFC_WIDE_SCALE, UDF_ERFC_WIDE_ORIGIN);
  uint32_t i = udf_f32_bits(b) >> UDF_ERFC_WIDE_SHIFT;
  udf_odd_entries e = {
      udf_erfc_wide_center[i % 32], udf_erfc_wide_value[i % 32],
      udf_erfc_wide_slope[i % 32],  udf_erfc_wide_slope_low[i % 32],
      udf_erfc_wide_p2[i % 32],     udf_erfc_wide_p3[i % 32],
      udf_erfc_wide_p4[i % 32],     udf_erfc_wide_p5[i % 32],
      udf_erfc_wide_p6[i % 32],     0,
  };
  udf_odd_pair g = udf_odd_quick_series(c - e.center, e);

  // -c^2 = n ln(2)/32 + r + s.
  float z = c * c;
  float z_low = __builtin_fmaf(c, c, -z);
  float nm = __builtin_fmaf(z, -UDF_ERFC_WIDE_INV_STEP, 0x1.8p23f);
  float n = nm - 0x1.8p23f;
  uint32_t j = udf_f32_bits(nm);
  float r = __builtin_fmaf(n, -UDF_ERFC_WIDE_STEP_HI, -z);
  float s =
      __builtin_fmaf(n, -UDF_ERFC_WIDE_STEP_LO, udf_erfc_wide_offset[j % 32]) -
      z_low;
  // The absolute value only says that the entry is a float: see udf-tables.
  float power = __builtin_fabsf(udf_erfc_wide_power[j % 32]);
  float t = udf_f32_from_bits(udf_f32_bits(power) + (j << 18));

  float w = t * g.high;
  float w_low = __builtin_fmaf(t, g.low, __builtin_fmaf(t, g.high, -w));
  float d = r + s;
  float q = __builtin_fmaf(
      d, __builtin_fmaf(r, UDF_ERFC_WIDE_C4, UDF_ERFC_WIDE_C3), 0.5f);
  float p = __builtin_fmaf(d * d, q, s);
  float high = __builtin_fmaf(w, r, w);
  float low = __builtin_fmaf(w, p, __builtin_fmaf(w, r, w - high));
  low += __builtin_fmaf(w_low, r + p, w_low);

  // Either the result, or what 2 has above it.
  uint32_t sign = udf_f32_bits(x) & UINT32_C(0x80000000);
  float base = udf_f32_from_bits(sign >> 1);
  high = udf_f32_from_bits(udf_f32_bits(high) ^ sign);
  low = udf_f32_from_bits(udf_f32_bits(low) ^ sign);
  float sum = base + high;
  low += (base - sum) + high;
  float upper = sum + low;
  float lower = sum + __builtin_fmaf(high, -UDF_ERFC_WIDE_WIDTH, low);
  *hard = (upper != lower) | (x > UDF_ERFC_WIDE_MAX);
  return upper;
}
#endif
