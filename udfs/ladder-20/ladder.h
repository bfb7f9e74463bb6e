//===- ladder.h - Functions of fewer bits ---------------------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// LADDER_BITS chooses the rung: 8, 10, 12, 16 or 20.  The relative error of a
// result is below 2^-LADDER_BITS, that is 2^(24 - LADDER_BITS) ULP: half of it
// is the polynomial's, of which generate.sollya chooses the shortest, the rest
// is left to the evaluation in float32.  The proof is the run over all 2^32
// inputs: benches/experiments/ladder.py, or `udftorch verify ladder-12 exp`.
// A result that is subnormal errs by that many of the spacings there.
//
// Where a fast path cannot reduce its argument (|x| > 2^14 in sin and cos),
// corem's accurate path computes the result.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_LADDER_H
#define UDF_LADDER_H

#include "common/corem.h"

#ifdef __FMA__
#define LADDER_STEP(a, x, c) __builtin_fmaf((a), (x), (c))
#else
#define LADDER_STEP(a, x, c) ((a) * (x) + (c))
#endif
#define LADDER_STEP_IN_DOUBLE(a, x, c) UDF_FMA((a), (x), (c))

#include "constants.h"

// Adding 1.5 * 2^23 rounds a float32 number below 2^22 to the nearest integer
// and leaves it in the low bits.
#define LADDER_MAGIC 0x1.8p23f

// 2^k for -126 <= k <= 127.
UDF_INLINE float udf_ladder_scale(int32_t k) {
  return udf_f32_from_bits((uint32_t)(k + 127) << 23);
}

// (-1)^n sin(x - (n + half) pi) for the nearest integer n and |x| <= 2^14: pi
// in two doubles, of which n + half times the first is exact, leaves the
// difference with a relative error below 2^-40.
UDF_INLINE float udf_ladder_sin(float x, double half, int *hard) {
  double d = x;
  double nm = UDF_FMA(d, 0x1.45f306dc9c883p-2, -half) + UDF_ROUND_MAGIC;
  double n = nm - UDF_ROUND_MAGIC + half;
  double r = UDF_FMA(n, -0x1.921fb544p1, d);
  float a = (float)UDF_FMA(n, -0x1.0b4611a626331p-33, r);
  float s = a * a;
  float y = a * LADDER_SIN(s);
  uint32_t sign = (uint32_t)udf_f64_bits(nm) << 31;
  // NaN is hard, too.
  *hard = !(__builtin_fabsf(x) <= 0x1p14f);
  return udf_f32_from_bits(udf_f32_bits(y) ^ sign);
}

#endif // UDF_LADDER_H
