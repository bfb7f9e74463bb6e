//===- cosf_short.c - Short path of the scalar form of cos ---------------===//
// SPDX-License-Identifier: Apache-2.0
//
// See trig_short.h.
//
// Left to the fast path by the rounding test: 2,174 of 2,499,805,184
// arguments. The hardest case is that of cosf.c.
//
//===----------------------------------------------------------------------===//

#include "../common/corem.h"
#include "../common/trig_short.h"

UDF_INLINE float udf_cosf_short(float x, int *hard) {
  return udf_trig_short(x, 1, hard);
}
