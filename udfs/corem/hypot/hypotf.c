//===- hypotf.c - Correctly rounded float32 hypot -------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Method: sqrt(x^2 + y^2) in double. Both squares are exact (48 bits) and
// between 2^-298 and 2^256, so that nothing has to be scaled. There are no
// constants, and so no generator of constants.
//
// Error of the fast path: the sum errs by 2^-53 relative, of which the root
// leaves half, and the root by 2^-53 itself: below 1.5 units in the last place
// of the double, with or without FMA. The rounding test's margin of 2 units
// covers that.
//
// A subnormal result needs no test. x = m 2^-149 and y = n 2^-149 are both
// subnormal then, m^2 + n^2 is exact, and half-way points have squares that are
// a quarter more than an integer: sqrt(m^2 + n^2) is 2^-49 away from them at
// least, relative.
//
// Accurate path: pairs with an infinity or a NaN, and 5 of 134217728 pairs of
// ordinary magnitudes. Its double-double root errs by 2^-98 relative and is
// exact where the double is, so that half-way results (those of Pythagorean
// triples) are ties and no other is nearer to the half-way point than the
// hardest case.
//
// Hardest case: x = 0x1.87fffcp+23 (4b43fffe), y = 0x1.bffffep+11 (455fffff),
// result 0x1.87fffep+23 (4b43ffff), next candidate 0x1.87fffcp+23 (4b43fffe),
// 2^-72.2 relative from the boundary between them. In units of the last place
// of x, x^2 + y^2 - (x + k/2)^2 = y^2 - k x - k^2/4 is a multiple of the unit
// of y^2, which is 2^-24 for k = 1, all of whose pairs were tried, and 2^-22 at
// least for any other half-way point: 2^-71 relative.
//
// With FTZ and DAZ set, subnormal arguments count as zero and subnormal results
// are zero; others keep their bits.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"

#define HYPOT_MARGIN UINT64_C(2)

UDF_INLINE float udf_hypotf_fast(float x, float y, int *hard) {
  double dx = x, dy = y;
  double s = dx * dx + dy * dy;
  double r = __builtin_sqrt(s);
  *hard = !(s < (double)__builtin_inff()) | udf_near_boundary(r, HYPOT_MARGIN);
  return (float)r;
}

static UDF_COLD float udf_hypotf_accurate(float x, float y) {
  double dx = x, dy = y;
  if (__builtin_isinf(x) || __builtin_isinf(y))
    return __builtin_inff();
  if (x != x || y != y)
    return __builtin_nanf("");
  udf_dd s = udf_two_sum(dx * dx, dy * dy);
  return s.hi == 0 ? 0.0f : udf_dd_round(udf_dd_sqrt(s));
}
