//===- sinf.c - sin of fewer bits -----------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
#include "ladder.h"

#include "sin/sinf.c"

UDF_INLINE float udf_ladder_sinf(float x, int *hard) {
  return udf_ladder_sin(x, 0, hard);
}

static UDF_COLD float udf_ladder_sinf_accurate(float x) {
  return udf_sinf_accurate(x);
}
