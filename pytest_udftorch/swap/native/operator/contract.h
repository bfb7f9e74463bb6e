//===- contract.h - Sums and products in a fixed order --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The contract of docs/reproduce/contract.md as C: one scalar loop for each
// operator, in which the order of float32 operations is a function of shapes
// alone. The functions whose name begins with ref_ are the contract; those that
// begin with fast_ give the same bits and are what sessions call. contract.c is
// compiled with contraction off: a fused multiply-add is where it is written.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_H
#define UDFTORCH_CONTRACT_H

#include "contract_folds.h"
#include "cpu_loops.h"
#include <stdlib.h>

/// Products of one chunk are accumulated one after the other.
#ifndef CHUNK
#define CHUNK 64
#endif

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

// Columns that are summed side by side.
enum { WIDTH = 64 };

struct sums {
  int64_t outer, n, inner;
  const float *x;
  float *y;
  int64_t next;
};

/// Sums columns side by side: eight rows make a carry into a binary counter.
static void sum_columns(int64_t n, int64_t inner, int64_t width, const float *x,
                        float *y) {
  float level[LEVELS][WIDTH], sum[WIDTH];
  int64_t waiting = 0, whole = n / 8;
  for (int64_t e = 0; e < whole; ++e) {
    const float *r = x + e * 8 * inner;
    int64_t d = inner;
    for (int64_t i = 0; i < width; ++i)
      sum[i] = ((r[i] + r[i + d]) + (r[i + 2 * d] + r[i + 3 * d])) +
               ((r[i + 4 * d] + r[i + 5 * d]) + (r[i + 6 * d] + r[i + 7 * d]));
    for (int64_t c = e; c & 1; c >>= 1) {
      --waiting;
      for (int64_t i = 0; i < width; ++i)
        sum[i] = level[waiting][i] + sum[i];
    }
    for (int64_t i = 0; i < width; ++i)
      level[waiting][i] = sum[i];
    ++waiting;
  }
  for (int64_t e = 0; e < n % 8; ++e, ++waiting) {
    const float *row = x + (whole * 8 + e) * inner;
    for (int64_t i = 0; i < width; ++i)
      level[waiting][i] = row[i];
    for (int64_t c = e; c & 1; c >>= 1, --waiting)
      for (int64_t i = 0; i < width; ++i)
        level[waiting - 1][i] += level[waiting][i];
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
  int64_t rows = s->inner == 1 ? 64 : 1; // of one task
  int64_t tasks = (s->outer + rows - 1) / rows * across;
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < tasks) {
    if (s->inner == 1) {
      int64_t o = task * rows, left = s->outer - o;
      sum_rows(left < rows ? left : rows, s->n, s->x + o * s->n, s->y + o);
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

// Room for packed matrices. Fresh pages cost more than packing, so a few blocks
// are kept for the next call.
enum { KEPT = 8, ROOM_LINE = 16 };
static const size_t KEPT_BYTES = (size_t)64 << 20; ///< of a block, at most

struct room {
  size_t bytes;
};
static struct room *kept_rooms[KEPT];

/// Returns room for so many floats, at a cache line, or null.
static float *take_room(int64_t floats) {
  size_t bytes = ((size_t)floats + 2 * ROOM_LINE) * sizeof(float);
  for (int i = 0; i < KEPT; ++i) {
    struct room *r =
        __atomic_exchange_n(&kept_rooms[i], NULL, __ATOMIC_ACQUIRE);
    if (r && r->bytes >= bytes)
      return (float *)r + ROOM_LINE;
    free(r);
  }
  bytes = (bytes + 4095) / 4096 * 4096;
  struct room *r = aligned_alloc(64, bytes);
  if (!r)
    return NULL;
  r->bytes = bytes;
  return (float *)r + ROOM_LINE;
}

/// Gives room back, which may be null.
static void give_room(float *floats) {
  struct room *r = floats ? (struct room *)(floats - ROOM_LINE) : NULL;
  for (int i = 0; r && r->bytes <= KEPT_BYTES && i < KEPT; ++i) {
    struct room *none = NULL;
    if (__atomic_compare_exchange_n(&kept_rooms[i], &none, r, 0,
                                    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
      return;
  }
  free(r);
}

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

typedef float four __attribute__((vector_size(16), aligned(4)));
typedef float two __attribute__((vector_size(8), aligned(4)));

/// Copies four rows of four elements into columns.
static void turn_four(const float *from, int64_t across, float *to,
                      int64_t width) {
  four a = *(const four *)from, b = *(const four *)(from + across);
  four c = *(const four *)(from + 2 * across);
  four d = *(const four *)(from + 3 * across);
  four ac = __builtin_shufflevector(a, c, 0, 4, 1, 5);
  four bd = __builtin_shufflevector(b, d, 0, 4, 1, 5);
  four ac2 = __builtin_shufflevector(a, c, 2, 6, 3, 7);
  four bd2 = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  *(four *)to = __builtin_shufflevector(ac, bd, 0, 4, 1, 5);
  *(four *)(to + width) = __builtin_shufflevector(ac, bd, 2, 6, 3, 7);
  *(four *)(to + 2 * width) = __builtin_shufflevector(ac2, bd2, 0, 4, 1, 5);
  *(four *)(to + 3 * width) = __builtin_shufflevector(ac2, bd2, 2, 6, 3, 7);
}

/// Copies two rows of four elements into columns.
static void turn_two(const float *from, int64_t across, float *to,
                     int64_t width) {
  four a = *(const four *)from, b = *(const four *)(from + across);
  four low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  four high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  *(two *)to = __builtin_shufflevector(low, low, 0, 1);
  *(two *)(to + width) = __builtin_shufflevector(low, low, 2, 3);
  *(two *)(to + 2 * width) = __builtin_shufflevector(high, high, 0, 1);
  *(two *)(to + 3 * width) = __builtin_shufflevector(high, high, 2, 3);
}

/// Copies count rows of up to width elements into panels of k x width.
static void pack(int64_t k, int64_t count, int64_t width, const float *from,
                 int64_t along, int64_t across, float *to) {
  int64_t p = 0;
  if (along == 1 && count >= 2)
    for (; p + 4 <= k; p += 4, to += 4 * width) {
      int64_t i = 0;
      for (; i + 4 <= count; i += 4)
        turn_four(from + p + i * across, across, to + i, width);
      for (; i + 2 <= count; i += 2)
        turn_two(from + p + i * across, across, to + i, width);
      for (int64_t q = 0; q < 4; ++q)
        for (int64_t j = i; j < width; ++j)
          to[q * width + j] = j < count ? from[p + q + j * across] : 0.0f;
    }
  if (across == 1 && count == width)
    for (; p < k; ++p, to += width)
      memcpy(to, from + p * along, (size_t)width * sizeof *to);
  for (; p < k; ++p, to += width) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = from[p * along + i * across];
    for (int64_t i = count; i < width; ++i)
      to[i] = 0.0f;
  }
}

typedef float tile[ROWS][COLUMNS];
typedef float half __attribute__((ext_vector_type(COLUMNS / 2), aligned(4)));

/// Defines the product of a chunk for the first HERE rows of a tile. The terms
/// of a column of B are bk apart. It goes to out, or is added to what is there.
#define CHUNK_KERNEL(HERE)                                                     \
  static void chunk_##HERE(int64_t k, const float *restrict a,                 \
                           const float *restrict b, int64_t bk, int add,       \
                           tile out) {                                         \
    half acc[HERE][2];                                                         \
    EACH_ROW(HERE) acc[r][0] = acc[r][1] = 0.0f;                               \
    for (int64_t p = 0; p < k; ++p, a += ROWS, b += bk) {                      \
      half b0 = *(const half *)b, b1 = *(const half *)(b + COLUMNS / 2);       \
      EACH_ROW(HERE) {                                                         \
        half one = a[r];                                                       \
        acc[r][0] = __builtin_elementwise_fma(one, b0, acc[r][0]);             \
        acc[r][1] = __builtin_elementwise_fma(one, b1, acc[r][1]);             \
      }                                                                        \
    }                                                                          \
    EACH_ROW(HERE) {                                                           \
      half *to = (half *)out[r];                                               \
      to[0] = add ? to[0] + acc[r][0] : acc[r][0];                             \
      to[1] = add ? to[1] + acc[r][1] : acc[r][1];                             \
    }                                                                          \
  }
#define EACH_ROW(HERE)                                                         \
  _Pragma("clang loop unroll(full)") for (int r = 0; r < HERE; ++r)

#ifdef __AVX512F__
CHUNK_KERNEL(12)
CHUNK_KERNEL(8)
CHUNK_KERNEL(4)
#else
CHUNK_KERNEL(6)
CHUNK_KERNEL(4)
#endif
CHUNK_KERNEL(2)
CHUNK_KERNEL(1)

typedef void chunk_kernel(int64_t k, const float *a, const float *b, int64_t bk,
                          int add, tile out);

/// The kernel that computes so many rows of a tile and the fewest others.
static chunk_kernel *kernel_of(int64_t rows) {
#ifdef __AVX512F__
  if (rows > 4)
    return rows > 8 ? chunk_12 : chunk_8;
#else
  if (rows > 4)
    return chunk_6;
#endif
  return rows > 2 ? chunk_4 : rows > 1 ? chunk_2 : chunk_1;
}

static void join_tiles(int64_t rows, tile to, tile rest) {
  float *restrict x = &to[0][0];
  const float *y = &rest[0][0];
  for (int64_t i = 0; i < rows * COLUMNS; ++i)
    x[i] = x[i] + y[i];
}

/// The product of a panel of A and columns of B, whose terms are bk apart. So
/// many rows are wanted. It is in the first of the tiles, of which there are as
/// many as a tree has levels.
static void product_tile(int64_t k, const float *a, const float *b, int64_t bk,
                         int64_t rows, tile *level) {
  chunk_kernel *chunk = kernel_of(rows);
  int64_t waiting = 0, count = 0;
  for (int64_t at = 0; at < k || !at; at += CHUNK, ++count) {
    int64_t here = k - at < CHUNK ? k - at : CHUNK;
    int64_t c = count, add = c & 1;
    waiting -= add;
    chunk(here, a + at * ROWS, b + at * bk, bk, (int)add, level[waiting]);
    // The last chunk may be short; it joins its partner as ref_dot does.
    for (c >>= add; add && c & 1; c >>= 1, --waiting)
      join_tiles(rows, level[waiting - 1], level[waiting]);
    ++waiting;
  }
  while (--waiting > 0)
    join_tiles(rows, level[waiting - 1], level[waiting]);
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
    int64_t j = task % across * COLUMNS;
    int64_t columns = p->n - j < COLUMNS ? p->n - j : COLUMNS;
    for (int64_t i = first; i < end && i < p->m; i += ROWS) {
      int64_t rows = p->m - i < ROWS ? p->m - i : ROWS;
      product_tile(p->k, p->left + i * p->k, p->right + j * p->k, COLUMNS, rows,
                   level);
      for (int64_t r = 0; r < rows; ++r)
        memcpy(p->c + (i + r) * p->n + j, level[0][r],
               (size_t)columns * sizeof(float));
    }
  }
}

/// Makes room for packed matrices; returns 0, or 1 if there was no memory.
static int make_room(struct products *p) {
  int64_t left = (p->m + ROWS - 1) / ROWS * ROWS * p->k;
  int64_t right = (p->n + COLUMNS - 1) / COLUMNS * COLUMNS * p->k;
  p->right = take_room(left + right);
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
  give_room(p.right);
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
  give_room(p.right);
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
