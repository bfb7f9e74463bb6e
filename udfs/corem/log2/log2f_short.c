//===- log2f_short.c - Short path of the scalar form of log2 ---===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_short.h. Arguments that are no normal numbers above zero are left to
// the fast path.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_short.h"

UDF_INLINE float udf_log2f_short(float x, int *hard) {
  uint32_t u = udf_f32_bits(x);
  if (udf_log_short_special(u)) {
    *hard = 1;
    return x;
  }
  double y = udf_log_short_sum(udf_log_short_split(u, &udf_log2_short),
                               udf_log2_short_poly);
  *hard = udf_near_boundary(y, UDF_LOG_SHORT_MARGIN);
  return (float)y;
}
