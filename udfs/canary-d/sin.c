//===- sin.c - corem-d's sin, deliberately wrong in the last bit ---------===//
// SPDX-License-Identifier: Apache-2.0
#include "sin/sin.c"

#include "flip.h"

UDF_INLINE double udf_canary_sin_fast(double x, int *hard) {
  return udf_canary_flip(udf_sin_fast(x, hard));
}

static UDF_COLD double udf_canary_sin_accurate(double x) {
  return udf_canary_flip(udf_sin_accurate(x));
}
