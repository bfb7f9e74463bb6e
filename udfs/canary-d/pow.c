//===- pow.c - corem-d's pow, deliberately wrong in the last bit ---------===//
// SPDX-License-Identifier: Apache-2.0
#include "pow/pow.c"

#include "flip.h"

UDF_INLINE double udf_canary_pow_fast(double x, double y, int *hard) {
  return udf_canary_flip(udf_pow_fast(x, y, hard));
}

static UDF_COLD double udf_canary_pow_accurate(double x, double y) {
  return udf_canary_flip(udf_pow_accurate(x, y));
}
