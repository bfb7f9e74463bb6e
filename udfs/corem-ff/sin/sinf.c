//===- sinf.c - Correctly rounded float32 sin in float-float --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. sin(x) = +-sin(r) or +-cos(r), by n modulo 4, see trig_ff.h.
// Arguments below 2^-12 give themselves; those from 8192 up, infinities and NaN
// are left to corem.
//
// Error of hi + lo, relative: below 2^-40.05 (measured by measure_ff.c on every
// seventh input, the largest at -0x1.00ba18p+11). The polynomials contribute
// 2^-42.6, their last terms, computed in float, the rest. The rounding test
// allows for SIN_FF_ERROR = 0x1.6p-40, and all 2^32 inputs give the digest of
// corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^14.8 to corem (2,076 of
// 59,918,629).
//
//===----------------------------------------------------------------------===//

#include "../../corem/sin/sinf.c"

#include "../common/trig_ff.h"

#define SIN_FF_ERROR 0x1.6p-40f

// sin(x) = x - x^3/6 + ... rounds to x below.
#define SIN_FF_TINY 0x1p-12f

UDF_INLINE float udf_sinf_ff(float x, int *hard) {
#ifdef __FMA__
  uint32_t n;
  udf_ff r = udf_trig_ff_reduce(x, &n);
  int undecided;
  float y = udf_ff_round(udf_trig_ff_of(r, n & 1), SIN_FF_ERROR, &undecided);
  y = udf_f32_from_bits(udf_f32_bits(y) ^ (n >> 1 << 31));
  float a = __builtin_fabsf(x);
  _Bool tiny = a < SIN_FF_TINY;
  *hard = !tiny & (undecided | !(a < UDF_TRIG_FF_MAX));
  return tiny ? x : y;
#else
  return udf_sinf_fast(x, hard);
#endif
}

static UDF_COLD float udf_sinf_in_double(float x) {
  int hard;
  float y = udf_sinf_fast(x, &hard);
  return hard ? udf_sinf_accurate(x) : y;
}
