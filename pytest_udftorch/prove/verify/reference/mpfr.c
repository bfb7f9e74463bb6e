//===- mpfr.c - Correctly rounded float32 results by GNU MPFR -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// MPFR rounds once: to 24 bits in float32's exponent range, and a subnormal
// result from the exact value to its fewer bits, by the ternary value (Fousse
// et al., ACM TOMS 33(2), 2007, section 3).
//
//===----------------------------------------------------------------------===//

#include "reference.h"
#include <mpfr.h>
#include <stddef.h>

typedef int (*unary)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);
typedef int (*binary)(mpfr_ptr, mpfr_srcptr, mpfr_srcptr, mpfr_rnd_t);

#define FUNCTION(name) mpfr_##name,
#define NAME(name) #name,

static const unary univariate[] = {UDFREF_UNIVARIATE(FUNCTION)};
static const binary bivariate[] = {UDFREF_BIVARIATE(FUNCTION)};
static const char *const names[] = {
    UDFREF_UNIVARIATE(NAME) UDFREF_COMPOSITES(NAME) UDFREF_BIVARIATE(NAME)};
#define ONE(name) +1
enum { N_PLAIN = sizeof univariate / sizeof *univariate };
enum { N_UNARY = N_PLAIN UDFREF_COMPOSITES(ONE) };
enum { N_ALL = sizeof names / sizeof *names };

const char *udfref_name(int32_t function) {
  return function >= 0 && function < N_ALL ? names[function] : NULL;
}

int32_t udfref_arity(int32_t function) { return function < N_UNARY ? 1 : 2; }

const char *udfref_mpfr_version(void) { return mpfr_get_version(); }

void udfref_mpfr(int32_t function, int64_t n, const float *a, const float *b,
                 float *out) {
  if (function >= N_PLAIN && function < N_UNARY) {
    for (int64_t i = 0; i < n; i++)
      out[i] = udfref_mpfr_composite(function - N_PLAIN, a[i]);
    return;
  }
  mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
  // Significands are 0.1xxx here: the smallest subnormal 2^-149 has exponent
  // -148, the largest number 128.
  mpfr_set_emin(-148);
  mpfr_set_emax(128);
  mpfr_t x, y, r;
  mpfr_inits2(24, x, y, r, (mpfr_ptr)0);
  for (int64_t i = 0; i < n; i++) {
    int ternary;
    mpfr_set_flt(x, a[i], MPFR_RNDN);
    if (function < N_PLAIN) {
      ternary = univariate[function](r, x, MPFR_RNDN);
    } else {
      mpfr_set_flt(y, b[i], MPFR_RNDN);
      ternary = bivariate[function - N_UNARY](r, x, y, MPFR_RNDN);
    }
    mpfr_subnormalize(r, ternary, MPFR_RNDN);
    out[i] = mpfr_get_flt(r, MPFR_RNDN);
  }
  mpfr_clears(x, y, r, (mpfr_ptr)0);
  mpfr_set_emin(emin);
  mpfr_set_emax(emax);
}
