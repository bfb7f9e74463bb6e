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

/// Returns 0, or 1 if there was no memory.
EXPORT int fast_mm(int64_t m, int64_t n, int64_t k, const float *a, int64_t am,
                   int64_t ak, const float *b, int64_t bk, int64_t bn, float *c,
                   const struct threads *t) {
  if (m == 0 || n == 0)
    return 0;
  int64_t left = (m + ROWS - 1) / ROWS * ROWS * k;
  int64_t right = (n + COLUMNS - 1) / COLUMNS * COLUMNS * k;
  size_t bytes = (size_t)(left + right + 32) * sizeof(float);
  float *room = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!room)
    return 1;
  struct products p = {m,    n, k, a, am, ak, b, bk, bn, c, room + right,
                       room, 0, 0};
  int64_t work = m * n * k / 64;
  share_out(t, work, products_part, &p);
  p.phase = 1;
  p.next = 0;
  share_out(t, work, products_part, &p);
  free(room);
  return 0;
}

#endif
