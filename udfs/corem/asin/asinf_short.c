//===- asinf_short.c - Short path of the scalar form of asin --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: as the fast path. Where that selects, this one loads, for a jump
// would be mispredicted at every other argument. s is x^2 below 1/2 and (1 -
// |x|) / 2 above, asin(x) = base + times sqrt(s) P(s), P of nine terms, and
// base and times carry the sign.
//
// Error, relative: P contributes 2^-39.5, doubled just above 1/2, where pi/3 is
// taken off pi/2 and leaves pi/6; everything else is below 2^-49, with or
// without FMA. That is 2^14.6 units in the last place; the margin is 2^15.
//
// Left to the fast path by the rounding test: 26,172 of 2,130,706,434
// arguments. The hardest case is that of asinf.c.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"

#include "short_constants.h"

#define ASIN_SHORT_MARGIN (UINT64_C(1) << 15)

// s = constant + x (linear + x square); exact.
typedef struct {
  double constant, linear, square, times, base;
} udf_asin_short_case;

static const udf_asin_short_case udf_asin_short_cases[] = {
    {0.0, 0.0, 1.0, 1.0, 0.0},
    {0.5, -0.5, 0.0, -2.0, UDF_ASIN_SHORT_HALF_PI},
    {0.0, 0.0, 1.0, -1.0, -0.0},
    {0.5, 0.5, 0.0, 2.0, -UDF_ASIN_SHORT_HALF_PI},
};

UDF_INLINE float udf_asinf_short(float x, int *hard) {
  uint32_t u = udf_f32_bits(x);
  uint32_t upper = (u & UINT32_C(0x7fffffff)) > UINT32_C(0x3f000000);
  const udf_asin_short_case *c = &udf_asin_short_cases[u >> 31 << 1 | upper];
  double d = x;
  double s = UDF_FMA(d, UDF_FMA(d, c->square, c->linear), c->constant);
  double t = __builtin_sqrt(s) * c->times;

  const double *p = udf_asin_short_poly;
  double s2 = s * s;
  double q = UDF_FMA(p[8], s2, UDF_FMA(p[7], s, p[6]));
  q = UDF_FMA(q, s2, UDF_FMA(p[5], s, p[4]));
  q = UDF_FMA(q, s2, UDF_FMA(p[3], s, p[2]));
  q = UDF_FMA(q, s2, UDF_FMA(p[1], s, p[0]));
  double y = UDF_FMA(t, q, c->base);

  // Beyond 1 and for NaN, y is NaN and needs no test.
  *hard = udf_near_boundary(y, ASIN_SHORT_MARGIN);
  return (float)y;
}
