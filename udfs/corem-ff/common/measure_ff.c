//===- measure_ff.c - Errors of the float-float paths ---------------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Prints, for one function over every STEP-th float in the range that its
// float-float path answers, the largest relative error of hi + lo against the C
// library's double function, and how many inputs the rounding test leaves to
// corem. The headers quote it with STEP = 7. From the folder of the library:
//
//   clang -O2 -march=x86-64-v3 -ffp-contract=off -fno-math-errno -DFUNCTION=exp
//     -DSOURCE='"../exp/expf.c"' common/measure_ff.c -o measure_ff -lm
//   ./measure_ff 7
//
// Functions of two arguments want -DPAIRS, and are run on 2^32 / STEP random
// pairs of positive numbers.
//
//===----------------------------------------------------------------------===//

#define NAME_(f) #f
#define NAME(f) NAME_(f)
#include "ff.h"
// What a function hands over to be rounded.
static udf_ff seen;
#define udf_ff_round(a, error, hard)                                           \
  (seen = (a), udf_ff_round(seen, error, hard))
#include SOURCE

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_(f) udf_##f##f_ff
#define PATH(f) PATH_(f)

// Magnitudes; where both signs do not serve, the range of the values.
static const struct {
  const char *name;
  float least, greatest;
  int both_signs;
} ranges[] = {
    {"exp", -0x1.5d589ep+6f, 0x1.62e42ep+6f, 0},
    {"exp2", -126, 0x1.fffffep+6f, 0},
    {"expm1", 0x1p-26f, 20, 1},
    {"tanh", 0x1p-13f, 10, 1},
    {"sinh", 0x1p-12f, 88, 1},
    {"cosh", 0, 88, 1},
    {"log", 0x1p-126f, 0x1.fffffep127f, 0},
    {"log2", 0x1p-126f, 0x1.fffffep127f, 0},
    {"log10", 0x1p-126f, 0x1.fffffep127f, 0},
    {"log1p", 0x1p-26f, 0x1.fffffep-1f, 1},
    {"sin", 0x1p-12f, 0x1.fffffep+12f, 1},
    {"cos", 0, 0x1.fffffep+12f, 1},
    {"tan", 0x1p-13f, 0x1.fffffep+12f, 1},
    {"erf", 0x1p-60f, 0x1.f8p+1f, 1},
    {"atan", 0x1p-12f, 0x1p30f, 1},
    {"asin", 0x1p-12f, 1, 1},
    {"acos", 0, 0x1.fffffep-1f, 1},
    {"asinh", 0x1p-12f, 0x1.fffffep127f, 1},
    {"acosh", 1, 0x1.fffffep127f, 0},
    {"atanh", 0x1p-12f, 0x1.fffffep-1f, 1},
    {"erfc", -0x1.f8p+1f, 0x1.2639bep+3f, 0},
};

// Functions of two arguments, -DPAIRS: the range of log2 of the first one, and
// of the second one. For pow the latter is that of the result.
static const struct {
  const char *name;
  double first[2], second[2];
} pair_ranges[] = {
    {"hypot", {-126, 127}, {-20, 20}},
    {"atan2", {-80, 80}, {-40, 40}},
    {"pow", {-126, 128}, {-126, 128}},
};

static struct {
  double error;
  float at[2];
  uint64_t count, hard;
} seen_all;

// hi + lo may lack a power of two and the sign.
static void compare(double exact, int hard, float x, float y) {
  double hi = seen.hi;
  int exact_exponent, exponent;
  double a = frexp(fabs(exact), &exact_exponent);
  double b = frexp(fabs(hi), &exponent);
  int apart = a > 1.5 * b ? -1 : b > 1.5 * a ? 1 : 0;
  double scaled = copysign(ldexp(exact, exponent - exact_exponent + apart), hi);
  double error = fabs(((hi - scaled) + seen.lo) / scaled);
  seen_all.count++;
  seen_all.hard += hard != 0;
  if (exact != 0 && error > seen_all.error) {
    seen_all.error = error;
    seen_all.at[0] = x;
    seen_all.at[1] = y;
  }
}

#ifdef PAIRS

static double uniform(uint64_t *state, const double range[2]) {
  *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
  return range[0] + (double)(*state >> 11) * 0x1p-53 * (range[1] - range[0]);
}

static int run(unsigned step) {
  unsigned which = 0;
  while (strcmp(pair_ranges[which].name, NAME(FUNCTION)) != 0)
    if (++which == sizeof pair_ranges / sizeof *pair_ranges)
      return 1;
  uint64_t state = step;
  for (uint64_t i = 0; i < UINT64_C(1) << 32; i += step) {
    float x = (float)exp2(uniform(&state, pair_ranges[which].first));
    double second = uniform(&state, pair_ranges[which].second);
    int is_pow = strcmp(NAME(FUNCTION), "pow") == 0;
    float y = (float)(is_pow ? second / log2(x) : exp2(second) * x);
    int hard;
    PATH(FUNCTION)(x, y, &hard);
    compare(FUNCTION((double)x, (double)y), hard, x, y);
  }
  return 0;
}

#else

static int run(unsigned step) {
  unsigned which = 0;
  while (strcmp(ranges[which].name, NAME(FUNCTION)) != 0)
    if (++which == sizeof ranges / sizeof *ranges)
      return 1;
  for (uint64_t i = 0; i < UINT64_C(1) << 32; i += step) {
    float x = udf_f32_from_bits((uint32_t)i);
    float measured = ranges[which].both_signs ? fabsf(x) : x;
    if (!(measured >= ranges[which].least &&
          measured <= ranges[which].greatest))
      continue;
    int hard;
    PATH(FUNCTION)(x, &hard);
    compare(FUNCTION((double)x), hard, x, 0);
  }
  return 0;
}

#endif

int main(int argc, char **argv) {
  if (run(argc > 1 ? (unsigned)atoi(argv[1]) : 7))
    return 1;
  printf("%s: error 2^%.2f at %a", NAME(FUNCTION), log2(seen_all.error),
         seen_all.at[0]);
#ifdef PAIRS
  printf(", %a", seen_all.at[1]);
#endif
  printf("; hard: %llu of %llu, 2^%.1f\n", (unsigned long long)seen_all.hard,
         (unsigned long long)seen_all.count,
         log2((double)seen_all.hard / (double)seen_all.count));
}
