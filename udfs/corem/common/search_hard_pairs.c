//===- search_hard_pairs.c - Hard pairs of float32 functions --------------===//
// SPDX-License-Identifier: Apache-2.0
//
// Writes the hard.txt of one function of two arguments:
//
//   cc -O2 search_hard_pairs.c -o search_hard_pairs -lmpfr -lm
//   ./search_hard_pairs hypot 1000000000 1000 > ../hypot/hard.txt
//
// There are too many pairs to try them all, so that the list holds
//
//   hard      the hardest of SAMPLES pairs, drawn where both arguments matter,
//             and of families that are tried as a whole (see hypot_families,
//             atan2_families and pow_families);
//   half-way  results that are exactly half-way between two float32 numbers,
//             constructed, not searched;
//   thresholds where the result overflows or underflows; and special values,
//             each against each.
//
// Pairs are filtered with libm's double function, as in search_hard.c, and
// evaluated again with MPFR.
//
//===----------------------------------------------------------------------===//

#include <math.h>
#include <mpfr.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "search.h"

#define FILTER_ULP 1024
// atan(q) = q - q^3/3 + ... must differ from q down to q = 2^-150.
#define PRECISION 640
// Pairs kept of each kind of half-way results and thresholds.
#define KIND_ROOM 400

typedef int (*mpfr_function)(mpfr_t, mpfr_srcptr, mpfr_srcptr, mpfr_rnd_t);

struct pair {
  float x, y;
};

struct function {
  const char *name;
  double (*libm)(double, double);
  mpfr_function mpfr;
  struct pair (*random)(void);
  void (*families)(void);
  void (*half_way)(void);
  void (*thresholds)(void);
};

struct hard_case {
  struct pair at;
  double distance_bits; // -log2 of the relative distance to the boundary
};

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
static uint64_t random_state;

static uint64_t random_bits(void) {
  uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static uint32_t random_below(uint32_t n) {
  return (uint32_t)((random_bits() >> 32) * n >> 32);
}

static double random_unit(void) {
  return (double)(random_bits() >> 11) * 0x1p-53;
}

static int random_sign(void) { return random_bits() & 1 ? -1 : 1; }

//===----------------------------------------------------------------------===//
// Judging a pair
//===----------------------------------------------------------------------===//

// -log2 of the relative distance to the boundary; -1 if the result is a float32
// number or exactly half-way.
static double evaluate(const struct function *f, struct pair at, mpfr_t result,
                       mpfr_t boundary) {
  mpfr_t x, y, d;
  mpfr_inits2(PRECISION, x, y, d, (mpfr_ptr)0);
  mpfr_set_flt(x, at.x, MPFR_RNDN);
  mpfr_set_flt(y, at.y, MPFR_RNDN);
  f->mpfr(result, x, y, MPFR_RNDN);
  double bits = -1;
  if (mpfr_regular_p(result)) {
    nearest_boundary(boundary, result);
    mpfr_sub(d, result, boundary, MPFR_RNDN);
    mpfr_div(d, d, result, MPFR_RNDN);
    mpfr_abs(d, d, MPFR_RNDN);
    if (!mpfr_zero_p(d)) {
      mpfr_log2(d, d, MPFR_RNDN);
      bits = -mpfr_get_d(d, MPFR_RNDN);
    }
  }
  mpfr_clears(x, y, d, (mpfr_ptr)0);
  return bits;
}

static int by_distance(const void *a, const void *b) {
  const struct hard_case *p = a, *q = b;
  if (p->distance_bits != q->distance_bits)
    return p->distance_bits < q->distance_bits ? 1 : -1;
  return memcmp(&p->at, &q->at, sizeof p->at);
}

static struct {
  const struct function *function;
  struct hard_case *cases;
  size_t count, room, wanted;
  mpfr_t result, boundary;
} found;

// Sorts, drops repetitions and all but the hardest.
static void trim(void) {
  qsort(found.cases, found.count, sizeof *found.cases, by_distance);
  size_t kept = 0;
  for (size_t i = 0; i < found.count && kept < found.wanted; ++i)
    if (!kept || by_distance(&found.cases[kept - 1], &found.cases[i]))
      found.cases[kept++] = found.cases[i];
  found.count = kept;
}

static void consider(float x, float y) {
  double r = found.function->libm(x, y);
  // Below 2^-151 everything rounds to zero.
  if (!isfinite(r) || fabs(r) < 0x1p-151 || fabs(r) >= 0x1p128 ||
      boundary_distance(r) > FILTER_ULP)
    return;
  struct pair at = {x, y};
  double bits = evaluate(found.function, at, found.result, found.boundary);
  if (bits < 0)
    return;
  found.cases[found.count++] = (struct hard_case){at, bits};
  if (found.count == found.room)
    trim();
}

//===----------------------------------------------------------------------===//
// Where hard pairs are looked for
//===----------------------------------------------------------------------===//

static float random_float(int lowest, int highest) {
  int e = lowest + (int)random_below((uint32_t)(highest - lowest + 1));
  return ldexpf((float)(0x800000 + random_below(0x800000)), e - 23);
}

// Both arguments matter: the smaller leg changes the last bits of the larger.
static struct pair random_hypot(void) {
  float x = random_float(-120, 127);
  float y = ldexpf(random_float(0, 0), ilogbf(x) - (int)random_below(14));
  struct pair at = {x * random_sign(), y * random_sign()};
  return at;
}

static struct pair random_atan2(void) {
  float x = random_float(-90, 90);
  float y = ldexpf(random_float(0, 0), ilogbf(x) + 32 - (int)random_below(64));
  struct pair at = {y * (float)random_sign(), x * (float)random_sign()};
  return at;
}

// Powers all over the range of results; a third of the bases near 1.
static struct pair random_pow(void) {
  static const int lowest[] = {-126, -2}, highest[] = {127, 1};
  uint32_t kind = random_below(3);
  float x = kind < 2 ? random_float(lowest[kind], highest[kind])
                     : from_bits(0x3f800000 + random_below(8192) - 4096);
  double target = -151 + 280 * random_unit();
  struct pair at = {x, x == 1 ? 2 : (float)(target / log2(x))};
  return at;
}

// All significands with small exponents in eighths: squares, cubes, roots. Then
// results next to the half-way points w nearest to 1: the y nearest to log(w) /
// log(x) misses by 2^-25 relative at most, and the result by that share of
// log(w).
static void pow_families(void) {
  for (uint32_t n = 0; n < UINT32_C(1) << 28; ++n) {
    double w = (double)(2 * (int)random_below(16) - 15) * 0x1p-24;
    double log_w = log1p(w < 0 ? 0.5 * w : w);
    float x = from_bits(0x00800000 + random_below(0x7f000000));
    double log_x = log(x);
    float y = (float)(log_w / log_x);
    if (fabs(fma(y, log_x, -log_w)) < 0x1p-45 * fabs(log_w))
      consider(x, y);
  }
  for (int n = -36; n <= 36; ++n)
    for (uint32_t u = 0x3f000000; n != 0 && u < 0x40000000; ++u)
      if (n % 4 == 0 || u % 16 == 1)
        consider(from_bits(u), (float)n / 8);
}

// Small quotients next to a half-way point m 2^-i, m odd with 25 bits: if
// y 2^j = m x + k for a small k, then y/x lies k/(m x) above the point,
// relative, and atan(y/x) = (y/x) (1 - (y/x)^2/3 + ...) comes back to it where
// y is scaled so that (y/x)^2/3 is about as much.
static void atan2_families(void) {
  for (uint32_t m = 0x1000001; m < 0x2000000; m += 2) {
    uint32_t inverse = m; // of m modulo 2^32, by Newton's iteration
    for (int i = 0; i < 5; ++i)
      inverse *= 2 - m * inverse;
    for (uint32_t k = 1; k <= 32; ++k)
      for (int j = 24; j <= 25; ++j) {
        uint32_t x = -k * inverse & ((UINT32_C(1) << j) - 1);
        uint64_t product = (uint64_t)m * x + k;
        if (x < 0x800000 || x >= 0x1000000 || product >> j < 0x800000 ||
            product >> j >= 0x1000000)
          continue;
        double excess = k / ((double)m * x);
        double y = (double)(product >> j);
        double q = ldexp(y / x, -(int)rint(log2(y / x / sqrt(3 * excess))));
        if (fabs(excess - q * q / 3) < 0x1p-64)
          consider((float)(q * x), (float)x);
      }
  }
}

// With x in units of its last place, 2^23 <= x < 2^24, and y so that the result
// is near x + k/2: x^2 + y^2 = (x + k/2)^2 + (y^2 - k x - k^2/4). For each y
// the x which makes the bracket smallest is tried.
static void hypot_families(void) {
  for (int k = 1; k < 64; k += 2)
    for (int e = 9; e < 18; ++e)
      for (uint32_t n = 0x800000; n < 0x1000000; ++n) {
        double y = ldexp(n, e - 23);
        double x = (y * y - 0.25 * k * k) / k;
        if (x < 0x1p23 || x >= 0x1p24)
          continue;
        x = rint(x);
        // Exact: y^2 has 48 bits, the others are multiples of 2^-2.
        if (fabs(y * y - k * x - 0.25 * k * k) < 0x1p-16 * k)
          consider((float)x, (float)y);
      }
}

//===----------------------------------------------------------------------===//
// Half-way results, thresholds, special values
//===----------------------------------------------------------------------===//

static struct pair *kept;
static size_t n_kept, kept_room;

static void keep(float x, float y) {
  if (n_kept == kept_room) {
    kept_room = kept_room ? 2 * kept_room : 1024;
    kept = realloc(kept, kept_room * sizeof *kept);
    if (!kept)
      abort();
  }
  kept[n_kept++] = (struct pair){x, y};
}

static int by_encoding(const void *a, const void *b) {
  const struct pair *p = a, *q = b;
  uint32_t px = to_bits(p->x), qx = to_bits(q->x);
  uint32_t py = to_bits(p->y), qy = to_bits(q->y);
  if (px != qx)
    return px < qx ? -1 : 1;
  return py < qy ? -1 : py > qy;
}

static int is_float(double x) { return x == (double)(float)x; }

// Pythagorean triples (p^2 - q^2, 2 p q, p^2 + q^2), multiplied, with a
// hypotenuse of 24 or 25 bits.
static void half_way_hypot(void) {
  for (size_t made = 0; made < 2 * KIND_ROOM;) {
    int p = 2 + (int)random_below(5791), q = 1 + (int)random_below(5791);
    int factor = 1 + (int)random_below(random_bits() & 1 ? 1 : 1000);
    if (q >= p)
      continue;
    double hypotenuse = (double)factor * ((double)p * p + (double)q * q);
    double a = (double)factor * ((double)p * p - (double)q * q);
    double b = 2.0 * factor * p * q;
    if (hypotenuse < 0x1p23 || hypotenuse >= 0x1p25 || !is_float(a) ||
        !is_float(b) || (is_float(hypotenuse) && random_below(16)))
      continue;
    double scale = ldexp(random_sign(), (int)random_below(200) - 120);
    keep((float)(a * scale), (float)(b * scale));
    ++made;
  }
}

// y/x = r 2^-150 with r odd; the arc tangent is the least bit smaller.
static void half_way_atan2(void) {
  for (int n = 0; n < KIND_ROOM; ++n) {
    uint32_t r = random_below(UINT32_C(1) << (1 + random_below(23))) | 1;
    uint32_t factor = 1 + random_below((1 << 24) / r);
    int scale = 1 + (int)random_below(100);
    if ((uint64_t)r * factor >= 1 << 24)
      continue;
    keep(ldexpf((float)(r * factor), scale - 150) * (float)random_sign(),
         ldexpf((float)factor, scale));
  }
}

// Powers w^n of w odd, with y = n, n/2, n/4, n/8 and so x = w^2, w^4, w^8: all
// those of 25 bits, and those which end at 2^-150, half the smallest number.
static void half_way_pow(void) {
  for (int root = 0; root < 4; ++root)
    for (uint32_t w = 1; pow(w, 1 << root) < 0x1p24; w += 2)
      for (int n = 1; n <= 150; ++n) {
        double x = pow(w, 1 << root), power = pow(w, n);
        if (power >= 0x1p25 || (root && n % 2 == 0))
          continue;
        float y = ldexpf((float)n, -root);
        if (power >= 0x1p24)
          for (int i = 0; i < 2; ++i) {
            int e = (int)random_below(9) - 4;
            keep(ldexpf((float)x, e * (1 << root)) *
                     (float)(root ? 1 : random_sign()),
                 y);
          }
        if (150 % n == 0 && power < 0x1p23) {
          int e = -150 / n * (1 << root);
          if (e >= -149 && (w < 64 || random_below(1024) == 0))
            keep(ldexpf((float)x, e), y);
        }
        if (n > 1 && power < 0x1p24 && random_below(64) == 0)
          keep((float)x, y);
      }
  // Powers of two: exact, and half-way below the smallest number.
  for (int n = 0; n < KIND_ROOM; ++n) {
    int e = 1 + (int)random_below(127), k = (int)random_below(281) - 152;
    float y = (float)k / (float)e;
    if (y * (float)e == (float)k && (float)(k / (double)e) == y)
      keep(ldexpf(1, random_bits() & 1 ? e : -e), y);
  }
  keep(0x1p-75f, 2);
  keep(0x1p75f, -2);
  keep(-0x1p-50f, 3);
  keep(2, -150);
  keep(2, -149);
}

static void threshold_pow(void) {
  static const double at[] = {128, -126, -149, -150};
  for (size_t i = 0; i < sizeof at / sizeof at[0]; ++i)
    for (int n = 0; n < KIND_ROOM / 8; ++n) {
      float x = random_pow().x;
      float y = (float)(at[i] / log2(x));
      for (int k = -2; k <= 2; ++k)
        keep(x, from_bits(to_bits(y) + (uint32_t)k));
    }
  // The results next to 1.
  for (int n = 0; n < KIND_ROOM / 4; ++n) {
    float x = random_pow().x;
    float y =
        (float)(ldexp(random_sign(), -25 + (int)random_below(3)) / log(x));
    for (int k = -2; k <= 2; ++k)
      keep(x, from_bits(to_bits(y) + (uint32_t)k));
  }
}

static void threshold_atan2(void) {
  static const double at[] = {0x1p-150, 0x1p-149, 0x1p-126, 0x1p-25,
                              0x1p-24,  1,        0x1p24,   0x1p25};
  for (size_t i = 0; i < sizeof at / sizeof at[0]; ++i)
    for (int n = 0; n < KIND_ROOM / 8; ++n) {
      float x = random_float(-1, 90);
      float y = (float)(at[i] * x);
      x *= (float)random_sign();
      for (int k = -2; k <= 2; ++k)
        keep(from_bits(to_bits(y) + (uint32_t)k), x);
    }
}

static void threshold_hypot(void) {
  static const double at[] = {0x1.ffffffp127, 0x1p-126, 0x1.8p-149, 0x1p127};
  for (size_t i = 0; i < sizeof at / sizeof at[0]; ++i)
    for (int n = 0; n < KIND_ROOM / 8; ++n) {
      // From legs of equal size to legs of which one hardly counts.
      double sine = exp2(-0.5 - 12.5 * random_unit());
      float y = (float)(at[i] * sine),
            x = (float)(at[i] * sqrt(1 - sine * sine));
      for (int k = -2; k <= 2; ++k)
        keep(x, from_bits(to_bits(y) + (uint32_t)k));
    }
  keep(0x1.fffffep127f, 0x1p116f);
  for (int k = 0; k < 6; ++k)
    keep(0x1.fffffep127f, from_bits(to_bits(0x1.6a0ap115f) + (uint32_t)k));
}

static void specials(void) {
  static const float values[] = {0,
                                 0x1p-149f,
                                 0x1.fffffcp-127f,
                                 0x1p-126f,
                                 0x1p-75f,
                                 0x1p-25f,
                                 0.5f,
                                 0x1.fffffep-1f,
                                 1,
                                 0x1.000002p0f,
                                 1.5f,
                                 2,
                                 3,
                                 0x1.fffffep23f,
                                 0x1p24f,
                                 0x1p64f,
                                 0x1.fffffep127f,
                                 INFINITY,
                                 NAN};
  enum { VALUES = sizeof values / sizeof values[0] };
  for (int i = 0; i < 2 * VALUES; ++i)
    for (int k = 0; k < 2 * VALUES; ++k)
      keep(i & 1 ? -values[i / 2] : values[i / 2],
           k & 1 ? -values[k / 2] : values[k / 2]);
}

static void print_kept(const char *title) {
  printf("# %s\n", title);
  qsort(kept, n_kept, sizeof *kept, by_encoding);
  for (size_t i = 0; i < n_kept; ++i)
    if (i == 0 || by_encoding(&kept[i - 1], &kept[i]))
      printf("%08x %08x\n", to_bits(kept[i].x), to_bits(kept[i].y));
  n_kept = 0;
}

static const struct function functions[] = {
    {"atan2", atan2, mpfr_atan2, random_atan2, atan2_families, half_way_atan2,
     threshold_atan2},
    {"hypot", hypot, mpfr_hypot, random_hypot, hypot_families, half_way_hypot,
     threshold_hypot},
    {"pow", pow, mpfr_pow, random_pow, pow_families, half_way_pow,
     threshold_pow},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

int main(int argc, char **argv) {
  int which = FUNCTIONS;
  uint64_t samples = 0;
  if (argc == 4) {
    samples = strtoull(argv[2], NULL, 10);
    found.wanted = strtoul(argv[3], NULL, 10);
    for (which = 0; which < FUNCTIONS; ++which)
      if (!strcmp(argv[1], functions[which].name))
        break;
  }
  if (!found.wanted || which == FUNCTIONS) {
    fprintf(stderr, "usage: %s FUNCTION SAMPLES COUNT, with FUNCTION one of",
            argv[0]);
    for (int i = 0; i < FUNCTIONS; ++i)
      fprintf(stderr, " %s", functions[i].name);
    fprintf(stderr, "\n");
    return 2;
  }
  found.function = &functions[which];
  found.room = 2 * found.wanted + 1024;
  found.cases = malloc(found.room * sizeof *found.cases);
  if (!found.cases)
    abort();
  mpfr_inits2(PRECISION, found.result, found.boundary, (mpfr_ptr)0);

  found.function->families();
  for (uint64_t i = 0; i < samples; ++i) {
    struct pair at = found.function->random();
    consider(at.x, at.y);
  }
  trim();

  printf("# Hard-to-round pairs of %s, encodings of float32.\n", argv[1]);
  printf(
      "# Written by common/search_hard_pairs.c: search_hard_pairs %s %s %s\n",
      argv[1], argv[2], argv[3]);
  if (found.count) {
    struct hard_case *c = found.cases;
    evaluate(found.function, c->at, found.result, found.boundary);
    float nearest = mpfr_get_flt(found.result, MPFR_RNDN), other;
    // The boundary is half-way between the result and the other candidate.
    mpfr_mul_2ui(found.boundary, found.boundary, 1, MPFR_RNDN);
    mpfr_sub_d(found.boundary, found.boundary, nearest, MPFR_RNDN);
    other = mpfr_get_flt(found.boundary, MPFR_RNDN);
    printf(
        "# Hardest: %a, %a (%08x, %08x), result %a (%08x),\n# next candidate "
        "%a (%08x), 2^-%.1f relative from the boundary between them.\n",
        c->at.x, c->at.y, to_bits(c->at.x), to_bits(c->at.y), nearest,
        to_bits(nearest), other, to_bits(other), c->distance_bits);
    printf("# The %zu pairs found nearest to a boundary, down to 2^-%.1f.\n",
           found.count, found.cases[found.count - 1].distance_bits);
  }
  for (size_t i = 0; i < found.count; ++i)
    printf("%08x %08x\n", to_bits(found.cases[i].at.x),
           to_bits(found.cases[i].at.y));
  found.function->half_way();
  print_kept("Half-way and exact results");
  found.function->thresholds();
  print_kept("Thresholds");
  specials();
  print_kept("Special values");
  mpfr_clears(found.result, found.boundary, (mpfr_ptr)0);
  free(found.cases);
  free(kept);
  return 0;
}
