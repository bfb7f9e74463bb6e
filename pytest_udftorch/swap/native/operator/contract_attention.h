//===- contract_attention.h - Attention in bfloat16 on the CPU ------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Attention as contract/attention.py composes it of exact products, a softmax
// and weighted sums, with the same bits. Scores exist for a block of queries
// only, keys and values are packed once for all blocks, and keys behind what a
// causal mask lets a block see are left out.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_ATTENTION_H
#define UDFTORCH_CONTRACT_ATTENTION_H

#include "contract_exact.h"
#include "contract_rows.h"

/// Matrices of heads of samples in bfloat16.
struct heads {
  const uint16_t *x;
  int64_t sample, head, row, column; ///< strides
};

/// What is added to scores, or says which count; strides as those of heads.
enum mask_kind { NO_MASK, MASK_OF_BOOLS, MASK_OF_FLOATS, MASK_OF_BFLOATS };

/// A call; kernel_call.h has the same. Results are dense: of samples, heads,
/// and the rows of these.
struct exact_attention {
  int64_t samples, heads, of_keys; ///< heads of queries, and of keys
  int64_t queries, keys, size;
  struct heads q, k, v, grad;
  const void *mask;
  int64_t sample, head, row, column; ///< strides of the mask
  int64_t mask_kind, causal;
  double factor;
  array1 *exp, *log;
  float *out, *logs;
  float *of_query, *of_key, *of_value; ///< of each head of queries
  int64_t parts; ///< into which the queries of a head are divided
  int64_t next, failed;
};

// Queries of a block, and keys whose gradients are computed at once.
enum { BLOCK_QUERIES = 64, BLOCK_KEYS = 256 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/// Floats up to the end of a line of the cache.
static int64_t whole_lines(int64_t floats) { return (floats + 15) / 16 * 16; }

static const uint16_t *head_of(const struct heads *h, int64_t sample,
                               int64_t head) {
  return h->x + sample * h->sample + head * h->head;
}

//===----------------------------------------------------------------------===//
// Matrices, packed once
//===----------------------------------------------------------------------===//

/// The right matrix of products or of weighted sums.
struct packed {
  struct exact by;
  float *panels;
};

static int64_t panels_of(const struct exact *p) {
  return (p->n + EXACT_COLUMNS - 1) / EXACT_COLUMNS;
}

/// Describes a matrix of k rows and n columns that is yet to be packed.
static struct exact right_of(int64_t k, int64_t n, int64_t bk, int64_t bn) {
  struct exact by = {.n = n, .k = k, .bk = bk, .bn = bn, .cn = 1};
  exact_set_terms(&by);
  by.packed = by.terms;
  return by;
}

/// Takes memory for a packed matrix from a room, whose end moves.
static struct packed room_for(const struct exact *by, float **room) {
  struct packed found = {*by, *room};
  *room += panels_of(by) * exact_panel_size(by);
  found.by.of_terms = (int32_t *)*room;
  *room += whole_lines(by->terms);
  return found;
}

/// How much that is, in floats.
static int64_t size_for(const struct exact *by) {
  return panels_of(by) * exact_panel_size(by) + whole_lines(by->terms);
}

/// Packs a matrix; of weighted sums with a unit for each row.
static void pack_right(struct packed *m, const uint16_t *b, int weighted) {
  static const float any; // that there are weights decides on units
  m->by.b = b;
  m->by.w = weighted ? &any : NULL;
  if (weighted)
    exact_find_units(&m->by, 0, m->by.k);
  for (int64_t j = 0; j < m->by.n; j += EXACT_COLUMNS)
    exact_pack_panel(&m->by, j,
                     m->panels + j / EXACT_COLUMNS * exact_panel_size(&m->by));
}

/// Multiplies m rows with the first columns of a packed matrix, and writes rows
/// that are apart. The rows are those of by: numbers in bfloat16, or k weights.
static void multiply_packed(const struct packed *right, struct exact by,
                            int64_t columns, float *left, float *c,
                            int64_t apart) {
  int64_t rows = by.w ? EXACT_TASK : EXACT_ROWS;
  by.n = columns;
  by.bytes = right->by.bytes;
  by.packed = right->by.packed;
  by.of_terms = right->by.of_terms;
  by.c = c;
  by.cm = apart;
  by.cn = 1;
  exact_set_terms(&by);
  exact_set_left(&by, left);
  for (int64_t i = 0; i < by.m; i += rows)
    for (int64_t q = 0; q < by.chunks; ++q)
      (by.w ? exact_pack_weights : exact_pack_rows)(&by, i, q);
  for (int64_t j = 0; j < columns; j += EXACT_COLUMNS)
    exact_multiply(&by, 0, by.m, j,
                   right->panels +
                       j / EXACT_COLUMNS * exact_panel_size(&right->by));
}

/// Floats that m rows of k numbers take, packed.
static int64_t left_size(int64_t m, int64_t k) {
  struct exact by = {.m = m, .k = k};
  exact_set_terms(&by);
  return whole_lines(exact_left_size(&by));
}

//===----------------------------------------------------------------------===//
// Weights of a block of queries
//===----------------------------------------------------------------------===//

/// Where a thread computes.
struct attending {
  const struct exact_attention *a;
  struct packed k, v;             ///< columns are keys
  struct packed by_key, by_value; ///< rows are keys
  float *left, *work, *sums;
};

/// Queries in succession of a head.
struct queries {
  int64_t sample, head, first, count;
  int64_t seen; ///< keys that any of them sees
};

/// Makes scores times the factor of scores, with a mask.
static void apply_mask(const struct exact_attention *a,
                       const struct queries *these, float *scores,
                       int64_t apart) {
  float factor = (float)a->factor;
  int64_t n = these->seen, step = a->column;
  for (int64_t r = 0; r < these->count; ++r) {
    float *x = scores + r * apart;
    int64_t to = these->sample * a->sample + these->head * a->head +
                 (these->first + r) * a->row;
    if (a->mask_kind == MASK_OF_BOOLS) {
      const uint8_t *mask = (const uint8_t *)a->mask + to;
      EACH_OF(n) x[i] = mask[i * step] ? x[i] * factor : -INFINITY;
    } else if (a->mask_kind == MASK_OF_FLOATS) {
      const float *mask = (const float *)a->mask + to;
      EACH_OF(n) x[i] = x[i] * factor + mask[i * step];
    } else {
      const uint16_t *mask = (const uint16_t *)a->mask + to;
      EACH_OF(n) {
        uint32_t bits = (uint32_t)mask[i * step] << 16;
        float more;
        memcpy(&more, &bits, sizeof more);
        x[i] = x[i] * factor + more;
      }
    }
  }
}

static int64_t rows_together(int64_t n) {
  return n < TOGETHER ? TOGETHER / n : 1;
}

/// Writes the weights of queries and the logarithms of their sums.
static void weigh(const struct attending *t, const struct queries *these,
                  float *weights, int64_t apart, float *logs) {
  const struct exact_attention *a = t->a;
  struct exact rows = {.m = these->count,
                       .k = a->size,
                       .a = head_of(&a->q, these->sample, these->head) +
                            these->first * a->q.row,
                       .am = a->q.row,
                       .ak = a->q.column};
  multiply_packed(&t->k, rows, these->seen, t->left, weights, apart);
  if (a->mask_kind != NO_MASK)
    apply_mask(a, these, weights, apart);
  struct scores s = {.n = these->seen,
                     .apart = apart,
                     .place = these->first,
                     .of_heads = a->causal ? a->queries : 0,
                     .factor =
                         a->mask_kind == NO_MASK ? (float)a->factor : 1.0f,
                     .exp = a->exp,
                     .log = a->log};
  int64_t together = rows_together(s.n);
  for (int64_t r = 0; r < these->count; r += together) {
    int64_t count = these->count - r < together ? these->count - r : together;
    weights_of(&s, count, weights + r * apart, weights + r * apart, logs + r,
               t->work, t->sums);
    s.place += count;
  }
  // Keys that a query does not see have no weight, even if its sum is NaN.
  for (int64_t r = 0; a->causal && r < these->count; ++r)
    for (int64_t i = these->first + r + 1; i < these->seen; ++i)
      weights[r * apart + i] = 0.0f;
}

/// The keys that queries up to one see.
static int64_t seen_up_to(const struct exact_attention *a, int64_t end) {
  return a->causal && end < a->keys ? end : a->keys;
}

//===----------------------------------------------------------------------===//
// Forward
//===----------------------------------------------------------------------===//

/// The blocks of a part of the queries of the heads that share keys.
static void attend_group(const struct attending *t, int64_t group, int64_t part,
                         float *weights) {
  const struct exact_attention *a = t->a;
  int64_t sharing = a->heads / a->of_keys;
  int64_t blocks = (a->queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
  for (int64_t task = part; task < sharing * blocks; task += a->parts) {
    int64_t first = task % blocks * BLOCK_QUERIES;
    int64_t head = group % a->of_keys * sharing + task / blocks;
    int64_t count = least(a->queries - first, BLOCK_QUERIES);
    struct queries these = {group / a->of_keys, head, first, count,
                            seen_up_to(a, first + count)};
    int64_t row = (these.sample * a->heads + head) * a->queries + first;
    weigh(t, &these, weights, these.seen, a->logs + row);
    struct exact sums = {
        .m = count, .k = these.seen, .w = weights, .am = these.seen, .ak = 1};
    multiply_packed(&t->by_value, sums, a->size, t->left,
                    a->out + row * a->size, a->size);
  }
}

static void exact_attention_part(void *data) {
  struct exact_attention *a = data;
  int64_t tasks = a->samples * a->of_keys * a->parts, task;
  int64_t rows = least(a->queries, BLOCK_QUERIES);
  int64_t scores = whole_lines(rows * a->keys), keys = a->keys;
  int64_t work = whole_lines(rows_together(keys) * keys + TOGETHER) + APART;
  int64_t left = left_size(rows, most(a->size, keys));
  struct exact k = right_of(a->size, keys, a->k.column, a->k.row);
  struct exact v = right_of(keys, a->size, a->v.row, a->v.column);
  float *room =
      take_room(size_for(&k) + size_for(&v) + scores + work + left + TOGETHER);
  if (!room) {
    __atomic_store_n(&a->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  float *at = room;
  struct attending t = {.a = a};
  t.k = room_for(&k, &at);
  t.by_value = room_for(&v, &at);
  t.left = at;
  t.sums = at + left;
  float *weights = t.sums + TOGETHER;
  t.work = weights + scores + APART;
  int64_t last = -1;
  while ((task = __atomic_fetch_add(&a->next, 1, __ATOMIC_RELAXED)) < tasks) {
    int64_t group = task / a->parts;
    if (group != last) {
      pack_right(&t.k, head_of(&a->k, group / a->of_keys, group % a->of_keys),
                 0);
      pack_right(&t.by_value,
                 head_of(&a->v, group / a->of_keys, group % a->of_keys), 1);
      last = group;
    }
    attend_group(&t, group, task % a->parts, weights);
  }
  give_room(room);
}

/// Makes queries of heads, if each has one: those that share keys are
/// multiplied together.
static void join_heads(struct exact_attention *a) {
  int64_t sharing = a->heads / a->of_keys;
  if (a->queries != 1 || a->causal)
    return;
  a->heads = a->of_keys;
  a->queries = sharing;
  a->q.row = a->q.head;
  a->q.head *= sharing;
  a->row = a->head;
  a->head *= sharing;
}

/// Writes results and logarithms. Returns as fast_mm does.
EXPORT int fast_exact_attention(struct exact_attention *a,
                                const struct threads *t) {
  join_heads(a);
  int64_t groups = a->samples * a->of_keys;
  int64_t blocks = a->heads / a->of_keys *
                   ((a->queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES);
  a->next = a->failed = 0;
  a->parts = groups < t->count ? least(t->count, blocks) : 1;
  share_out(t, groups * blocks * a->keys * a->size, exact_attention_part, a);
  return (int)a->failed;
}

//===----------------------------------------------------------------------===//
// Backward
//===----------------------------------------------------------------------===//

/// A sum over chunks of queries, for each key: levels of a binary counter.
struct over_queries {
  struct packed of; ///< a chunk of queries, or of gradients of results
  float *levels;
  int64_t waiting;
};

/// Makes gradients of scores of those of weights. A key without weight has
/// none, whatever its value is.
static void score_gradients(const struct attending *t, int64_t n, int64_t count,
                            int64_t apart, const float *weights, float *grad) {
  float factor = (float)t->a->factor;
  int64_t together = rows_together(n);
  for (int64_t r = 0, here; r < count; r += here) {
    here = least(count - r, together);
    for (int64_t i = 0; i < here; ++i) {
      const float *w = weights + (r + i) * apart, *g = grad + (r + i) * apart;
      float *to = t->work + i * n;
      for (int64_t e = 0; e < n; ++e)
        to[e] = w[e] == 0.0f ? 0.0f : g[e] * w[e];
    }
    sum_rows(here, n, t->work, t->sums);
    for (int64_t i = 0; i < here; ++i) {
      const float *w = weights + (r + i) * apart;
      float *g = grad + (r + i) * apart, sum = t->sums[i];
      for (int64_t e = 0; e < n; ++e)
        g[e] = w[e] == 0.0f ? 0.0f : (g[e] - sum) * w[e] * factor;
    }
  }
}

/// Adds the sums of a chunk of queries for the keys that it sees.
static void add_chunk(const struct attending *t, struct over_queries *s,
                      int64_t chunk, int64_t seen, int64_t count,
                      const uint16_t *b, const float *weights, int64_t apart) {
  int64_t size = t->a->size, level = t->a->keys * size;
  float *to = s->levels + s->waiting++ * level;
  s->of.by.k = count;
  exact_set_terms(&s->of.by);
  s->of.by.packed = s->of.by.terms;
  pack_right(&s->of, b, 1);
  for (int64_t j = 0; j < seen; j += BLOCK_KEYS) {
    struct exact sums = {.m = least(seen - j, BLOCK_KEYS),
                         .k = count,
                         .w = weights + j,
                         .am = 1,
                         .ak = apart};
    multiply_packed(&s->of, sums, size, t->left, to + j * size, size);
  }
  // Keys that no query of the chunk sees get nothing.
  memset(to + seen * size, 0, (size_t)(level - seen * size) * sizeof *to);
  for (int64_t c = chunk; c & 1; c >>= 1, --s->waiting, to -= level)
    for (int64_t i = 0; i < level; ++i)
      to[i - level] += to[i];
}

/// Adds up what waits, and writes it.
static void write_sum(const struct attending *t, struct over_queries *s,
                      float *y) {
  int64_t level = t->a->keys * t->a->size;
  for (; s->waiting > 1; --s->waiting) {
    float *to = s->levels + (s->waiting - 2) * level;
    for (int64_t i = 0; i < level; ++i)
      to[i] += to[i + level];
  }
  s->waiting = 0;
  memcpy(y, s->levels, (size_t)level * sizeof *y);
}

/// The gradients of a head; weights and of_weights have room for a chunk of
/// queries.
static void backward_head(struct attending *t, int64_t sample, int64_t head,
                          float *weights, float *of_weights,
                          struct over_queries *values,
                          struct over_queries *keys) {
  const struct exact_attention *a = t->a;
  int64_t apart = a->keys, all = sample * a->heads + head;
  const uint16_t *q = head_of(&a->q, sample, head);
  const uint16_t *grad = head_of(&a->grad, sample, head);
  float logs[BLOCK_QUERIES];
  for (int64_t at = 0; at < a->queries; at += EXACT_CHUNK) {
    int64_t end = least(at + EXACT_CHUNK, a->queries);
    int64_t seen = seen_up_to(a, end);
    for (int64_t i = at; i < end; i += BLOCK_QUERIES) {
      struct queries these = {sample, head, i, least(end - i, BLOCK_QUERIES),
                              0};
      these.seen = seen_up_to(a, i + these.count);
      float *w = weights + (i - at) * apart, *g = of_weights + (i - at) * apart;
      weigh(t, &these, w, apart, logs);
      struct exact rows = {.m = these.count,
                           .k = a->size,
                           .a = grad + i * a->grad.row,
                           .am = a->grad.row,
                           .ak = a->grad.column};
      multiply_packed(&t->v, rows, these.seen, t->left, g, apart);
      score_gradients(t, these.seen, these.count, apart, w, g);
      struct exact sums = {
          .m = these.count, .k = these.seen, .w = g, .am = apart, .ak = 1};
      multiply_packed(&t->by_key, sums, a->size, t->left,
                      a->of_query + (all * a->queries + i) * a->size, a->size);
      for (int64_t r = 0; r < these.count && these.seen < seen; ++r) {
        size_t rest = (size_t)(seen - these.seen) * sizeof *w;
        memset(w + r * apart + these.seen, 0, rest);
        memset(g + r * apart + these.seen, 0, rest);
      }
    }
    int64_t chunk = at / EXACT_CHUNK;
    add_chunk(t, values, chunk, seen, end - at, grad + at * a->grad.row,
              weights, apart);
    add_chunk(t, keys, chunk, seen, end - at, q + at * a->q.row, of_weights,
              apart);
  }
  write_sum(t, values, a->of_value + all * a->keys * a->size);
  write_sum(t, keys, a->of_key + all * a->keys * a->size);
}

/// The most levels that wait for a sum of so many chunks.
static int64_t waiting_levels(int64_t queries) {
  int64_t found = 1;
  for (int64_t c = (queries + EXACT_CHUNK - 1) / EXACT_CHUNK; c > 0; c >>= 1)
    ++found;
  return found;
}

static void exact_backward_part(void *data) {
  struct exact_attention *a = data;
  int64_t tasks = a->samples * a->heads, task, keys = a->keys;
  int64_t chunk = least(a->queries, EXACT_CHUNK);
  int64_t scores = whole_lines(chunk * keys);
  int64_t work = whole_lines(rows_together(keys) * keys + TOGETHER) + APART;
  int64_t levels = whole_lines(waiting_levels(a->queries) * keys * a->size);
  int64_t rows = least(a->queries, BLOCK_QUERIES);
  int64_t left = most(left_size(rows, most(a->size, keys)),
                      left_size(least(keys, BLOCK_KEYS), chunk));
  struct exact k = right_of(a->size, keys, a->k.column, a->k.row);
  struct exact v = right_of(a->size, keys, a->v.column, a->v.row);
  struct exact by_key = right_of(keys, a->size, a->k.row, a->k.column);
  struct exact q = right_of(chunk, a->size, a->q.row, a->q.column);
  struct exact g = right_of(chunk, a->size, a->grad.row, a->grad.column);
  float *room =
      take_room(size_for(&k) + size_for(&v) + size_for(&by_key) + size_for(&q) +
                size_for(&g) + 2 * (scores + levels) + left + TOGETHER + work);
  if (!room) {
    __atomic_store_n(&a->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  float *at = room;
  struct attending t = {.a = a};
  t.k = room_for(&k, &at);
  t.v = room_for(&v, &at);
  t.by_key = room_for(&by_key, &at);
  struct over_queries values = {.of = room_for(&g, &at)};
  struct over_queries of_keys = {.of = room_for(&q, &at)};
  values.levels = at;
  of_keys.levels = at + levels;
  float *weights = at + 2 * levels, *of_weights = weights + scores;
  t.left = of_weights + scores;
  t.sums = t.left + left;
  t.work = t.sums + TOGETHER + APART;
  int64_t sharing = a->heads / a->of_keys, last = -1;
  while ((task = __atomic_fetch_add(&a->next, 1, __ATOMIC_RELAXED)) < tasks) {
    int64_t sample = task / a->heads, head = task % a->heads;
    if (task / sharing != last) {
      const uint16_t *of_key = head_of(&a->k, sample, head / sharing);
      pack_right(&t.k, of_key, 0);
      pack_right(&t.v, head_of(&a->v, sample, head / sharing), 0);
      pack_right(&t.by_key, of_key, 1);
      last = task / sharing;
    }
    backward_head(&t, sample, head, weights, of_weights, &values, &of_keys);
  }
  give_room(room);
}

/// Writes the gradients of queries, and those of keys and values for each head
/// of queries. Returns as fast_mm does.
EXPORT int fast_exact_attention_backward(struct exact_attention *a,
                                         const struct threads *t) {
  a->next = a->failed = 0;
  share_out(t, a->samples * a->heads * a->queries * a->keys * a->size / 8,
            exact_backward_part, a);
  return (int)a->failed;
}

#endif
