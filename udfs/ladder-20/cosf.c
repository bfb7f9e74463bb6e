//===- cosf.c - cos of fewer bits -----------------------------------------===//
// SPDX-License-Identifier: Apache-2.0
#include "ladder.h"

#include "cos/cosf.c"

UDF_INLINE float udf_ladder_cosf(float x, int *hard) {
  // cos((n + 1/2) pi + r) = -(-1)^n sin(r)
  return -udf_ladder_sin(x, 0.5, hard);
}

static UDF_COLD float udf_ladder_cosf_accurate(float x) {
  return udf_cosf_accurate(x);
}
