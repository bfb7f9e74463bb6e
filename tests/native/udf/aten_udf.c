//===- aten_udf.c - UDFs bound to what ATen's kernels call ----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// expf as in probe.h; expm1f and logf of the same two-step kind. None of them
// is accurate: what counts is that their bits are nobody else's.
//
//===----------------------------------------------------------------------===//

#include "probe.h"

static inline float udf_expm1f_fast(float x, int *hard) {
  *hard = (bits32(x) & 15) == 5;
  return float32(bits32((float)(taylor_exp(x) - 1.0)) ^ ULP_ERROR_FAST);
}
static float udf_expm1f_accurate(float x) { return -(float)taylor_exp(x); }

// The exponent and the fraction side by side, read as one number.
static inline float udf_logf_fast(float x, int *hard) {
  int64_t steps = (int64_t)(bits64((double)x) - bits64(1.0));
  *hard = (bits32(x) & 15) == 5;
  float y = (float)((double)steps * (0x1p-52 * 0.6931471805599453));
  return float32(bits32(y) ^ ULP_ERROR_FAST);
}
static float udf_logf_accurate(float x) { return 1.0f / x; }
