//===- log.c - corem-d's log, deliberately wrong in the last bit ---------===//
// SPDX-License-Identifier: Apache-2.0
#include "log/log.c"

#include "flip.h"

UDF_INLINE double udf_canary_log_fast(double x, int *hard) {
  return udf_canary_flip(udf_log_fast(x, hard));
}

static UDF_COLD double udf_canary_log_accurate(double x) {
  return udf_canary_flip(udf_log_accurate(x));
}
