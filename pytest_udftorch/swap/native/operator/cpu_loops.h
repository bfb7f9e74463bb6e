//===- cpu_loops.h - Loops of overridden CPU operators --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// pytest_udftorch/swap/cpu/loops.py writes a C file behind this header: one
// body for each formula of pytest_udftorch/swap/operators/formulas.py. A body
// computes the arguments of a function for some hundred elements, calls the
// array form of the session's function on them, and goes on with the results.
// So the functions are the library's own machine code, whichever library it is.
//
// Threads are those of torch: a call goes through the slot of libtorch_cpu.so
// for GOMP_parallel, where a profile looks on.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CPU_LOOPS_H
#define UDFTORCH_CPU_LOOPS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

// Iterations are independent, although the result may lie over an argument.
#define EACH                                                                   \
  _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0; i < n; ++i)

// Elements of one piece: its arrays stay in the first-level cache. They are
// aligned to cache lines, or each access of a wide register would cross one.
enum { PIECE = 1024 };

enum dtype { F32, BF16, F16 };

/// The array form of a function of one argument.
typedef void array1(int64_t n, const float *x, float *y, int64_t mode);
/// The array form of a function of two.
typedef void array2(int64_t n, const float *x, const float *z, float *y,
                    int64_t mode);

typedef void body(int64_t n, const float *x, const float *z, float *y, float a,
                  float b, float c, array1 *const *f);

/// Torch's threads, and who counts what they do.
struct threads {
  void (*const *parallel)(void (*)(void *), void *, unsigned, unsigned);
  int64_t count;
  const char *name; ///< of the operator
  /// udfprof_within of native/c/udfprof.h, or null outside of profiles.
  void (*within)(const char *name, void (*)(void *), void *);
};

/// Runs a kernel: in the context of its operator if a profile counts.
static void run_kernel(const struct threads *t, void (*kernel)(void *),
                       void *data) {
  if (t->within)
    t->within(t->name, kernel, data);
  else
    kernel(data);
}

/// Runs Part(Data) in up to Wanted threads. There may be fewer: a limit of
/// OpenMP's, or a call from within one of its regions. So a part goes on with
/// the shares that nobody has taken, until there are none.
static void in_parallel(const struct threads *t, int64_t wanted,
                        void (*part)(void *), void *data) {
  (*t->parallel)(part, data, (unsigned)wanted, 0);
}

// A positive normal number is its mantissa times 2^exponent. The mantissa is
// between the roots of 1/2 and 2: what is added to the bits makes the root of 2
// carry into the exponent.

static uint64_t shifted(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
}

/// The exponent as a double: in the bits of 2^52 first, since AVX2 converts no
/// 64-bit integers.
__attribute__((unused)) static double exponent(double x) {
  uint64_t bits = shifted(x) >> 52 | 0x4330000000000000;
  double biased;
  memcpy(&biased, &bits, sizeof biased);
  return biased - (0x1p52 + 1023);
}

__attribute__((unused)) static double mantissa(double x) {
  uint64_t bits = (shifted(x) & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd;
  double part;
  memcpy(&part, &bits, sizeof part);
  return part;
}

__attribute__((unused)) static double single(double x) {
  return (double)(float)x;
}

static void widen(int64_t n, const void *from, int64_t at, enum dtype dtype,
                  float *to) {
  const uint16_t *bits = (const uint16_t *)from + at;
  if (dtype == BF16) {
    uint32_t *out = (uint32_t *)to;
    EACH out[i] = (uint32_t)bits[i] << 16;
  } else {
    const _Float16 *half = (const _Float16 *)bits;
    EACH to[i] = (float)half[i];
  }
}

static void narrow(int64_t n, const float *from, enum dtype dtype, void *to,
                   int64_t at) {
  uint16_t *bits = (uint16_t *)to + at;
  if (dtype == BF16) {
    const uint32_t *in = (const uint32_t *)from;
    EACH {
      uint32_t u = in[i];
      uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
      bits[i] = (u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)rounded;
    }
  } else {
    _Float16 *half = (_Float16 *)bits;
    EACH half[i] = (_Float16)from[i];
  }
}

/// Inputs of a function in 16 bits whose result, computed in float32, is half
/// way between two numbers, and the wrong one by rounding to even.
struct amended {
  int64_t count;
  const uint16_t *at, *result; ///< at is sorted
};

/// Whether a float32 may be half way between two numbers of 16 bits.
static int may_be_midway(uint32_t y, enum dtype dtype) {
  if (dtype == BF16)
    return (y & 0xffff) == 0x8000;
  // Half is subnormal below 2^-14.
  return (y & 0x1fff) == 0x1000 ||
         ((y & 0x7fffffff) < 0x38800000 && (y & 0xfff) == 0);
}

static void amend(int64_t n, const uint16_t *x, const float *y,
                  enum dtype dtype, const struct amended *a, uint16_t *out) {
  const uint32_t *bits = (const uint32_t *)y;
  int any = 0;
  EACH any |= may_be_midway(bits[i], dtype);
  if (!any)
    return;
  for (int64_t i = 0; i < n; ++i) {
    if (!may_be_midway(bits[i], dtype))
      continue;
    int64_t low = 0, high = a->count;
    while (low < high) {
      int64_t middle = (low + high) / 2;
      if (a->at[middle] < x[i])
        low = middle + 1;
      else
        high = middle;
    }
    if (low < a->count && a->at[low] == x[i])
      out[i] = a->result[low];
  }
}

/// Elements that threads take a share of at a time.
struct shares {
  int64_t n, share, next;
};

/// Takes a share; returns whether there was one.
static int take(struct shares *s, int64_t *begin, int64_t *end) {
  *begin = __atomic_fetch_add(&s->next, s->share, __ATOMIC_RELAXED);
  *end = *begin + s->share < s->n ? *begin + s->share : s->n;
  return *begin < s->n;
}

/// Runs Part(Data), whose shares these are: in several threads if there is
/// work for more than one. Shares are whole pieces.
static void share_elements(const struct threads *t, struct shares *s, int64_t n,
                           int64_t grain, void (*part)(void *), void *data) {
  int64_t wanted = (n + grain - 1) / grain;
  if (wanted > t->count)
    wanted = t->count;
  *s = (struct shares){n, n, 0};
  if (wanted < 2) {
    part(data);
    return;
  }
  s->share = (n + wanted * PIECE - 1) / (wanted * PIECE) * PIECE;
  in_parallel(t, wanted, part, data);
}

struct pointwise {
  body *run;
  const void *x, *z;
  void *y;
  int64_t n;
  enum dtype dtype;
  float a, b, c;
  array1 *const *f;
  const struct threads *t;
  const struct amended *amended; ///< or null; only for functions of one tensor
  struct shares shares;
};

static void pointwise_share(const struct pointwise *p, int64_t at,
                            int64_t end) {
  _Alignas(64) float x[PIECE], z[PIECE];
  for (; at < end; at += PIECE) {
    int64_t n = end - at < PIECE ? end - at : PIECE;
    if (p->dtype == F32) {
      const float *second = p->z ? (const float *)p->z + at : NULL;
      p->run(n, (const float *)p->x + at, second, (float *)p->y + at, p->a,
             p->b, p->c, p->f);
      continue;
    }
    widen(n, p->x, at, p->dtype, x);
    if (p->z)
      widen(n, p->z, at, p->dtype, z);
    uint16_t given[PIECE]; // the result may lie over the argument
    if (p->amended)
      memcpy(given, (const uint16_t *)p->x + at, (size_t)n * sizeof *given);
    p->run(n, x, z, x, p->a, p->b, p->c, p->f);
    narrow(n, x, p->dtype, p->y, at);
    if (p->amended)
      amend(n, given, x, p->dtype, p->amended, (uint16_t *)p->y + at);
  }
}

static void pointwise_part(void *data) {
  struct pointwise *p = data;
  int64_t begin, end;
  while (take(&p->shares, &begin, &end))
    pointwise_share(p, begin, end);
}

/// Fewer elements than this are not worth a thread.
enum { GRAIN = 16 * PIECE };

static void pointwise_run(void *data) {
  struct pointwise *p = data;
  share_elements(p->t, &p->shares, p->n, GRAIN, pointwise_part, p);
}

#endif
