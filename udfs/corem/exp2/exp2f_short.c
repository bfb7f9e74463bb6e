//===- exp2f_short.c - Short path of the scalar form of exp2 --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = n/J + r, see exp_short.h; both are exact. Results are normal and finite
// where |x| < 126; other arguments are left to the fast path.
//
// Left to the fast path by the rounding test: 8,381 of 2,247,622,656
// arguments. The hardest case is that of exp2f.c.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_short.h"

// Encoding of 126.
#define EXP2_SHORT_LARGE UINT32_C(0x42fc0000)

UDF_INLINE float udf_exp2f_short(float x, int *hard) {
  if ((udf_f32_bits(x) & UINT32_C(0x7fffffff)) >= EXP2_SHORT_LARGE) {
    *hard = 1;
    return x;
  }
  double d = x;
  double nd = d + UDF_EXP_SHORT_MAGIC;
  double r = d - (nd - UDF_EXP_SHORT_MAGIC);
  double y = udf_exp2_short(udf_f64_bits(nd), r);
  *hard = udf_near_boundary(y, UDF_EXP_SHORT_MARGIN);
  return (float)y;
}
