//===- stochastic.h - Results that go up or down at random ----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// A result that is no float32 number goes to the next one below or above it,
// each with probability 1/2: the random rounding of CESTAC (Vignes, Math.
// Comput. Simulation 35(3), 1993) and, for one operation, of Monte Carlo
// arithmetic (Parker, UCLA CSD-970002, 1997).  A result that float32 holds
// (exp(0), log2(8)) stays.
//
// The functions are the accurate paths of corem: their double-double results
// (relative error below 2^-78) say on which side of a float32 number the true
// result lies.  The last step alone, udf_dd_round, is replaced.  So every
// result is one of the two numbers around the true one.
//
// What decides is a hash of the unrounded result and the seed, and no state.
// For one seed, equal arguments have equal results, whichever thread, lane or
// order computes them: each seed is another deterministic library whose
// results are all faithful.  The sign of a result has no say, so odd functions
// stay odd.
//
// Arguments whose result corem's accurate path decides without rounding
// (overflow, underflow to zero, erf(9) = 1) have corem's result.
//
//===----------------------------------------------------------------------===//

#ifndef UDF_STOCHASTIC_H
#define UDF_STOCHASTIC_H

#include "common/corem.h"

// Written between runs, by whoever chose the library: see
// pytest_udftorch/diagnose/sensitivity/seeds.py.  Each source has it, the
// library once.
__attribute__((weak, visibility("default"))) uint32_t udf_stochastic_seed = 0;

// Multiplication and shifts in turn, as in MurmurHash3's finaliser (Appleby);
// the constants are the leading bits of the golden ratio and of the square
// root of 3, made odd.
UDF_INLINE uint32_t udf_stochastic_mix(uint64_t bits) {
  const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
  const uint64_t root = UINT64_C(0xbb67ae8584caa73b);
  uint64_t h = bits ^ (uint64_t)udf_stochastic_seed * golden;
  h = (h ^ (h >> 32)) * root;
  h = (h ^ (h >> 29)) * golden;
  h = (h ^ (h >> 32)) * root;
  return (uint32_t)(h >> 40);
}

// hi + lo to one of the two float32 numbers around it.  hi must be finite and
// not zero.
UDF_INLINE float udf_stochastic_round(udf_dd a) {
  udf_dd s = udf_fast_two_sum(a.hi, a.lo);
  float nearest = udf_dd_round(s);
  // Exact, as a double and a float32 number next to it are multiples of the
  // double's last bit.
  double rest = (s.hi - (double)nearest) + s.lo;
  uint32_t u = udf_f32_bits(nearest) & UINT32_C(0x7fffffff);
  _Bool outwards = (rest > 0) == (s.hi > 0);
  uint32_t other = outwards ? u + 1 : u - 1;
  uint64_t magnitude = udf_f64_bits(s.hi) & ~(UINT64_C(1) << 63);
  _Bool moves = udf_stochastic_mix(magnitude +
                                   3 * udf_f64_bits(s.lo < 0 ? -s.lo : s.lo)) &
                1;
  // Neither to infinity nor from it: corem decides what overflows.
  moves &=
      (rest != 0) & (other < UINT32_C(0x7f800000)) & (u < UINT32_C(0x7f800000));
  u = moves ? other : u;
  return udf_f32_from_bits(u | (s.hi < 0 ? UINT32_C(0x80000000) : 0));
}

#define udf_dd_round udf_stochastic_round

#define UDF_STOCHASTIC(NAME)                                                   \
  static UDF_COLD float udf_stochastic_##NAME(float x) {                       \
    return udf_##NAME##_accurate(x);                                           \
  }

#define UDF_STOCHASTIC_2(NAME)                                                 \
  static UDF_COLD float udf_stochastic_##NAME(float x, float y) {              \
    return udf_##NAME##_accurate(x, y);                                        \
  }

#endif // UDF_STOCHASTIC_H
