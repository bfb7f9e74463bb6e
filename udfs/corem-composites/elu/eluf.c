//===- eluf.c - Correctly rounded float32 elu -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// elu(x) = x for x > 0, exp(x) - 1 otherwise: PyTorch's operator with alpha,
// the scale and the scale of the input all 1, its defaults.
//
// Method, error, accurate path and hardest case are those of expm1.
//
//===----------------------------------------------------------------------===//

#include "expm1/expm1f.c"

UDF_INLINE float udf_eluf_fast(float x, int *hard) {
  float y = udf_expm1f_fast(x, hard);
  _Bool positive = x > 0;
  *hard = *hard & !positive;
  return positive ? x : y;
}

static UDF_COLD float udf_eluf_accurate(float x) {
  return x > 0 ? x : udf_expm1f_accurate(x);
}
