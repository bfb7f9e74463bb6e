//===- search_hard.c - Hard-to-round inputs of float32 functions ----------===//
// SPDX-License-Identifier: Apache-2.0
//
// Writes the hard.txt of one function:
//
//   cc -O2 search_hard.c -o search_hard -lmpfr -lm
//   ./search_hard exp 2000 > ../exp/hard.txt
//
// All 2^32 encodings go through the double function of libm.  Those whose
// result lies within FILTER_ULP units in the last place of the double from a
// rounding boundary of float32 are evaluated again with MPFR at PRECISION
// bits, and the hardest ones are kept.  libm needs an error below
// FILTER_ULP / 2 only, so that nothing within FILTER_ULP / 2 is missed.  Inputs
// where the class of the result changes (zero, subnormal, normal, infinite,
// NaN), their neighbours and the special encodings are added.
//
//===----------------------------------------------------------------------===//

#include <math.h>
#include <mpfr.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "search.h"

#define FILTER_ULP 8192
#define PRECISION 200

typedef int (*mpfr_function)(mpfr_t, mpfr_srcptr, mpfr_rnd_t);

static const struct {
  const char *name;
  double (*libm)(double);
  mpfr_function mpfr;
} functions[] = {
    {"acos", acos, mpfr_acos},    {"acosh", acosh, mpfr_acosh},
    {"asin", asin, mpfr_asin},    {"asinh", asinh, mpfr_asinh},
    {"atan", atan, mpfr_atan},    {"atanh", atanh, mpfr_atanh},
    {"cos", cos, mpfr_cos},       {"cosh", cosh, mpfr_cosh},
    {"erf", erf, mpfr_erf},       {"erfc", erfc, mpfr_erfc},
    {"exp", exp, mpfr_exp},       {"exp2", exp2, mpfr_exp2},
    {"expm1", expm1, mpfr_expm1}, {"log", log, mpfr_log},
    {"log10", log10, mpfr_log10}, {"log1p", log1p, mpfr_log1p},
    {"log2", log2, mpfr_log2},    {"sin", sin, mpfr_sin},
    {"sinh", sinh, mpfr_sinh},    {"tan", tan, mpfr_tan},
    {"tanh", tanh, mpfr_tanh},
};

struct hard_case {
  uint32_t input;
  double distance_bits; // -log2 of the relative distance to the boundary
};

static int by_distance(const void *a, const void *b) {
  const struct hard_case *p = a, *q = b;
  if (p->distance_bits != q->distance_bits)
    return p->distance_bits < q->distance_bits ? 1 : -1;
  return p->input < q->input ? -1 : p->input > q->input;
}

static int by_input(const void *a, const void *b) {
  uint32_t p = *(const uint32_t *)a, q = *(const uint32_t *)b;
  return p < q ? -1 : p > q;
}

static double evaluate(mpfr_function f, uint32_t input, mpfr_t y, mpfr_t b) {
  mpfr_t x, d;
  mpfr_init2(x, 24);
  mpfr_init2(d, PRECISION);
  mpfr_set_flt(x, from_bits(input), MPFR_RNDN);
  f(y, x, MPFR_RNDN);
  double bits = -1;
  if (mpfr_regular_p(y)) {
    nearest_boundary(b, y);
    mpfr_sub(d, y, b, MPFR_RNDN);
    mpfr_div(d, d, y, MPFR_RNDN);
    mpfr_abs(d, d, MPFR_RNDN);
    // An exact half-way case is no hard case: any exact evaluation decides it.
    if (!mpfr_zero_p(d)) {
      mpfr_log2(d, d, MPFR_RNDN);
      bits = -mpfr_get_d(d, MPFR_RNDN);
    }
  }
  mpfr_clear(x);
  mpfr_clear(d);
  return bits;
}

int main(int argc, char **argv) {
  size_t which = sizeof functions / sizeof functions[0], wanted = 0;
  if (argc == 3) {
    wanted = strtoul(argv[2], NULL, 10);
    for (which = 0; which < sizeof functions / sizeof functions[0]; ++which)
      if (!strcmp(argv[1], functions[which].name))
        break;
  }
  if (!wanted || which == sizeof functions / sizeof functions[0]) {
    fprintf(stderr, "usage: %s FUNCTION COUNT, with FUNCTION one of", argv[0]);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; ++i)
      fprintf(stderr, " %s", functions[i].name);
    fprintf(stderr, "\n");
    return 2;
  }

  size_t capacity = 1 << 16, count = 0, thresholds = 0, n_threshold_room = 4096;
  struct hard_case *cases = malloc(capacity * sizeof *cases);
  uint32_t *keep = malloc((wanted + n_threshold_room) * sizeof *keep);
  if (!cases || !keep)
    abort();
  static const uint32_t special[] = {
      0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x3f7fffff, 0x3f800000,
      0x3f800001, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
  for (size_t i = 0; i < sizeof special / sizeof special[0]; ++i) {
    keep[thresholds++] = special[i];
    keep[thresholds++] = special[i] | UINT32_C(0x80000000);
  }

  mpfr_t y, b;
  mpfr_init2(y, PRECISION);
  mpfr_init2(b, PRECISION);
  int last_class = -1;
  for (uint64_t u = 0; u < UINT64_C(1) << 32; ++u) {
    float x = from_bits((uint32_t)u);
    double r = functions[which].libm(x);
    int class = fpclassify((float)r);
    if (class != last_class && thresholds + 4 < n_threshold_room)
      for (int i = -2; i < 2; ++i)
        keep[thresholds++] = (uint32_t)(u + (uint64_t)(int64_t)i);
    last_class = class;
    // Below 2^-151 everything rounds to zero.
    if (!isfinite(r) || fabs(r) < 0x1p-151 || fabs(r) >= 0x1p128 ||
        boundary_distance(r) > FILTER_ULP)
      continue;
    double bits = evaluate(functions[which].mpfr, (uint32_t)u, y, b);
    if (bits < 0)
      continue;
    if (count == capacity) {
      qsort(cases, count, sizeof *cases, by_distance);
      if (count > wanted)
        count = wanted;
      if (count > capacity / 2) {
        capacity *= 2;
        cases = realloc(cases, capacity * sizeof *cases);
        if (!cases)
          abort();
      }
    }
    cases[count++] = (struct hard_case){(uint32_t)u, bits};
  }
  qsort(cases, count, sizeof *cases, by_distance);
  if (count > wanted)
    count = wanted;

  printf("# Hard-to-round inputs of %s, encodings of float32.\n", argv[1]);
  printf("# Written by common/search_hard.c: search_hard %s %s\n", argv[1],
         argv[2]);
  if (count) {
    evaluate(functions[which].mpfr, cases[0].input, y, b);
    float nearest = mpfr_get_flt(y, MPFR_RNDN), other;
    // The boundary is half-way between the result and the other candidate.
    mpfr_mul_2ui(b, b, 1, MPFR_RNDN);
    mpfr_sub_d(b, b, nearest, MPFR_RNDN);
    other = mpfr_get_flt(b, MPFR_RNDN);
    printf("# Hardest: x = %a (%08x), result %a (%08x), next candidate %a "
           "(%08x),\n# 2^-%.1f relative from the boundary between them.\n",
           from_bits(cases[0].input), cases[0].input, nearest, to_bits(nearest),
           other, to_bits(other), cases[0].distance_bits);
    printf("# The %zu inputs within 2^-%.1f relative of a boundary, then %zu "
           "thresholds and special values.\n",
           count, cases[count - 1].distance_bits, thresholds);
  }
  for (size_t i = 0; i < count; ++i)
    printf("%08x\n", cases[i].input);
  printf("# Thresholds and special values\n");
  qsort(keep, thresholds, sizeof *keep, by_input);
  for (size_t i = 0; i < thresholds; ++i)
    if (i == 0 || keep[i] != keep[i - 1])
      printf("%08x\n", keep[i]);
  mpfr_clear(y);
  mpfr_clear(b);
  free(cases);
  free(keep);
  return 0;
}
