//===- logsigmoidf.c - Correctly rounded float32 logsigmoid ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// logsigmoid(x) = log(1 / (1 + exp(-x))) = -softplus(-x) for real x; -0 at
// infinity, its limit.
//
// Method, error and accurate path are those of softplus: min(x, 0) -
// log(1 + exp(-|x|)), see softplus.h.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "../common/softplus.h"

UDF_INLINE float udf_logsigmoidf_fast(float x, int *hard) {
  double least = x < 0 ? x : 0;
  double y = least - udf_log1p_exp(__builtin_fabsf(x));
  *hard = udf_near_any_boundary(y, SOFTPLUS_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_logsigmoidf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x >= SOFTPLUS_MAX)
    return -0.0f;
  if (x <= -SOFTPLUS_MAX)
    return x;
  udf_dd y = udf_softplus_dd(-(double)x);
  return udf_dd_round((udf_dd){-y.hi, -y.lo});
}
