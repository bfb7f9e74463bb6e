//===- tanh.c - corem-d's tanh, deliberately wrong in the last bit --------===//
// SPDX-License-Identifier: Apache-2.0
#include "tanh/tanh.c"

#include "flip.h"

UDF_INLINE double udf_canary_tanh_fast(double x, int *hard) {
  return udf_canary_flip(udf_tanh_fast(x, hard));
}

static UDF_COLD double udf_canary_tanh_accurate(double x) {
  return udf_canary_flip(udf_tanh_accurate(x));
}
