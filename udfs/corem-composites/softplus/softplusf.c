//===- softplusf.c - Correctly rounded float32 softplus -------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// softplus(x) = log(1 + exp(x)) for real x. PyTorch's operator returns x where
// x > 20 (its default threshold, with beta = 1); there x is what the function
// rounds to, so that the threshold changes no result.
//
// Method. max(x, 0) + log(1 + exp(-|x|)), see softplus.h.
//
// Error of the fast path, relative: 2^-45, and 2^-52 of the sum; at most 2^8.1
// units in the last place of the double. The rounding test sends everything
// within SOFTPLUS_MARGIN = 2^10 units of a boundary to the accurate path;
// subnormal results are tested at their own spacing.
//
// Accurate path. The same in double-double, relative error below 2^-75.
//
// The certificate over all inputs is outstanding: how many take the accurate
// path, and the hardest case, are not known yet.
//
//===----------------------------------------------------------------------===//

#include "../common/softplus.h"

UDF_INLINE float udf_softplusf_fast(float x, int *hard) {
  double most = x > 0 ? x : 0;
  double y = most + udf_log1p_exp(__builtin_fabsf(x));
  *hard = udf_near_any_boundary(y, SOFTPLUS_MARGIN);
  return (float)y;
}

static UDF_COLD float udf_softplusf_accurate(float x) {
  if (x != x)
    return x + x;
  if (x <= -SOFTPLUS_MAX)
    return 0;
  if (x >= SOFTPLUS_MAX)
    return x;
  return udf_dd_round(udf_softplus_dd(x));
}
