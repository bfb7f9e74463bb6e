//===- exp.c - corem-d's exp, deliberately wrong in the last bit ---------===//
// SPDX-License-Identifier: Apache-2.0
#include "exp/exp.c"

#include "flip.h"

UDF_INLINE double udf_canary_exp_fast(double x, int *hard) {
  return udf_canary_flip(udf_exp_fast(x, hard));
}

static UDF_COLD double udf_canary_exp_accurate(double x) {
  return udf_canary_flip(udf_exp_accurate(x));
}
