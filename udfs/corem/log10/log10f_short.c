//===- log10f_short.c - Short path of the scalar form of log10 ---===//
// SPDX-License-Identifier: Apache-2.0
//
// See log_short.h. The table of k makes arguments that are not in [2^-125,
// 2^127) hard, and some of these at the ends.
//
// Left to the fast path by the rounding test: 1,037,827 of 2,122,317,824
// arguments. The hardest case is that of log10f.c.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/log_short.h"

UDF_INLINE float udf_log10f_short(float x, int *hard) {
  udf_log_short_parts a = udf_log_short_split(
      udf_f32_bits(x), udf_log10_short_binade, udf_log10_short_table);
  double y = udf_log_short_sum(a, udf_log10_short_poly);
  *hard = udf_near_boundary(y, UDF_LOG_SHORT_MARGIN);
  return (float)y;
}
