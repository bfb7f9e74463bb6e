//===- log2f.c - Correctly rounded float32 log2 in float-float ------------===//
//
// HEADER
//
//===----------------------------------------------------------------------===//

#include "../../corem/log2/log2f.c"

#include "../common/log_ff.h"

#define LOG2_FF_ERROR 0x1p-39f

UDF_INLINE float udf_log2f_ff(float x, int *hard) {
#ifdef __FMA__
  float k;
  float m = udf_log_ff_split(x, &k);
  udf_ff y = udf_log_ff_of((udf_ff){m - 1, 0});
  y = udf_ff_add_f(k, udf_ff_mul(y, UDF_FF(UDF_LOG_FF_LOG2E)));
  int undecided;
  float rounded = udf_ff_round(y, LOG2_FF_ERROR, &undecided);
  *hard = undecided | udf_log_ff_special(x);
  return rounded;
#else
  return udf_log2f_fast(x, hard);
#endif
}

static UDF_COLD float udf_log2f_in_double(float x) {
  int hard;
  float y = udf_log2f_fast(x, &hard);
  return hard ? udf_log2f_accurate(x) : y;
}
