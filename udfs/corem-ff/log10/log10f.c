//===- log10f.c - Correctly rounded float32 log10 in float-float ----------===//
//
// HEADER
//
//===----------------------------------------------------------------------===//

#include "../../corem/log10/log10f.c"

#include "../common/log_ff.h"

#define LOG10_FF_ERROR 0x1p-39f

UDF_INLINE float udf_log10f_ff(float x, int *hard) {
#ifdef __FMA__
  float k;
  float m = udf_log_ff_split(x, &k);
  udf_ff y = udf_log_ff_of((udf_ff){m - 1, 0});
  y = udf_log_ff_add(k, UDF_FF(UDF_LOG_FF_LOG10_2),
                     udf_ff_mul(y, UDF_FF(UDF_LOG_FF_LOG10E)));
  int undecided;
  float rounded = udf_ff_round(y, LOG10_FF_ERROR, &undecided);
  *hard = undecided | udf_log_ff_special(x);
  return rounded;
#else
  return udf_log10f_fast(x, hard);
#endif
}

static UDF_COLD float udf_log10f_in_double(float x) {
  int hard;
  float y = udf_log10f_fast(x, &hard);
  return hard ? udf_log10f_accurate(x) : y;
}
