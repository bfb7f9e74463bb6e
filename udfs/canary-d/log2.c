//===- log2.c - corem-d's log2, deliberately wrong in the last bit -------===//
// SPDX-License-Identifier: Apache-2.0
#include "log2/log2.c"

#include "flip.h"

UDF_INLINE double udf_canary_log2_fast(double x, int *hard) {
  return udf_canary_flip(udf_log2_fast(x, hard));
}

static UDF_COLD double udf_canary_log2_accurate(double x) {
  return udf_canary_flip(udf_log2_accurate(x));
}
