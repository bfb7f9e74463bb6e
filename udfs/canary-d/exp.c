//===- exp.c - corem-d's exp, deliberately wrong in the last bit ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// The lowest bit of every finite, nonzero result is inverted, as canary does
// for float32.
//
//===----------------------------------------------------------------------===//

#include "exp/exp.c"

UDF_INLINE double udf_canary_flip(double y) {
  uint64_t u = udf_f64_bits(y);
  uint64_t magnitude = u & UINT64_C(0x7fffffffffffffff);
  _Bool plain = (magnitude != 0) & (magnitude < UINT64_C(0x7ff0000000000000));
  return udf_f64_from_bits(u ^ (uint64_t)plain);
}

UDF_INLINE double udf_canary_exp_fast(double x, int *hard) {
  return udf_canary_flip(udf_exp_fast(x, hard));
}

static UDF_COLD double udf_canary_exp_accurate(double x) {
  return udf_canary_flip(udf_exp_accurate(x));
}
