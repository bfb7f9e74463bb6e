//===- logf.c - Correctly rounded float32 log in float-float --------------===//
//
// HEADER
//
//===----------------------------------------------------------------------===//

#include "../../corem/log/logf.c"

#include "../common/log_ff.h"

#define LOG_FF_ERROR 0x1p-39f

UDF_INLINE float udf_logf_ff(float x, int *hard) {
#ifdef __FMA__
  float k;
  float m = udf_log_ff_split(x, &k);
  udf_ff y = udf_log_ff_of((udf_ff){m - 1, 0});
  y = udf_log_ff_add(k, UDF_FF(UDF_LOG_FF_LN2), y);
  int undecided;
  float rounded = udf_ff_round(y, LOG_FF_ERROR, &undecided);
  *hard = undecided | udf_log_ff_special(x);
  return rounded;
#else
  return udf_logf_fast(x, hard);
#endif
}

static UDF_COLD float udf_logf_in_double(float x) {
  int hard;
  float y = udf_logf_fast(x, &hard);
  return hard ? udf_logf_accurate(x) : y;
}
