/* SPDX-License-Identifier: Apache-2.0 */
//===- sampled.c - Draw float64 arguments, and judge a function's results -===//
//
// Argument number n of a stream is a function of the seed and n alone, so that
// a chunk can be run anywhere, at any time.
//
// The C library's long double function is the first reference. Its error is
// below an ULP of 64 bits, says glibc's manual; 2^-60 of the result is allowed
// here. If both ends of that interval round to the same double, that is the
// correct result. Whatever is left undecided, and whatever differs, goes to
// MPFR, which rounds once. Without a long double of 64 bits or more, all goes
// there.
//
//===----------------------------------------------------------------------===//

#include <float.h>
#include <math.h>
#include <mpfr.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { BLOCK = 2048 };

typedef void (*array_function)(int64_t, const double *, double *, int64_t);
typedef int (*exact_function)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);
typedef long double (*wide_function)(long double);
typedef void (*array_of_two)(int64_t, const double *, const double *, double *,
                             int64_t);

static double from_bits(uint64_t u) {
  double x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static uint64_t to_bits(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

// Stafford's mixer 13, as in SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
static uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static double between(double low, double high, uint64_t u) {
  return low + (high - low) * ((double)(u >> 11) * 0x1p-53);
}

// A few units in the last place beside x.
static double beside(double x, uint64_t u) {
  return from_bits(to_bits(x) + (u & 63) - 32);
}

// A significand and a sign at random, an exponent of a range.
static double scaled(int low, int high, uint64_t u, uint64_t v) {
  double x = ldexp(1 + (double)(u >> 12) * 0x1p-52,
                   low + (int)(v % (uint64_t)(high - low)));
  return v >> 63 ? -x : x;
}

static double draw_exp(uint64_t kind, uint64_t u, uint64_t v) {
  if (kind < 4)
    return between(-745.2, 709.8, u);
  if (kind < 6)
    return scaled(-64, 10, u, v);
  // The ends of the steps of a table of 16.
  return beside((double)((int64_t)(u % 68000) - 35000) * 0x1.62e42fefa39efp-6,
                v);
}

static double draw_exp2(uint64_t kind, uint64_t u, uint64_t v) {
  if (kind < 4)
    return between(-1075, 1024, u);
  if (kind < 6)
    return scaled(-64, 10, u, v);
  return beside((double)((int64_t)(u % 67168) - 34400) / 32, v);
}

static double draw_log(uint64_t kind, uint64_t u, uint64_t v) {
  if (kind < 4)
    return from_bits(u % (UINT64_C(0x7ff) << 52));
  if (kind < 6)
    return 1 + scaled(-53, 0, u, v);
  // The ends of the steps of a table of 32.
  return beside(ldexp((double)(32 + u % 33) / 64, (int)(u >> 32) % 1000), v);
}

static double draw_angle(uint64_t kind, uint64_t u, uint64_t v) {
  if (kind < 3)
    return between(-7, 7, u);
  if (kind < 4)
    return scaled(0, 24, u, v);
  if (kind < 6)
    return scaled(-40, 1024, u, v);
  // The ends and the middles of the steps of a table of 32.
  return beside((double)((int64_t)(u % 65536) - 32768) * 0x1.921fb54442d18p-4,
                v);
}

static double draw_tanh(uint64_t kind, uint64_t u, uint64_t v) {
  if (kind < 4)
    return between(-20, 20, u);
  if (kind < 6)
    return scaled(-30, 6, u, v);
  // The ends and the middles of the steps of exp's table.
  return beside((double)((int64_t)(u % 4096) - 2048) * 0x1.62e42fefa39efp-7, v);
}

static double draw_log1p(uint64_t kind, uint64_t u, uint64_t v) {
  if (kind < 2)
    return between(-1, 10, u);
  if (kind < 4)
    return from_bits(u % (UINT64_C(0x7ff) << 52));
  if (kind < 6)
    return scaled(-56, 0, u, v);
  // The ends of the steps of log's table, less 1.
  return beside(ldexp((double)(32 + u % 33) / 64, (int)(u >> 32) % 60) - 1, v);
}

static double draw_base(uint64_t kind, uint64_t u, uint64_t v) {
  if (kind < 3)
    return between(0, 10, u);
  if (kind < 4)
    return from_bits(u % (UINT64_C(0x7ff) << 52));
  if (kind < 6)
    return 1 + scaled(-53, 0, u, v);
  // The ends of the steps of log's table, and small whole numbers.
  return v & 1 ? (double)(u % 4096)
               : beside(ldexp((double)(32 + u % 33) / 64, (int)(u >> 32) % 8),
                        v >> 1);
}

static double draw_exponent(uint64_t kind, double x, uint64_t w) {
  if (kind < 3)
    return between(-30, 30, w);
  if (kind < 6) // results of all sizes
    return between(-746, 710, w) / log(x);
  return kind == 7 ? from_bits(w) : (double)((int64_t)(w % 81) - 40) / 2;
}

// Without wide and exact: pow, of two arguments.
typedef struct {
  const char *name;
  double (*draw)(uint64_t, uint64_t, uint64_t);
  wide_function wide;
  exact_function exact;
} function;

static const function functions[] = {
    {"exp", draw_exp, expl, mpfr_exp},
    {"log", draw_log, logl, mpfr_log},
    {"sin", draw_angle, sinl, mpfr_sin},
    {"cos", draw_angle, cosl, mpfr_cos},
    {"exp2", draw_exp2, exp2l, mpfr_exp2},
    {"log2", draw_log, log2l, mpfr_log2},
    {"tanh", draw_tanh, tanhl, mpfr_tanh},
    {"pow", draw_base, 0, 0},
    {"log1p", draw_log1p, log1pl, mpfr_log1p},
};

EXPORT int find(const char *name) {
  for (int i = 0; i < (int)(sizeof functions / sizeof *functions); ++i)
    if (!strcmp(functions[i].name, name))
      return i;
  return -1;
}

typedef struct {
  double x, y; // y is pow's second one
} argument;

static argument drawn(const function *f, uint64_t seed, uint64_t n) {
  uint64_t u = mix(mix(seed) + n * UINT64_C(0x9e3779b97f4a7c15));
  uint64_t v = mix(u ^ UINT64_C(0xd1b54a32d192ed03));
  uint64_t kind = n & 7;
  argument of = {kind == 7 ? from_bits(u) : f->draw(kind, u, v), 0};
  if (!f->exact)
    of.y = draw_exponent(kind, of.x, mix(v ^ UINT64_C(0x8bb84b93962eacc9)));
  return of;
}

static int same(double a, double b) {
  return to_bits(a) == to_bits(b) || (a != a && b != b);
}

// MPFR's exponents lie one above the usual ones: 0.1xxx.
static double rounded(exact_function exact, argument of) {
  mpfr_t x, y;
  mpfr_inits2(53, x, y, (mpfr_ptr)0);
  mpfr_set_d(x, of.x, MPFR_RNDN);
  mpfr_set_d(y, of.y, MPFR_RNDN);
  mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
  mpfr_set_emin(-1073);
  mpfr_set_emax(1024);
  int ternary = exact ? exact(y, x, MPFR_RNDN) : mpfr_pow(y, x, y, MPFR_RNDN);
  mpfr_subnormalize(y, ternary, MPFR_RNDN);
  mpfr_set_emin(emin);
  mpfr_set_emax(emax);
  double result = mpfr_get_d(y, MPFR_RNDN);
  mpfr_clears(x, y, (mpfr_ptr)0);
  return result;
}

// Whether the first reference decides the result, which is then *y.
static int decided(wide_function wide, argument of, double *y) {
#if LDBL_MANT_DIG >= 64
  long double value = wide ? wide(of.x) : powl(of.x, of.y);
  long double error = fabsl(value) * 0x1p-60L;
  double low = (double)(value - error), high = (double)(value + error);
  *y = low;
  return to_bits(low) == to_bits(high) && low == low;
#else
  return 0;
#endif
}

typedef struct {
  uint64_t size;
  double x[BLOCK], second[BLOCK], y[BLOCK];
} block;

static void fill(block *b, const function *f, void *call, uint64_t seed,
                 uint64_t first, uint64_t left) {
  b->size = left < BLOCK ? left : BLOCK;
  for (uint64_t i = 0; i < b->size; ++i) {
    argument of = drawn(f, seed, first + i);
    b->x[i] = of.x;
    b->second[i] = of.y;
  }
  if (f->exact)
    ((array_function)call)((int64_t)b->size, b->x, b->y, 0);
  else
    ((array_of_two)call)((int64_t)b->size, b->x, b->second, b->y, 0);
}

// The sum of a block's results' encodings that arguments are mixed into, any
// NaN as one.
static uint64_t digest_of(const block *b, const function *f) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < b->size; ++i) {
    double y = b->y[i];
    uint64_t encoding = y == y ? to_bits(y) : UINT64_C(0x7ff8000000000000);
    uint64_t place = mix(to_bits(b->x[i]));
    if (!f->exact)
      place = mix(place + to_bits(b->second[i]));
    sum += mix(encoding + place);
  }
  return sum;
}

// found: wrong results, results that went to MPFR, the digest, and the first
// wrong argument.
EXPORT void judge(void *call, int which, uint64_t seed, uint64_t first,
                  uint64_t count, uint64_t *found) {
  const function *f = &functions[which];
  block b;
  memset(found, 0, 4 * sizeof *found);
  for (uint64_t start = 0; start < count; start += BLOCK) {
    fill(&b, f, call, seed, first + start, count - start);
    for (uint64_t i = 0; i < b.size; ++i) {
      argument of = {b.x[i], b.second[i]};
      double wanted;
      if (!decided(f->wide, of, &wanted) || !same(wanted, b.y[i])) {
        wanted = rounded(f->exact, of);
        ++found[1];
        if (!same(wanted, b.y[i]) && !found[0]++)
          found[3] = to_bits(b.x[i]);
      }
    }
    found[2] += digest_of(&b, f);
  }
  mpfr_free_cache();
}

// The digest alone.
EXPORT uint64_t digest(void *call, int which, uint64_t seed, uint64_t first,
                       uint64_t count) {
  const function *f = &functions[which];
  block b;
  uint64_t sum = 0;
  for (uint64_t start = 0; start < count; start += BLOCK) {
    fill(&b, f, call, seed, first + start, count - start);
    sum += digest_of(&b, f);
  }
  return sum;
}

// How often the first reference decides, and how often MPFR contradicts it.
EXPORT void examine(int which, uint64_t seed, uint64_t first, uint64_t count,
                    uint64_t *found) {
  const function *f = &functions[which];
  found[0] = found[1] = 0;
  for (uint64_t i = 0; i < count; ++i) {
    argument of = drawn(f, seed, first + i);
    double y;
    if (!decided(f->wide, of, &y))
      continue;
    ++found[0];
    found[1] += !same(y, rounded(f->exact, of));
  }
}
