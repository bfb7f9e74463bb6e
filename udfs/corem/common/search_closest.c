//===- search_closest.c - Floats nearest to multiples of pi/2 -------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Prints, for sin, cos and tan, the float32 below 2^26 that is nearest to a
// zero or pole of the function other than 0, and its distance. The reduction of
// their fast paths cancels by that much, so that their error analyses quote it:
//
//   cc -O2 search_closest.c -o search_closest -lmpfr -lm && ./search_closest
//
// Each of the floats from 1 to 2^26 is reduced in long double with pi/2 in two
// parts. The product with the first part, which has 32 bits, is exact (the
// quotient has 26), and so is the subtraction; the second adds less than 2^-64.
// The nearest ones are measured again with MPFR. Below 1 the nearest is at
// least 1/2 away from pi/2, or nearer to 0.
//
//===----------------------------------------------------------------------===//

#include <math.h>
#include <mpfr.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PRECISION = 200 };

struct nearest {
  const char *function;
  int first, step; // multiples of pi/2: first, first + step, ...
  long double distance;
  float x;
};

static float from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static double measured(float x) {
  mpfr_t half_pi, k, r;
  mpfr_inits2(PRECISION, half_pi, k, r, (mpfr_ptr)0);
  mpfr_const_pi(half_pi, MPFR_RNDN);
  mpfr_div_2ui(half_pi, half_pi, 1, MPFR_RNDN);
  mpfr_set_flt(r, x, MPFR_RNDN);
  mpfr_div(k, r, half_pi, MPFR_RNDN);
  mpfr_rint(k, k, MPFR_RNDN);
  mpfr_mul(k, k, half_pi, MPFR_RNDN);
  mpfr_sub(r, r, k, MPFR_RNDN);
  double distance = fabs(mpfr_get_d(r, MPFR_RNDN));
  mpfr_clears(half_pi, k, r, (mpfr_ptr)0);
  return distance;
}

int main(void) {
  mpfr_t pi, head;
  mpfr_inits2(PRECISION, pi, head, (mpfr_ptr)0);
  mpfr_const_pi(pi, MPFR_RNDN);
  mpfr_div_2ui(pi, pi, 1, MPFR_RNDN);
  mpfr_set_prec(head, 32);
  mpfr_set(head, pi, MPFR_RNDN);
  long double high = mpfr_get_ld(head, MPFR_RNDN);
  mpfr_sub(pi, pi, head, MPFR_RNDN);
  long double low = mpfr_get_ld(pi, MPFR_RNDN);
  mpfr_clears(pi, head, (mpfr_ptr)0);

  struct nearest all[] = {
      {"sin", 2, 2, 1, 0}, {"cos", 1, 2, 1, 0}, {"tan", 1, 1, 1, 0}};
  for (uint32_t u = 0x3f800000; u < 0x4c800000; ++u) {
    float x = from_bits(u);
    long double k = rintl(x / high);
    long double distance = fabsl((x - k * high) - k * low);
    if (distance > 0x1p-20L)
      continue;
    int multiple = (int)k;
    for (int i = 0; i < 3; ++i)
      if (multiple >= all[i].first &&
          (multiple - all[i].first) % all[i].step == 0 &&
          distance < all[i].distance) {
        all[i].distance = distance;
        all[i].x = x;
      }
  }
  for (int i = 0; i < 3; ++i)
    printf("%s: %a, 2^%.1f away\n", all[i].function, all[i].x,
           log2(measured(all[i].x)));
  return 0;
}
