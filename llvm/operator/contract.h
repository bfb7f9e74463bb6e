//===- contract.h - Sums and products in a fixed order --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The contract of docs/contract.md as C: one scalar loop for each operator, in
// which the order of float32 operations is a function of shapes alone. The
// functions whose name begins with ref_ are the contract; those that begin with
// fast_ give the same bits and are what sessions call. contract.c is compiled
// with contraction off: a fused multiply-add is where it is written.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_H
#define UDFTORCH_CONTRACT_H

#include "cpu_loops.h"
#include <stdlib.h>

/// Products of one chunk are accumulated one after the other.
#ifndef CHUNK
#define CHUNK 64
#endif

/// Levels of the binary tree: no sum has more than 2^62 terms.
enum { LEVELS = 63 };

/// The largest power of two below n, which is 2 or more.
static inline int64_t half_of(int64_t n) {
  int64_t p = 1;
  while (2 * p < n)
    p *= 2;
  return p;
}

//===----------------------------------------------------------------------===//
// The contract
//===----------------------------------------------------------------------===//

/// The sum of n terms: +0 of none, the term itself of one, and otherwise the
/// sum of the largest power of two of them that is less than n, plus the rest.
static float ref_sum(int64_t n, const float *x, int64_t stride) {
  if (n == 0)
    return 0.0f;
  if (n == 1)
    return x[0];
  int64_t p = half_of(n);
  return ref_sum(p, x, stride) + ref_sum(n - p, x + p * stride, stride);
}

/// The product of a chunk: fused multiply-adds from +0 on.
static float ref_chunk(int64_t k, const float *a, int64_t sa, const float *b,
                       int64_t sb) {
  float sum = 0.0f;
  for (int64_t p = 0; p < k; ++p)
    sum = __builtin_fmaf(a[p * sa], b[p * sb], sum);
  return sum;
}

/// The product of two vectors: chunks, added up by the tree of ref_sum.
static float ref_dot(int64_t k, const float *a, int64_t sa, const float *b,
                     int64_t sb) {
  if (k <= CHUNK)
    return ref_chunk(k, a, sa, b, sb);
  int64_t p = CHUNK * half_of((k + CHUNK - 1) / CHUNK);
  return ref_dot(p, a, sa, b, sb) +
         ref_dot(k - p, a + p * sa, sa, b + p * sb, sb);
}

/// C = A B, of which A has rows and columns with the strides am and ak, B with
/// bk and bn; the rows of C are dense.
EXPORT void ref_mm(int64_t m, int64_t n, int64_t k, const float *a, int64_t am,
                   int64_t ak, const float *b, int64_t bk, int64_t bn,
                   float *c) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      c[i * n + j] = ref_dot(k, a + i * am, ak, b + j * bn, bk);
}

/// y[o][i] = sum over r of x[o][r][i].
EXPORT void ref_sums(int64_t outer, int64_t n, int64_t inner, const float *x,
                     float *y) {
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i)
      y[o * inner + i] = ref_sum(n, x + o * n * inner + i, inner);
}

/// y[o][r][i] = the sum of the first r + 1 terms x[o][0][i], x[o][1][i], ...
EXPORT void ref_prefixes(int64_t outer, int64_t n, int64_t inner,
                         const float *x, float *y) {
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < inner; ++i)
        y[(o * n + r) * inner + i] =
            ref_sum(r + 1, x + o * n * inner + i, inner);
}

/// The sum of those of n terms that belong to one row. The other terms are left
/// out of the tree: a node with one child is the child. Tells whether any term
/// belongs to the row.
static int ref_picked(int64_t n, const int64_t *rows, int64_t row,
                      const float *x, int64_t stride, float *sum) {
  if (n == 0)
    return 0;
  if (n == 1) {
    *sum = x[0];
    return rows[0] == row;
  }
  int64_t p = half_of(n);
  float left = 0.0f, right = 0.0f;
  int first = ref_picked(p, rows, row, x, stride, &left);
  int second = ref_picked(n - p, rows + p, row, x + p * stride, stride, &right);
  *sum = first && second ? left + right : first ? left : right;
  return first || second;
}

/// Adds to each row of y the sum of the rows of x that belong to it.
EXPORT void ref_scatter(int64_t n, int64_t count, int64_t inner,
                        const int64_t *rows, const float *x, float *y) {
  float sum;
  for (int64_t row = 0; row < count; ++row)
    for (int64_t i = 0; i < inner; ++i)
      if (ref_picked(n, rows, row, x + i, inner, &sum))
        y[row * inner + i] += sum;
}

//===----------------------------------------------------------------------===//
// Sums, fast
//===----------------------------------------------------------------------===//

// Outputs that are summed side by side.
enum { WIDTH = 64, SUM_BLOCK = 2048 };

struct sums {
  int64_t outer, n, inner;
  const float *x;
  float *y;
  int64_t next;
};

/// Adds level by level what stands in x, n of it, into x[0]. Pairs of
/// neighbours give the tree of ref_sum: an odd one moves up a level.
static float fold(int64_t n, float *x) {
  if (n == 0)
    return 0.0f;
  while (n > 1) {
    int64_t pairs = n / 2;
    // Each store lies behind all later loads.
#pragma clang loop vectorize(assume_safety)
    for (int64_t i = 0; i < pairs; ++i)
      x[i] = x[2 * i] + x[2 * i + 1];
    if (n & 1)
      x[pairs] = x[n - 1];
    n = (n + 1) / 2;
  }
  return x[0];
}

static float sum_row(int64_t n, const float *x) {
  float first[SUM_BLOCK / 2], second[LEVELS];
  if (n <= 1)
    return n ? x[0] : 0.0f;
  // Sums of whole blocks wait for a partner of their size.
  int64_t full = 0, waiting = 0;
  for (int64_t at = 0; at < n; at += SUM_BLOCK) {
    int64_t here = n - at < SUM_BLOCK ? n - at : SUM_BLOCK, pairs = here / 2;
    for (int64_t i = 0; i < pairs; ++i)
      first[i] = x[at + 2 * i] + x[at + 2 * i + 1];
    int64_t left = pairs;
    if (here & 1) // then it is the last block
      first[left++] = x[at + here - 1];
    float sum = fold(left, first);
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

/// Sums columns side by side: each row is a carry into a binary counter.
static void sum_columns(int64_t n, int64_t inner, int64_t width, const float *x,
                        float *y) {
  float level[LEVELS][WIDTH], sum[WIDTH];
  int64_t waiting = 0;
  for (int64_t r = 0; r < n; ++r) {
    const float *row = x + r * inner;
    for (int64_t i = 0; i < width; ++i)
      sum[i] = row[i];
    for (int64_t c = r; c & 1; c >>= 1) {
      --waiting;
      for (int64_t i = 0; i < width; ++i)
        sum[i] = level[waiting][i] + sum[i];
    }
    for (int64_t i = 0; i < width; ++i)
      level[waiting][i] = sum[i];
    ++waiting;
  }
  for (int64_t i = 0; i < width; ++i)
    sum[i] = waiting ? level[waiting - 1][i] : 0.0f;
  for (--waiting; waiting > 0; --waiting)
    for (int64_t i = 0; i < width; ++i)
      sum[i] = level[waiting - 1][i] + sum[i];
  for (int64_t i = 0; i < width; ++i)
    y[i] = sum[i];
}

static void sums_part(void *data) {
  struct sums *s = data;
  int64_t across = (s->inner + WIDTH - 1) / WIDTH, task;
  int64_t rows = s->inner == 1 ? 16 : 1; // of one task
  int64_t tasks = (s->outer + rows - 1) / rows * across;
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < tasks) {
    if (s->inner == 1) {
      for (int64_t o = task * rows; o < s->outer && o < (task + 1) * rows; ++o)
        s->y[o] = sum_row(s->n, s->x + o * s->n);
      continue;
    }
    int64_t o = task / across, i = task % across * WIDTH;
    int64_t width = s->inner - i < WIDTH ? s->inner - i : WIDTH;
    sum_columns(s->n, s->inner, width, s->x + o * s->n * s->inner + i,
                s->y + o * s->inner + i);
  }
}

static void share_out(const struct threads *t, int64_t work,
                      void (*part)(void *), void *data) {
  if (t->count < 2 || work < GRAIN)
    part(data);
  else
    in_parallel(t, t->count, part, data);
}

EXPORT void fast_sums(int64_t outer, int64_t n, int64_t inner, const float *x,
                      float *y, const struct threads *t) {
  struct sums s = {outer, n, inner, x, y, 0};
  share_out(t, outer * n * inner, sums_part, &s);
}

/// Carries a row into a binary counter of sums of whole blocks, as sum_columns
/// does, and after each row adds up what waits.
static void prefix_columns(int64_t n, int64_t inner, int64_t width,
                           const float *x, float *y) {
  float level[LEVELS][WIDTH], sum[WIDTH];
  int64_t waiting = 0;
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < width; ++i)
      sum[i] = x[r * inner + i];
    for (int64_t c = r; c & 1; c >>= 1) {
      --waiting;
      for (int64_t i = 0; i < width; ++i)
        sum[i] = level[waiting][i] + sum[i];
    }
    for (int64_t i = 0; i < width; ++i)
      level[waiting][i] = sum[i];
    for (int64_t left = waiting++; left > 0; --left)
      for (int64_t i = 0; i < width; ++i)
        sum[i] = level[left - 1][i] + sum[i];
    for (int64_t i = 0; i < width; ++i)
      y[r * inner + i] = sum[i];
  }
}

static void prefixes_part(void *data) {
  struct sums *s = data;
  int64_t across = (s->inner + WIDTH - 1) / WIDTH, task;
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) <
         s->outer * across) {
    int64_t i = task % across * WIDTH;
    int64_t at = task / across * s->n * s->inner + i;
    int64_t width = s->inner - i < WIDTH ? s->inner - i : WIDTH;
    prefix_columns(s->n, s->inner, width, s->x + at, s->y + at);
  }
}

EXPORT void fast_prefixes(int64_t outer, int64_t n, int64_t inner,
                          const float *x, float *y, const struct threads *t) {
  struct sums s = {outer, n, inner, x, y, 0};
  share_out(t, outer * n * inner, prefixes_part, &s);
}

//===----------------------------------------------------------------------===//
// Scattered sums, fast
//===----------------------------------------------------------------------===//

struct scatter {
  int64_t groups, inner;
  const int64_t *start; ///< of each group in terms, and the end of the last
  const int64_t *terms; ///< rows of x: by the row of y, then in their order
  const int64_t *rows;  ///< the row of y of each group
  int64_t each;         ///< terms share a place by so many
  const float *x;
  float *y;
  int64_t next;
};

/// Adds up columns of the terms of a group. Two neighbours join at the highest
/// bit in which their places differ; that is the tree of ref_picked.
static void scatter_columns(const struct scatter *s, int64_t group, int64_t i,
                            int64_t width) {
  float level[LEVELS + 1][WIDTH];
  int joins[LEVELS + 1]; // at which bit a sum joins the one below it
  int64_t waiting = 0, before = 0;
  for (int64_t k = s->start[group]; k < s->start[group + 1]; ++k) {
    int64_t term = s->terms[k], place = term / s->each;
    int bit = waiting ? 63 - __builtin_clzll((uint64_t)(place ^ before)) : 0;
    for (; waiting > 1 && joins[waiting - 1] < bit; --waiting)
      for (int64_t c = 0; c < width; ++c)
        level[waiting - 2][c] += level[waiting - 1][c];
    for (int64_t c = 0; c < width; ++c)
      level[waiting][c] = s->x[term * s->inner + i + c];
    joins[waiting++] = bit;
    before = place;
  }
  for (; waiting > 1; --waiting)
    for (int64_t c = 0; c < width; ++c)
      level[waiting - 2][c] += level[waiting - 1][c];
  float *y = s->y + s->rows[group] * s->inner + i;
  for (int64_t c = 0; c < width; ++c)
    y[c] += level[0][c];
}

static void scatter_part(void *data) {
  struct scatter *s = data;
  int64_t across = (s->inner + WIDTH - 1) / WIDTH, task;
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) <
         s->groups * across) {
    int64_t i = task % across * WIDTH;
    scatter_columns(s, task / across, i,
                    s->inner - i < WIDTH ? s->inner - i : WIDTH);
  }
}

EXPORT void fast_scatter(int64_t groups, int64_t inner, const int64_t *start,
                         const int64_t *terms, const int64_t *rows,
                         int64_t each, const float *x, float *y,
                         const struct threads *t) {
  struct scatter s = {groups, inner, start, terms, rows, each, x, y, 0};
  share_out(t, start[groups] * inner, scatter_part, &s);
}

//===----------------------------------------------------------------------===//
// Random numbers
//===----------------------------------------------------------------------===//

struct words {
  int64_t n;
  uint64_t key;
  uint32_t *out;
  int64_t next;
};

/// Four words of Philox-4x32 with ten rounds (Salmon, Moraes, Dror and Shaw,
/// Parallel random numbers: as easy as 1, 2, 3, 2011), for a counter of 64
/// bits.
static void philox(uint64_t counter, uint64_t key, uint32_t *out) {
  uint32_t a = (uint32_t)counter, b = (uint32_t)(counter >> 32), c = 0, d = 0;
  uint32_t k = (uint32_t)key, l = (uint32_t)(key >> 32);
#pragma clang loop unroll(full)
  for (int round = 0; round < 10; ++round) {
    uint64_t p = (uint64_t)a * 0xD2511F53u, q = (uint64_t)c * 0xCD9E8D57u;
    a = (uint32_t)(q >> 32) ^ b ^ k;
    c = (uint32_t)(p >> 32) ^ d ^ l;
    b = (uint32_t)q;
    d = (uint32_t)p;
    k += 0x9E3779B9u;
    l += 0xBB67AE85u;
  }
  out[0] = a;
  out[1] = b;
  out[2] = c;
  out[3] = d;
}

static void words_part(void *data) {
  struct words *w = data;
  int64_t tasks = (w->n + GRAIN - 1) / GRAIN, task;
  while ((task = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < tasks) {
    int64_t at = task * GRAIN;
    int64_t end = at + GRAIN < w->n ? at + GRAIN : w->n;
    for (; at + 4 <= end; at += 4)
      philox((uint64_t)at / 4, w->key, w->out + at);
    if (at < end) {
      uint32_t last[4];
      philox((uint64_t)at / 4, w->key, last);
      memcpy(w->out + at, last, (size_t)(end - at) * sizeof *last);
    }
  }
}

/// Word e is a function of the key and of e alone.
EXPORT void random_words(int64_t n, uint64_t key, uint32_t *out,
                         const struct threads *t) {
  struct words w = {n, key, out, 0};
  share_out(t, n, words_part, &w);
}

//===----------------------------------------------------------------------===//
// Products, fast
//===----------------------------------------------------------------------===//

// A tile of results stays in registers while a chunk is added to it. Tiles of
// 12 x 32 fill AVX-512's registers, 6 x 16 those of AVX2.
#ifdef __AVX512F__
enum { ROWS = 12, COLUMNS = 32 };
#else
enum { ROWS = 6, COLUMNS = 16 };
#endif

struct products {
  int64_t m, n, k;
  const float *a;
  int64_t am, ak;
  const float *b;
  int64_t bk, bn;
  float *c;
  float *left, *right; ///< A and B, packed in panels
  int64_t next;
  int32_t phase;
};

/// Copies count rows of up to width elements into panels of k x width.
static void pack(int64_t k, int64_t count, int64_t width, const float *from,
                 int64_t along, int64_t across, float *to) {
  for (int64_t p = 0; p < k; ++p, to += width) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = from[p * along + i * across];
    for (int64_t i = count; i < width; ++i)
      to[i] = 0.0f;
  }
}

typedef float tile[ROWS][COLUMNS];

static void chunk_tile(int64_t k, const float *restrict a,
                       const float *restrict b, tile out) {
  float acc[ROWS][COLUMNS];
#pragma clang loop unroll(full)
  for (int r = 0; r < ROWS; ++r)
#pragma clang loop unroll(full)
    for (int c = 0; c < COLUMNS; ++c)
      acc[r][c] = 0.0f;
  for (int64_t p = 0; p < k; ++p) {
#pragma clang loop unroll(full)
    for (int r = 0; r < ROWS; ++r) {
#pragma clang loop vectorize(enable)
      for (int c = 0; c < COLUMNS; ++c)
        acc[r][c] =
            __builtin_fmaf(a[p * ROWS + r], b[p * COLUMNS + c], acc[r][c]);
    }
  }
#pragma clang loop unroll(full)
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < COLUMNS; ++c)
      out[r][c] = acc[r][c];
}

static void join_tiles(tile to, tile rest) {
  float *restrict x = &to[0][0];
  const float *y = &rest[0][0];
  for (int i = 0; i < ROWS * COLUMNS; ++i)
    x[i] = x[i] + y[i];
}

static void product_tile(const struct products *p, int64_t row, int64_t column,
                         tile *level) {
  const float *a = p->left + row * p->k, *b = p->right + column * p->k;
  int64_t waiting = 0, count = 0;
  for (int64_t at = 0; at < p->k || !at; at += CHUNK, ++count) {
    int64_t here = p->k - at < CHUNK ? p->k - at : CHUNK;
    chunk_tile(here, a + at * ROWS, b + at * COLUMNS, level[waiting]);
    // The last chunk may be short; it joins its partner as ref_dot does.
    for (int64_t c = count; c & 1; c >>= 1, --waiting)
      join_tiles(level[waiting - 1], level[waiting]);
    ++waiting;
  }
  while (--waiting > 0) {
    join_tiles(level[waiting - 1], level[waiting]);
  }
  int64_t rows = p->m - row < ROWS ? p->m - row : ROWS;
  int64_t columns = p->n - column < COLUMNS ? p->n - column : COLUMNS;
  for (int64_t r = 0; r < rows; ++r)
    memcpy(p->c + (row + r) * p->n + column, level[0][r],
           (size_t)columns * sizeof(float));
}

// Panels of B that a task of the second phase goes through for its rows.
enum { BLOCK = 8 * ROWS };

static void products_part(void *data) {
  struct products *p = data;
  int64_t across = (p->n + COLUMNS - 1) / COLUMNS;
  int64_t down = (p->m + ROWS - 1) / ROWS, task;
  if (p->phase == 0) {
    while ((task = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) <
           across + down)
      if (task < across) {
        int64_t j = task * COLUMNS, left = p->n - j;
        pack(p->k, left < COLUMNS ? left : COLUMNS, COLUMNS, p->b + j * p->bn,
             p->bk, p->bn, p->right + j * p->k);
      } else {
        int64_t i = (task - across) * ROWS, left = p->m - i;
        pack(p->k, left < ROWS ? left : ROWS, ROWS, p->a + i * p->am, p->ak,
             p->am, p->left + i * p->k);
      }
    return;
  }
  tile level[LEVELS + 1];
  int64_t blocks = (p->m + BLOCK - 1) / BLOCK;
  while ((task = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) <
         across * blocks) {
    int64_t first = task / across * BLOCK, end = first + BLOCK;
    for (int64_t i = first; i < end && i < p->m; i += ROWS)
      product_tile(p, i, task % across * COLUMNS, level);
  }
}

/// Makes room for packed matrices; returns 0, or 1 if there was no memory.
static int make_room(struct products *p) {
  int64_t left = (p->m + ROWS - 1) / ROWS * ROWS * p->k;
  int64_t right = (p->n + COLUMNS - 1) / COLUMNS * COLUMNS * p->k;
  size_t bytes = (size_t)(left + right + 32) * sizeof(float);
  p->right = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!p->right)
    return 1;
  p->left = p->right + right;
  return 0;
}

/// Returns 0, or 1 if there was no memory.
EXPORT int fast_mm(int64_t m, int64_t n, int64_t k, const float *a, int64_t am,
                   int64_t ak, const float *b, int64_t bk, int64_t bn, float *c,
                   const struct threads *t) {
  if (m == 0 || n == 0)
    return 0;
  struct products p = {m, n, k, a, am, ak, b, bk, bn, c, NULL, NULL, 0, 0};
  if (make_room(&p))
    return 1;
  int64_t work = m * n * k / 64;
  share_out(t, work, products_part, &p);
  p.phase = 1;
  p.next = 0;
  share_out(t, work, products_part, &p);
  free(p.right);
  return 0;
}

struct batch {
  struct products one;   ///< the first product
  int64_t count, ab, bb; ///< products, and the steps between their factors
  int64_t next;
  int32_t failed;
};

static void batch_part(void *data) {
  struct batch *s = data;
  struct products p = s->one;
  int64_t task;
  if (make_room(&p)) {
    __atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) <
         s->count) {
    p.a = s->one.a + task * s->ab;
    p.b = s->one.b + task * s->bb;
    p.c = s->one.c + task * p.m * p.n;
    for (p.phase = 0; p.phase < 2; ++p.phase) {
      p.next = 0;
      products_part(&p);
    }
  }
  free(p.right);
}

/// Products of count matrices: each by one thread if there are enough of them,
/// and by all threads one after the other if not. Returns as fast_mm does.
EXPORT int fast_bmm(int64_t count, int64_t m, int64_t n, int64_t k,
                    const float *a, int64_t ab, int64_t am, int64_t ak,
                    const float *b, int64_t bb, int64_t bk, int64_t bn,
                    float *c, const struct threads *t) {
  int failed = 0;
  if (m == 0 || n == 0)
    return 0;
  if (count < t->count) {
    for (int64_t i = 0; i < count && !failed; ++i)
      failed = fast_mm(m, n, k, a + i * ab, am, ak, b + i * bb, bk, bn,
                       c + i * m * n, t);
    return failed;
  }
  struct batch s = {{m, n, k, a, am, ak, b, bk, bn, c, NULL, NULL, 0, 0},
                    count,
                    ab,
                    bb,
                    0,
                    0};
  share_out(t, count * (m * n * k / 64), batch_part, &s);
  return s.failed;
}

#endif
