//===- cosf.c - Correctly rounded float32 cos in float-float --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. cos(x) = +-cos(r) or +-sin(r), by n modulo 4, see trig_ff.h.
// Arguments from 8192 up, infinities and NaN are left to corem.
//
// Error of hi + lo, relative: below 2^-40.01 (measured by measure_ff.c on every
// seventh input, the largest at -0x1.a2dcd6p+12). The polynomials contribute
// 2^-42.6, their last terms, computed in float, the rest. The rounding test
// allows for COS_FF_ERROR = 0x1.6p-40, and all 2^32 inputs give the digest of
// corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^17.2 to corem (2,289 of
// 335,544,320).
//
//===----------------------------------------------------------------------===//

#include "../../corem/cos/cosf.c"

#include "../common/trig_ff.h"

#define COS_FF_ERROR 0x1.6p-40f

UDF_INLINE float udf_cosf_ff(float x, int *hard) {
#ifdef __FMA__
  uint32_t n;
  udf_ff r = udf_trig_ff_reduce(x, &n);
  int undecided;
  float y = udf_ff_round(udf_trig_ff_of(r, !(n & 1)), COS_FF_ERROR, &undecided);
  y = udf_f32_from_bits(udf_f32_bits(y) ^ ((n + 1) >> 1 << 31));
  *hard = undecided | !(__builtin_fabsf(x) < UDF_TRIG_FF_MAX);
  return y;
#else
  return udf_cosf_fast(x, hard);
#endif
}

static UDF_COLD float udf_cosf_in_double(float x) {
  int hard;
  float y = udf_cosf_fast(x, &hard);
  return hard ? udf_cosf_accurate(x) : y;
}
