//===- measure_ff.c - Errors of the float-float paths ---------------------===//
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
};

int main(int argc, char **argv) {
  unsigned step = argc > 1 ? (unsigned)atoi(argv[1]) : 7;
  unsigned which = 0;
  while (strcmp(ranges[which].name, NAME(FUNCTION)) != 0)
    if (++which == sizeof ranges / sizeof *ranges)
      return 1;
  double worst = 0;
  float at = 0;
  uint64_t count = 0, hard_count = 0;
  for (uint64_t i = 0; i < UINT64_C(1) << 32; i += step) {
    float x = udf_f32_from_bits((uint32_t)i);
    float measured = ranges[which].both_signs ? fabsf(x) : x;
    if (!(measured >= ranges[which].least &&
          measured <= ranges[which].greatest))
      continue;
    int hard;
    PATH(FUNCTION)(x, &hard);
    count++;
    hard_count += hard != 0;
    // hi + lo lacks a power of two and the sign.
    double exact = FUNCTION((double)x), hi = seen.hi;
    int exact_exponent, exponent;
    double a = frexp(fabs(exact), &exact_exponent);
    double b = frexp(fabs(hi), &exponent);
    int apart = a > 1.5 * b ? -1 : b > 1.5 * a ? 1 : 0;
    double scaled =
        copysign(ldexp(exact, exponent - exact_exponent + apart), hi);
    double error = fabs(((hi - scaled) + seen.lo) / scaled);
    if (exact != 0 && error > worst) {
      worst = error;
      at = x;
    }
  }
  printf("%s: error 2^%.2f at %a; hard: %llu of %llu, 2^%.1f\n", NAME(FUNCTION),
         log2(worst), at, (unsigned long long)hard_count,
         (unsigned long long)count, log2((double)hard_count / count));
}
