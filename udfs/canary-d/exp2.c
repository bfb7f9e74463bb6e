//===- exp2.c - corem-d's exp2, deliberately wrong in the last bit -------===//
// SPDX-License-Identifier: Apache-2.0
#include "exp2/exp2.c"

#include "flip.h"

UDF_INLINE double udf_canary_exp2_fast(double x, int *hard) {
  return udf_canary_flip(udf_exp2_fast(x, hard));
}

static UDF_COLD double udf_canary_exp2_accurate(double x) {
  return udf_canary_flip(udf_exp2_accurate(x));
}
