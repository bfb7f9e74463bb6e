//===- tanf.c - Correctly rounded float32 tan in float-float --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method. tan(x) = sin(r) / cos(r), or -cos(r) / sin(r) for odd n, see
// trig_ff.h. Arguments below 2^-13 give themselves; those from 8192 up,
// infinities and NaN are left to corem.
//
// Error of hi + lo, relative: below 2^-40.10 (measured by measure_ff.c on every
// seventh input, the largest at 0x1.3a2aecp+4). The polynomials contribute
// 2^-42.6, their last terms, computed in float, the rest. The rounding test
// allows for TAN_FF_ERROR = 0x1.6p-40, and all 2^32 inputs give the digest of
// corem's certificate.
//
// Of the inputs answered here the test leaves one in 2^15.1 to corem (1,804 of
// 62,315,373).
//
//===----------------------------------------------------------------------===//

#include "../../corem/tan/tanf.c"

#include "../common/trig_ff.h"

#define TAN_FF_ERROR 0x1.6p-40f

// tan(x) = x + x^3/3 + ... rounds to x below.
#define TAN_FF_TINY 0x1p-13f

UDF_INLINE float udf_tanf_ff(float x, int *hard) {
#ifdef __FMA__
  uint32_t n;
  udf_ff r = udf_trig_ff_reduce(x, &n);
  udf_ff s = udf_trig_ff_of(r, 0), c = udf_trig_ff_of(r, 1);
  // tan(r + pi/2) = -1 / tan(r).
  _Bool odd = n & 1;
  udf_ff top = {odd ? -c.hi : s.hi, odd ? -c.lo : s.lo};
  udf_ff bottom = {odd ? s.hi : c.hi, odd ? s.lo : c.lo};
  int undecided;
  float y = udf_ff_round(udf_ff_div(top, bottom), TAN_FF_ERROR, &undecided);
  float a = __builtin_fabsf(x);
  _Bool tiny = a < TAN_FF_TINY;
  *hard = !tiny & (undecided | !(a < UDF_TRIG_FF_MAX));
  return tiny ? x : y;
#else
  return udf_tanf_fast(x, hard);
#endif
}

static UDF_COLD float udf_tanf_in_double(float x) {
  int hard;
  float y = udf_tanf_fast(x, &hard);
  return hard ? udf_tanf_accurate(x) : y;
}
