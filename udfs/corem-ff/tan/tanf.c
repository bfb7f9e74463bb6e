//===- tanf.c - Correctly rounded float32 tan in float-float --------------===//
//
// HEADER
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
