//===- search.h - What the searches for hard inputs share -----------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Encodings, and how near a result is to a boundary of rounding. Included by
// search_hard.c and search_hard_pairs.c.
//
//===----------------------------------------------------------------------===//

#ifndef COREM_SEARCH_H
#define COREM_SEARCH_H

#include <math.h>
#include <mpfr.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t to_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

static inline float from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

// Distance of y to the nearest rounding boundary of float32, in units in the
// last place of the double (of the double in [2^-126, 2^-125) for results that
// are subnormal in float32).
static inline uint64_t boundary_distance(double y) {
  uint64_t u;
  y = fabs(y);
  // Same spacing of float32, and a normal number.
  if (y < 0x1p-126)
    y += 0x1p-126;
  memcpy(&u, &y, sizeof u);
  int64_t d = (int64_t)(u & 0x1fffffff) - 0x10000000;
  return (uint64_t)(d < 0 ? -d : d);
}

// The float32 boundary nearest to y (half-way between two neighbours), exact.
static inline void nearest_boundary(mpfr_t boundary, mpfr_srcptr y) {
  mpfr_exp_t e = mpfr_get_exp(y); // |y| in [2^(e-1), 2^e)
  long ulp = e - 24 < -149 ? -149 : (long)(e - 24);
  mpfr_mul_2si(boundary, y, -ulp, MPFR_RNDN);
  mpfr_floor(boundary, boundary);
  mpfr_mul_2si(boundary, boundary, 1, MPFR_RNDN);
  mpfr_add_ui(boundary, boundary, 1, MPFR_RNDN);
  mpfr_mul_2si(boundary, boundary, ulp - 1, MPFR_RNDN);
}

#endif
