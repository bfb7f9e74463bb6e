//===- cos.c - corem-d's cos, deliberately wrong in the last bit ---------===//
// SPDX-License-Identifier: Apache-2.0
#include "cos/cos.c"

#include "flip.h"

UDF_INLINE double udf_canary_cos_fast(double x, int *hard) {
  return udf_canary_flip(udf_cos_fast(x, hard));
}

static UDF_COLD double udf_canary_cos_accurate(double x) {
  return udf_canary_flip(udf_cos_accurate(x));
}
