//===- cosf.c - Correctly rounded float32 cos in float-float --------------===//
//
// HEADER
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
