//===- expf_short.c - Short path of the scalar form of exp ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// x = n log(2)/J + r, see exp_short.h; n is read from the low bits of x J /
// log(2) + 1.5 * 2^52. Results are normal and finite where |x| <= 87.3; other
// arguments are left to the fast path.
//
// Left to the fast path by the rounding test: 8,289 of 2,237,477,686
// arguments. The hardest case is that of expf.c.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/exp_short.h"

// Encoding of 87.3.
#define EXP_SHORT_LARGE UINT32_C(0x42ae999a)

UDF_INLINE float udf_expf_short(float x, int *hard) {
  if ((udf_f32_bits(x) & UINT32_C(0x7fffffff)) > EXP_SHORT_LARGE) {
    *hard = 1;
    return x;
  }
  double d = x;
  double nd = UDF_FMA(d, UDF_EXP_SHORT_INV_STEP, UDF_ROUND_MAGIC);
  double r = UDF_FMA(nd - UDF_ROUND_MAGIC, -UDF_EXP_SHORT_STEP, d);
  double y = udf_exp_short(udf_f64_bits(nd), r);
  *hard = udf_near_boundary(y, UDF_EXP_SHORT_MARGIN);
  return (float)y;
}
