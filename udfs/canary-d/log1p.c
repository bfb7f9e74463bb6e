//===- log1p.c - corem-d's log1p, deliberately wrong in the last bit
//-------===//
// SPDX-License-Identifier: Apache-2.0
#include "log1p/log1p.c"

#include "flip.h"

UDF_INLINE double udf_canary_log1p_fast(double x, int *hard) {
  return udf_canary_flip(udf_log1p_fast(x, hard));
}

static UDF_COLD double udf_canary_log1p_accurate(double x) {
  return udf_canary_flip(udf_log1p_accurate(x));
}
