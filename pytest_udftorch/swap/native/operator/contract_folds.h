//===- contract_folds.h - Sums of one row in registers --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Sums by the tree of ref_sum in contract.h, sixteen vectors at a time. A row
// that ends within a vector goes on with -0, which changes no sum: so every
// node of the tree has two children here, and a sum of one term is the term.
// The terms may be formulas of the elements; then they are never stored.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_FOLDS_H
#define UDFTORCH_CONTRACT_FOLDS_H

#include <stdint.h>
#include <string.h>

// Vectors go into and out of functions that are always inlined.
#pragma clang diagnostic ignored "-Wpsabi"

/// Levels of the binary tree: no sum has more than 2^62 terms.
enum { LEVELS = 63 };

// Elements of a vector, of a square of vectors, and of a square of squares.
enum { LANES = 16, SQUARE = LANES * LANES, SUM_BLOCK = LANES * SQUARE };

// Elements by which memory is asked for ahead of where a sum is.
enum { SUM_AHEAD = 512 };

typedef float lanes __attribute__((ext_vector_type(LANES), aligned(4)));

#define INLINED static inline __attribute__((always_inline))
#define EACH_LEVEL _Pragma("clang loop unroll(full)")

/// Adds two vectors. At AVX2 LLVM would make a horizontal addition of shuffles
/// and a sum, which takes twice as long; a product with a 1 that it does not
/// see is exact, and the fused sum is rounded as a sum is.
#if defined(__AVX2__) && !defined(__AVX512F__)
static volatile float one_of_sums = 1.0f;
#define SUM_ONE const lanes one = one_of_sums;
#define ADDED(x, y) __builtin_elementwise_fma(x, one, y)
#else
#define SUM_ONE
#define ADDED(x, y) ((x) + (y))
#endif

/// Adds neighbours of a, and those of b. Lanes whose number has the bit hold
/// sums of b. The first shuffle leaves every lane in its place, which a CPU has
/// more units for; so some sums have their terms the other way round.
#define JOINED_1(a, b)                                                         \
  ADDED(__builtin_shufflevector(a, b, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10,   \
                                27, 12, 29, 14, 31),                           \
        __builtin_shufflevector(a, b, 1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11,   \
                                26, 13, 28, 15, 30))
#define JOINED_2(a, b)                                                         \
  ADDED(__builtin_shufflevector(a, b, 0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26,    \
                                27, 12, 13, 30, 31),                           \
        __builtin_shufflevector(a, b, 2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24,  \
                                25, 14, 15, 28, 29))
#define JOINED_4(a, b)                                                         \
  ADDED(__builtin_shufflevector(a, b, 0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10,    \
                                11, 28, 29, 30, 31),                           \
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14,  \
                                15, 24, 25, 26, 27))
#define JOINED_8(a, b)                                                         \
  ADDED(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27,  \
                                28, 29, 30, 31),                               \
        __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,    \
                                18, 19, 20, 21, 22, 23))

/// What is added up, in the names of struct terms.
enum term {
  PLAIN,        ///< x
  SQUARED,      ///< (x - mean)^2
  TIMES,        ///< g x
  NORMED,       ///< g ((x - mean) rstd)
  SCALED_NORMED ///< (g w) ((x - mean) rstd)
};

struct terms {
  const float *x, *g, *w; ///< those that a term does not name are not read
  float mean, rstd;
};

INLINED lanes vector_at(const float *x) { return *(const lanes *)x; }

INLINED lanes term_at(enum term kind, const struct terms *t, int64_t at) {
  lanes x = vector_at(t->x + at);
  if (kind == PLAIN)
    return x;
  if (kind == TIMES)
    return vector_at(t->g + at) * x;
  lanes less = x - t->mean;
  if (kind == SQUARED)
    return less * less;
  lanes g = vector_at(t->g + at), hat = less * t->rstd;
  return (kind == NORMED ? g : g * vector_at(t->w + at)) * hat;
}

/// The terms of fewer elements than a vector has; the other lanes are -0.
INLINED lanes last_term(enum term kind, const struct terms *t, int64_t at,
                        int64_t n) {
  float x[LANES] = {0}, g[LANES] = {0}, w[LANES] = {0};
  for (int64_t i = 0; i < n; ++i) {
    x[i] = t->x[at + i];
    if (kind >= TIMES)
      g[i] = t->g[at + i];
    if (kind == SCALED_NORMED)
      w[i] = t->w[at + i];
  }
  struct terms here = {x, g, w, t->mean, t->rstd};
  lanes found = term_at(kind, &here, 0);
  memcpy(x, &found, sizeof x);
  for (int64_t i = n; i < LANES; ++i)
    x[i] = -0.0f;
  return vector_at(x);
}

/// Lane i is the sum of the vector i, of which there are 16.
INLINED lanes fold_square(enum term kind, const struct terms *t, int64_t at) {
  SUM_ONE lanes four[4];
  EACH_LEVEL
  for (int i = 0; i < 4; ++i, at += 4 * LANES) {
    EACH_LEVEL
    for (int j = 0; j < 4; ++j)
      __builtin_prefetch(t->x + at + SUM_AHEAD + j * LANES);
    lanes a = term_at(kind, t, at), b = term_at(kind, t, at + LANES);
    lanes c = term_at(kind, t, at + 2 * LANES);
    lanes d = term_at(kind, t, at + 3 * LANES);
    lanes ab = JOINED_1(a, b), cd = JOINED_1(c, d);
    four[i] = JOINED_2(ab, cd);
  }
  lanes first = JOINED_4(four[0], four[1]), rest = JOINED_4(four[2], four[3]);
  return JOINED_8(first, rest);
}

/// Lane i is the sum of the vector i, of which there are up to 16, or -0.
INLINED lanes fold_vectors(int64_t count, lanes *v) {
  SUM_ONE lanes none = -0.0f;
#define JOIN_LEVEL(JOINED)                                                     \
  for (int64_t i = 0; i < count / 2; ++i)                                      \
    v[i] = JOINED(v[2 * i], v[2 * i + 1]);                                     \
  if (count & 1)                                                               \
    v[count / 2] = JOINED(v[count - 1], none);                                 \
  count = (count + 1) / 2;
  JOIN_LEVEL(JOINED_1)
  JOIN_LEVEL(JOINED_2)
  JOIN_LEVEL(JOINED_4)
  JOIN_LEVEL(JOINED_8)
#undef JOIN_LEVEL
  return v[0];
}

/// The sum of one vector.
INLINED float fold_lanes(lanes v) {
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13,
                               12, 15, 14);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14,
                               15, 12, 13);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8,
                               9, 10, 11);
  return v[0] + v[8];
}

/// The sum of up to 16 elements.
static float fold_few(int64_t n, const float *x) {
#ifdef ONE_AFTER_THE_OTHER // another tree: a negative control of tests
  float sum = n ? x[0] : 0.0f;
  for (int64_t i = 1; i < n; ++i)
    sum += x[i];
  return sum;
#endif
  float y[LANES];
  if (n < 2)
    return n ? x[0] : 0.0f;
  int64_t count = n / 2;
  for (int64_t i = 0; i < count; ++i)
    y[i] = x[2 * i] + x[2 * i + 1];
  if (n & 1)
    y[count++] = x[n - 1];
  while (count > 1) {
    int64_t pairs = count / 2;
    for (int64_t i = 0; i < pairs; ++i)
      y[i] = y[2 * i] + y[2 * i + 1];
    if (count & 1)
      y[pairs] = y[count - 1];
    count = (count + 1) / 2;
  }
  return y[0];
}

/// Puts the sums of each 16 of up to SUM_BLOCK terms into vectors; returns how
/// many there are.
INLINED int64_t fold_parts(enum term kind, const struct terms *t, int64_t at,
                           int64_t n, lanes *parts) {
  lanes few[LANES];
  int64_t count = 0, vectors = 0;
  for (; n >= SQUARE; n -= SQUARE, at += SQUARE)
    parts[count++] = fold_square(kind, t, at);
  if (!n)
    return count;
  for (; n >= LANES; n -= LANES, at += LANES)
    few[vectors++] = term_at(kind, t, at);
  if (n)
    few[vectors++] = last_term(kind, t, at, n);
  parts[count++] = fold_vectors(vectors, few);
  return count;
}

/// The sum of 1 to SUM_BLOCK terms.
INLINED float fold(enum term kind, const struct terms *t, int64_t at,
                   int64_t n) {
  lanes parts[LANES];
  int64_t count = fold_parts(kind, t, at, n, parts);
  return fold_lanes(count > 1 ? fold_vectors(count, parts) : parts[0]);
}

/// The sum of n terms.
INLINED float fold_terms(enum term kind, const struct terms *t, int64_t n) {
  float second[LEVELS];
  if (n <= SUM_BLOCK)
    return n ? fold(kind, t, 0, n) : 0.0f;
  // Sums of whole blocks wait for a partner of their size.
  int64_t full = 0, waiting = 0;
  for (int64_t at = 0; at < n; at += SUM_BLOCK) {
    int64_t here = n - at < SUM_BLOCK ? n - at : SUM_BLOCK;
    float sum = fold(kind, t, at, here);
    if (here == SUM_BLOCK)
      for (int64_t c = full++; c & 1; c >>= 1)
        sum = second[--waiting] + sum;
    second[waiting++] = sum;
  }
  float sum = second[--waiting];
  while (waiting)
    sum = second[--waiting] + sum;
  return sum;
}

/// A row's sum: a function, or each caller would have its own copy.
static float sum_row(int64_t n, const float *x) {
  struct terms t = {.x = x};
  return n <= LANES ? fold_few(n, x) : fold_terms(PLAIN, &t, n);
}

/// What is added up of rows that follow each other: struct terms for each. All
/// rows have the same factors w.
struct row_terms {
  const float *x, *g, *w, *mean, *rstd;
};

/// The sums of rows of n terms. The last levels of some rows are folded at
/// once, so that no row waits for its own.
INLINED void fold_rows(enum term kind, int64_t rows, int64_t n,
                       const struct row_terms *t, float *y) {
  int64_t each = 1, done = 0; // vectors that a row leaves, a power of two
  while (each * SQUARE < n)
    each *= 2;
  int64_t together = each < LANES ? LANES / each : 1;
  lanes parts[LANES];
  for (int64_t r = 0; r < rows; ++r) {
    struct terms row = {.x = t->x + r * n, .w = t->w};
    if (kind >= TIMES)
      row.g = t->g + r * n;
    if (kind != PLAIN && kind != TIMES)
      row.mean = t->mean[r];
    if (kind >= NORMED)
      row.rstd = t->rstd[r];
    if (together == 1) {
      y[r] = fold_terms(kind, &row, n);
      continue;
    }
    int64_t at = (r - done) * each, end = at + each;
    at += fold_parts(kind, &row, 0, n, parts + at);
    for (; at < end; ++at)
      parts[at] = (lanes)-0.0f;
    if (end < LANES && r + 1 < rows)
      continue;
    float sums[LANES];
    lanes all = fold_vectors(end, parts);
    memcpy(sums, &all, sizeof sums);
    for (int64_t i = 0; done <= r; ++done, i += each)
      y[done] = fold_few(each, sums + i);
  }
}

static void sum_squared(int64_t rows, int64_t n, const float *x,
                        const float *mean, float *y) {
  struct row_terms t = {.x = x, .mean = mean};
  fold_rows(SQUARED, rows, n, &t, y);
}

/// Sums of products of g with rows of x.
static void sum_times(int64_t rows, int64_t n, const float *g, const float *x,
                      float *y) {
  struct row_terms t = {.x = x, .g = g};
  fold_rows(TIMES, rows, n, &t, y);
}

static void sum_normed(int64_t rows, int64_t n, const struct row_terms *t,
                       float *y) {
  if (t->w)
    fold_rows(SCALED_NORMED, rows, n, t, y);
  else
    fold_rows(NORMED, rows, n, t, y);
}

/// Sums rows of whole vectors each, some in one square: n is a multiple of 16
/// below 256.
static void sum_short_rows(int64_t rows, int64_t n, const float *x, float *y) {
  int64_t each = n / LANES, together = LANES / each;
  struct terms t = {.x = x};
  for (int64_t o = 0; o < rows; o += together) {
    int64_t here = rows - o < together ? rows - o : together;
    float some[LANES];
    lanes found;
    if (here * each == LANES) {
      found = fold_square(PLAIN, &t, o * n);
    } else {
      lanes few[LANES];
      for (int64_t i = 0; i < here * each; ++i)
        few[i] = vector_at(x + o * n + i * LANES);
      found = fold_vectors(here * each, few);
    }
    memcpy(some, &found, sizeof some);
    for (int64_t r = 0; r < here; ++r)
      y[o + r] = fold_few(each, some + r * each);
  }
}

static void sum_rows(int64_t rows, int64_t n, const float *x, float *y) {
  struct row_terms t = {.x = x};
  if (n && n % LANES == 0 && n < SQUARE)
    sum_short_rows(rows, n, x, y);
  else if (n > LANES)
    fold_rows(PLAIN, rows, n, &t, y);
  else
    for (int64_t o = 0; o < rows; ++o)
      y[o] = fold_few(n, x + o * n);
}

#endif
