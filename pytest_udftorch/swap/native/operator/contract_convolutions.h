//===- contract_convolutions.h - Convolutions in a fixed order ------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Convolutions of docs/reproduce/contract.md in up to three directions, and the
// gradients of their weights. The gradient of an input is a convolution of the
// result's gradient, spread out, with taps in reverse order. A ref_ function is
// the contract. What is fast gives the same bits: windows are copied from a
// padded input into the panels of contract.h, and never all of them are held.
// contract_depthwise.h has what sessions call.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_CONVOLUTIONS_H
#define UDFTORCH_CONTRACT_CONVOLUTIONS_H

#include "contract.h"

/// A convolution, or the gradient of its weight. contract/convolutions.py fills
/// it in as an array of 64-bit numbers.
struct convolution {
  int64_t batch, groups, rows, depth; ///< result and input channels of a group
  int64_t size[3], spread[3];         ///< of the input; from place to place
  int64_t before[3], room[3]; ///< padding in front; size when padded and spread
  int64_t taps[3], step[3], dilation[3], result[3];
  const float *x; ///< samples, channels, positions
  int64_t xs[5];
  const float *w; ///< weight; for its gradient the dense gradient of the result
  int64_t ws[6];  ///< strides of groups, rows, channels and taps of the weight
  const float *bias; ///< or null
  float *y; ///< dense: the result, or the weight's gradient by its own order
};

static int64_t volume(const int64_t *size) {
  return size[0] * size[1] * size[2];
}

/// The place of a number in three directions.
static void place(int64_t i, const int64_t *size, int64_t *at) {
  at[2] = i % size[2];
  at[1] = i / size[2] % size[1];
  at[0] = i / size[2] / size[1];
}

//===----------------------------------------------------------------------===//
// The contract
//===----------------------------------------------------------------------===//

/// What a tap of a position sees: +0 in padding and gaps.
static float ref_seen(const struct convolution *s, int64_t b, int64_t channel,
                      int64_t position, int64_t tap) {
  const float *x = s->x + b * s->xs[0] + channel * s->xs[1];
  int64_t p[3], t[3];
  place(position, s->result, p);
  place(tap, s->taps, t);
  for (int d = 0; d < 3; ++d) {
    int64_t at = p[d] * s->step[d] + t[d] * s->dilation[d] - s->before[d];
    if (at < 0 || at % s->spread[d] || at / s->spread[d] >= s->size[d])
      return 0.0f;
    x += at / s->spread[d] * s->xs[2 + d];
  }
  return *x;
}

/// A result is a product over the group's channels and the taps, plus the bias.
/// Returns as fast_mm does.
EXPORT int ref_convolution(const struct convolution *s) {
  int64_t taps = volume(s->taps), k = s->depth * taps, n = volume(s->result);
  float *seen = malloc(2 * (size_t)k * sizeof *seen), *w = seen + k;
  for (int64_t i = 0; seen && i < s->batch * s->groups * s->rows * n; ++i) {
    int64_t o = i / n % (s->groups * s->rows), g = o / s->rows, t[3];
    for (int64_t p = 0; p < k; ++p) {
      seen[p] = ref_seen(s, i / n / s->groups / s->rows,
                         g * s->depth + p / taps, i % n, p % taps);
      place(p % taps, s->taps, t);
      w[p] = s->w[g * s->ws[0] + o % s->rows * s->ws[1] + p / taps * s->ws[2] +
                  t[0] * s->ws[3] + t[1] * s->ws[4] + t[2] * s->ws[5]];
    }
    float y = ref_dot(k, w, 1, seen, 1);
    s->y[i] = s->bias ? y + s->bias[o] : y;
  }
  free(seen);
  return !seen;
}

/// A weight's gradient: for each sample a product over positions, and their
/// sum. Returns as fast_mm does.
EXPORT int ref_weight_gradient(const struct convolution *s) {
  int64_t taps = volume(s->taps), k = volume(s->result), c = s->depth * taps;
  float *seen = malloc((size_t)(k + s->batch) * sizeof *seen), *each = seen + k;
  for (int64_t i = 0; seen && i < s->groups * s->rows * c; ++i) {
    int64_t g = i / c / s->rows;
    for (int64_t b = 0; b < s->batch; ++b) {
      for (int64_t p = 0; p < k; ++p)
        seen[p] = ref_seen(s, b, g * s->depth + i % c / taps, p, i % c % taps);
      each[b] =
          ref_dot(k, s->w + (b * s->groups * s->rows + i / c) * k, 1, seen, 1);
    }
    s->y[i] = ref_sum(s->batch, each, 1);
  }
  free(seen);
  return !seen;
}

//===----------------------------------------------------------------------===//
// Windows
//===----------------------------------------------------------------------===//

// Columns are copied in pieces of up to so many.
enum { WIDEST = 16 };

/// Copies that make a row of a panel: to[at..] = x[from..].
struct copies {
  int64_t count, width;
  int64_t at[COLUMNS], from[COLUMNS];
};

/// Plans copies of columns, which lie at the given places of the padded input.
/// A copy may run over into columns of the next one, which comes later.
static void plan(const int64_t *column, struct copies *c) {
  c->count = COLUMNS + 1;
  for (int64_t width = 1; width <= WIDEST; width *= width < 4 ? 4 : 2) {
    int64_t count = 0, i = 0;
    while (i < COLUMNS) {
      int64_t run = 1;
      while (run < width && i + run < COLUMNS &&
             column[i + run] == column[i] + run)
        ++run;
      i += run;
      ++count;
    }
    if (count < c->count) {
      c->count = count;
      c->width = width;
    }
  }
  for (int64_t n = 0, i = 0; n < c->count; ++n) {
    int64_t run = 1;
    c->at[n] = i;
    c->from[n] = column[i];
    while (run < c->width && i + run < COLUMNS &&
           column[i + run] == column[i] + run)
      ++run;
    i += run;
  }
}

static inline void copy_windows(const struct copies *c, size_t width, int64_t k,
                                const int64_t *term, const float *x,
                                float *to) {
  for (int64_t p = 0; p < k; ++p, to += COLUMNS)
    for (int64_t n = 0; n < c->count; ++n)
      memcpy(to + c->at[n], x + term[p] + c->from[n], width * sizeof *to);
}

/// Fills a panel: term p of column j is x[term[p] + column[j]]. The panel and x
/// have WIDEST elements more.
static void pack_windows(const int64_t *column, int64_t k, const int64_t *term,
                         const float *x, float *to) {
  struct copies c;
  plan(column, &c);
  if (c.width == 1)
    copy_windows(&c, 1, k, term, x, to);
  else if (c.width == 4)
    copy_windows(&c, 4, k, term, x, to);
  else if (c.width == 8)
    copy_windows(&c, 8, k, term, x, to);
  else
    copy_windows(&c, 16, k, term, x, to);
}

//===----------------------------------------------------------------------===//
// Convolutions, fast
//===----------------------------------------------------------------------===//

// Panels of a task stay in the second-level cache.
enum { PANELS = 8, PANEL_ELEMENTS = 1 << 16 };

struct windows {
  const struct convolution *s;
  int64_t n, k;   ///< columns and terms of a product
  int64_t tiles;  ///< of rows
  int64_t lefts;  ///< rows are packed for each group, or each sample's groups
  int64_t block;  ///< panels, or tiles of rows, of one task
  const float *x; ///< padded input; the input itself if nothing is padded
  float *room, *left; ///< for the padded input, or null; packed rows
  /// Where positions and terms of the weight lie in the padded input, and terms
  /// in the weight.
  int64_t *position, *tap, *weight;
  int64_t next;
  int32_t phase, failed;
};

/// Where in three directions, of which each has a stride, places lie.
static void list_places(const int64_t *size, const int64_t *stride,
                        int64_t *out) {
  for (int64_t d = 0; d < size[0]; ++d)
    for (int64_t h = 0; h < size[1]; ++h)
      for (int64_t w = 0; w < size[2]; ++w)
        *out++ = d * stride[0] + h * stride[1] + w * stride[2];
}

/// Fills the tables; a channel's places come after those of the one before.
static void list_windows(struct windows *w) {
  const struct convolution *s = w->s;
  const int64_t line[3] = {s->room[1] * s->room[2], s->room[2], 1};
  int64_t of_step[3], of_tap[3], taps = volume(s->taps);
  for (int d = 0; d < 3; ++d) {
    of_step[d] = line[d] * s->step[d];
    of_tap[d] = line[d] * s->dilation[d];
  }
  list_places(s->result, of_step, w->position);
  list_places(s->taps, of_tap, w->tap);
  list_places(s->taps, s->ws + 3, w->weight);
  for (int64_t i = taps; i < s->depth * taps; ++i) {
    w->tap[i] = w->tap[i - taps] + volume(s->room);
    w->weight[i] = w->weight[i - taps] + s->ws[2];
  }
}

/// Copies a channel of a sample, padded.
static void pad_channel(const struct convolution *s, int64_t i, float *to) {
  int64_t channels = s->groups * s->depth, all = volume(s->room), spread;
  const float *from = s->x + i / channels * s->xs[0] + i % channels * s->xs[1];
  memset(to, 0, (size_t)all * sizeof *to);
  int64_t begin = 0, end = s->size[2], before = s->before[2];
  spread = s->spread[2];
  if (before < 0)
    begin = (spread - 1 - before) / spread;
  if (before + (end - 1) * spread >= s->room[2])
    end = (s->room[2] - before + spread - 1) / spread;
  for (int64_t d = 0; d < s->size[0]; ++d)
    for (int64_t h = 0; h < s->size[1]; ++h) {
      int64_t deep = s->before[0] + d * s->spread[0];
      int64_t high = s->before[1] + h * s->spread[1];
      if (deep < 0 || deep >= s->room[0] || high < 0 || high >= s->room[1])
        continue;
      float *line = to + (deep * s->room[1] + high) * s->room[2] + before;
      const float *in = from + d * s->xs[2] + h * s->xs[3];
      if (spread == 1 && s->xs[4] == 1)
        for (int64_t w = begin; w < end; ++w)
          line[w] = in[w];
      else
        for (int64_t w = begin; w < end; ++w)
          line[w * spread] = in[w * s->xs[4]];
    }
}

/// Whether the terms of a row of the weight are equally far apart.
static int is_even(const struct convolution *s) {
  int64_t apart = s->ws[5], taps = volume(s->taps);
  return taps == 1 || (s->ws[2] == taps * apart &&
                       s->ws[3] == s->taps[1] * s->taps[2] * apart &&
                       s->ws[4] == s->taps[2] * apart);
}

/// Packs a tile of rows of the weight.
static void pack_weight(const struct windows *w, int64_t i, float *to) {
  const struct convolution *s = w->s;
  int64_t row = i % w->tiles * ROWS;
  int64_t rows = s->rows - row < ROWS ? s->rows - row : ROWS;
  const float *from = s->w + i / w->tiles * s->ws[0] + row * s->ws[1];
  if (is_even(s)) {
    int64_t apart = volume(s->taps) == 1 ? s->ws[2] : s->ws[5];
    pack(w->k, rows, ROWS, from, apart, s->ws[1], to);
    return;
  }
  for (int64_t p = 0; p < w->k; ++p, to += ROWS) {
    for (int64_t r = 0; r < rows; ++r)
      to[r] = from[w->weight[p] + r * s->ws[1]];
    for (int64_t r = rows; r < ROWS; ++r)
      to[r] = 0.0f;
  }
}

/// Packs a tile of rows of the gradient of the result.
static void pack_gradient(const struct windows *w, int64_t i, float *to) {
  const struct convolution *s = w->s;
  int64_t row = i % w->tiles * ROWS;
  int64_t rows = s->rows - row < ROWS ? s->rows - row : ROWS;
  pack(w->k, rows, ROWS, s->w + (i / w->tiles * s->rows + row) * w->k, 1, w->k,
       to);
}

/// Pads the input, and packs rows.
static void prepare(struct windows *w, void (*pack_rows)(const struct windows *,
                                                         int64_t, float *)) {
  const struct convolution *s = w->s;
  int64_t channels = w->room ? s->batch * s->groups * s->depth : 0, task;
  while ((task = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) <
         channels + w->lefts * w->tiles)
    if (task < channels)
      pad_channel(s, task, w->room + task * volume(s->room));
    else
      pack_rows(w, task - channels, w->left + (task - channels) * w->k * ROWS);
}

/// Writes rows of a tile, whose columns are positions of one sample after the
/// other.
static void write_positions(const struct convolution *s, int64_t g, int64_t row,
                            int64_t rows, int64_t column, tile from) {
  int64_t n = volume(s->result), left = s->batch * n - column;
  left = left < COLUMNS ? left : COLUMNS;
  for (int64_t c = 0, here; c < left; c += here) {
    int64_t b = (column + c) / n, at = (column + c) % n;
    here = n - at < left - c ? n - at : left - c;
    for (int64_t r = 0; r < rows; ++r) {
      int64_t o = g * s->rows + row + r;
      float *y = s->y + (b * s->groups * s->rows + o) * n + at;
      if (s->bias)
        for (int64_t i = 0; i < here; ++i)
          y[i] = from[r][c + i] + s->bias[o];
      else
        for (int64_t i = 0; i < here; ++i)
          y[i] = from[r][c + i];
    }
  }
}

/// Whether a panel is memory of the input: its columns lie side by side there,
/// and their terms are equally far apart.
static int is_there(const struct windows *w, const int64_t *column,
                    int64_t first) {
  if (volume(w->s->taps) != 1 || first + COLUMNS > w->n)
    return 0;
  for (int64_t i = 1; i < COLUMNS; ++i)
    if (column[i] != column[0] + i)
      return 0;
  return 1;
}

/// Fills a panel as pack_windows does, and reads no more than its columns.
static void pack_exactly(const int64_t *column, int64_t k, const int64_t *term,
                         const float *x, float *to) {
  for (int64_t p = 0; p < k; ++p, to += COLUMNS)
    for (int64_t i = 0; i < COLUMNS; ++i)
      to[i] = x[term[p] + column[i]];
}

static void convolution_block(const struct windows *w, int64_t g, int64_t first,
                              int64_t end, float *panels) {
  const struct convolution *s = w->s;
  int64_t n = volume(s->result), channel = volume(s->room);
  const float *panel[PANELS];
  tile level[LEVELS + 1];
  for (int64_t j = first; j < end; ++j) {
    int64_t column[COLUMNS] = {0}, c = j * COLUMNS;
    int64_t b = c / n, at = c % n;
    for (int64_t i = 0; i < COLUMNS && c + i < w->n; ++i) {
      column[i] = (b * s->groups + g) * s->depth * channel + w->position[at];
      if (++at == n) {
        at = 0;
        ++b;
      }
    }
    float *to = panels + (j - first) * w->k * COLUMNS;
    panel[j - first] = to;
    if (is_there(w, column, c))
      panel[j - first] = w->x + column[0];
    else if (w->room)
      pack_windows(column, w->k, w->tap, w->x, to);
    else
      pack_exactly(column, w->k, w->tap, w->x, to);
  }
  for (int64_t i = 0; i < w->tiles; ++i) {
    int64_t rows = s->rows - i * ROWS < ROWS ? s->rows - i * ROWS : ROWS;
    const float *left = w->left + (g * w->tiles + i) * w->k * ROWS;
    for (int64_t j = 0; j < end - first; ++j) {
      int is_packed = panel[j] == panels + j * w->k * COLUMNS;
      product_tile(w->k, left, panel[j], is_packed ? COLUMNS : channel, rows,
                   level);
      write_positions(s, g, i * ROWS, rows, (first + j) * COLUMNS, level[0]);
    }
  }
}

static void convolution_part(void *data) {
  struct windows *w = data;
  if (w->phase == 0) {
    prepare(w, pack_weight);
    return;
  }
  float *panels = take_room(w->block * w->k * COLUMNS + WIDEST);
  if (!panels) {
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  int64_t across = (w->n + COLUMNS - 1) / COLUMNS, task;
  int64_t blocks = (across + w->block - 1) / w->block;
  while ((task = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) <
         w->s->groups * blocks) {
    int64_t first = task % blocks * w->block, end = first + w->block;
    convolution_block(w, task / blocks, first, end < across ? end : across,
                      panels);
  }
  give_room(panels);
}

/// Adds the product of a sample to a tree over samples, of which each tile of
/// rows has one.
static void join_sample(int64_t rows, int64_t b, tile *tree, tile product) {
  int64_t waiting = __builtin_popcountll((uint64_t)b);
  if (!(b & 1)) {
    memcpy(tree[waiting], product, (size_t)rows * sizeof product[0]);
    return;
  }
  join_tiles(rows, tree[--waiting], product);
  for (b >>= 1; b & 1; b >>= 1, --waiting)
    join_tiles(rows, tree[waiting - 1], tree[waiting]);
}

/// The levels of a tree over samples.
static int64_t levels_of(int64_t batch) {
  return 65 - __builtin_clzll((uint64_t)batch);
}

static void gradient_block(const struct windows *w, int64_t task, float *panel,
                           tile *trees) {
  const struct convolution *s = w->s;
  int64_t across = (w->n + COLUMNS - 1) / COLUMNS;
  int64_t g = task % s->groups, j = task / s->groups % across * COLUMNS;
  int64_t first = task / s->groups / across * w->block, end = first + w->block;
  int64_t levels = levels_of(s->batch), column[COLUMNS] = {0};
  int64_t columns = w->n - j < COLUMNS ? w->n - j : COLUMNS;
  tile level[LEVELS + 1];
  memcpy(column, w->tap + j, (size_t)columns * sizeof *column);
  end = end < w->tiles ? end : w->tiles;
  for (int64_t b = 0; b < s->batch; ++b) {
    int64_t sample = b * s->groups + g;
    const float *x = w->x + sample * s->depth * volume(s->room);
    if (!w->room)
      pack(w->k, columns, COLUMNS, x + j * w->k, 1, w->k, panel);
    else
      pack_windows(column, w->k, w->position, x, panel);
    for (int64_t i = first; i < end; ++i) {
      int64_t rows = s->rows - i * ROWS < ROWS ? s->rows - i * ROWS : ROWS;
      product_tile(w->k, w->left + (sample * w->tiles + i) * w->k * ROWS, panel,
                   COLUMNS, rows, level);
      join_sample(rows, b, trees + (i - first) * levels, level[0]);
    }
  }
  for (int64_t i = first; i < end; ++i) {
    tile *tree = trees + (i - first) * levels;
    int64_t rows = s->rows - i * ROWS < ROWS ? s->rows - i * ROWS : ROWS;
    int64_t waiting = __builtin_popcountll((uint64_t)s->batch);
    while (--waiting > 0)
      join_tiles(rows, tree[waiting - 1], tree[waiting]);
    for (int64_t r = 0; r < rows; ++r)
      memcpy(s->y + (g * s->rows + i * ROWS + r) * w->n + j, tree[0][r],
             (size_t)columns * sizeof(float));
  }
}

static void gradient_part(void *data) {
  struct windows *w = data;
  if (w->phase == 0) {
    prepare(w, pack_gradient);
    return;
  }
  int64_t trees = w->block * levels_of(w->s->batch) * ROWS * COLUMNS;
  float *room = take_room(trees + w->k * COLUMNS + WIDEST);
  if (!room) {
    __atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  int64_t across = (w->n + COLUMNS - 1) / COLUMNS, task;
  int64_t tasks =
      w->s->groups * across * ((w->tiles + w->block - 1) / w->block);
  while ((task = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < tasks)
    gradient_block(w, task, room + trees, (tile *)room);
  give_room(room);
}

/// Whether each window is one position, in the order in which they lie.
static int is_plain(const struct convolution *s) {
  int64_t apart = 1;
  for (int d = 2; d >= 0; --d) {
    if (s->taps[d] != 1 || s->before[d] || s->step[d] != 1 ||
        s->room[d] != s->size[d] || s->spread[d] != 1 ||
        (s->size[d] != 1 && s->xs[2 + d] != apart))
      return 0;
    apart *= s->size[d];
  }
  return s->xs[1] == apart && s->xs[0] == apart * s->groups * s->depth;
}

/// Makes room, fills it, and computes; returns as fast_mm does.
static int run_windows(struct windows *w, void (*part)(void *),
                       const struct threads *t) {
  const struct convolution *s = w->s;
  int64_t terms = s->depth * volume(s->taps), positions = volume(s->result);
  int64_t input = 0;
  int64_t work = s->batch * s->groups * s->rows * terms * positions / 64;
  w->tiles = (s->rows + ROWS - 1) / ROWS;
  if (!is_plain(s))
    input = s->batch * s->groups * s->depth * volume(s->room) + WIDEST;
  input = (input + ROOM_LINE - 1) / ROOM_LINE * ROOM_LINE;
  float *room = take_room(input + w->lefts * w->tiles * ROWS * w->k);
  w->room = input ? room : NULL;
  w->x = input ? room : s->x;
  w->position = malloc((size_t)(positions + 2 * terms) * sizeof(int64_t));
  w->failed = !room || !w->position;
  if (!w->failed) {
    w->left = room + input;
    w->tap = w->position + positions;
    w->weight = w->tap + terms;
    list_windows(w);
    for (; w->phase < 2; ++w->phase) {
      w->next = 0;
      share_out(t, work, part, w);
    }
  }
  free(w->position);
  give_room(room);
  return w->failed;
}

//===----------------------------------------------------------------------===//
// Products with few positions
//===----------------------------------------------------------------------===//

// So many positions of all samples are few.
enum { FEW = 32 };

struct few {
  const struct convolution *s;
  float *left; ///< the positions' channels, packed as rows
  int64_t next;
  int32_t failed;
};

/// Packs positions, which lie in samples of n each, as rows of tiles.
static void pack_positions(const struct convolution *s, int64_t n, float *to) {
  int64_t count = s->batch * n;
  for (int64_t i = 0; i < count; i += ROWS)
    for (int64_t p = 0; p < s->depth; ++p, to += ROWS)
      for (int64_t r = 0; r < ROWS; ++r) {
        int64_t at = i + r;
        to[r] = at < count ? s->x[at / n * s->xs[0] + p * n + at % n] : 0.0f;
      }
}

static void few_part(void *data) {
  struct few *f = data;
  const struct convolution *s = f->s;
  int64_t k = s->depth, n = volume(s->result), count = s->batch * n, task;
  float *packed = take_room(k * COLUMNS);
  tile level[LEVELS + 1];
  if (!packed) {
    __atomic_store_n(&f->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  while ((task = __atomic_fetch_add(&f->next, 1, __ATOMIC_RELAXED)) <
         (s->rows + COLUMNS - 1) / COLUMNS) {
    int64_t j = task * COLUMNS, apart = COLUMNS;
    int64_t columns = s->rows - j < COLUMNS ? s->rows - j : COLUMNS;
    const float *w = s->w + j * s->ws[1], *panel = packed;
    if (s->ws[1] == 1 && columns == COLUMNS) {
      panel = w;
      apart = s->ws[2];
    } else {
      pack(k, columns, COLUMNS, w, s->ws[2], s->ws[1], packed);
    }
    for (int64_t i = 0; i < count; i += ROWS) {
      int64_t rows = count - i < ROWS ? count - i : ROWS;
      product_tile(k, f->left + i * k, panel, apart, rows, level);
      for (int64_t r = 0; r < rows; ++r) {
        float *y = s->y + ((i + r) / n * s->rows + j) * n + (i + r) % n;
        for (int64_t c = 0; c < columns; ++c)
          y[c * n] = s->bias ? level[0][r][c] + s->bias[j + c] : level[0][r][c];
      }
    }
  }
  give_room(packed);
}

/// A convolution of few positions by themselves: the weight's rows are the
/// columns of tiles. Returns as fast_mm does.
static int convolve_few(const struct convolution *s, const struct threads *t) {
  int64_t n = volume(s->result), tiles = (s->batch * n + ROWS - 1) / ROWS;
  struct few f = {.s = s, .left = take_room(tiles * ROWS * s->depth)};
  if (!f.left)
    return 1;
  pack_positions(s, n, f.left);
  share_out(t, s->batch * n * s->rows * s->depth / 64, few_part, &f);
  give_room(f.left);
  return f.failed;
}

/// A convolution, by tiles of rows and columns; returns as fast_mm does.
static int convolve_tiles(const struct convolution *s,
                          const struct threads *t) {
  struct windows w = {.s = s,
                      .n = s->batch * volume(s->result),
                      .k = s->depth * volume(s->taps),
                      .lefts = s->groups};
  int64_t across = (w.n + COLUMNS - 1) / COLUMNS * s->groups / (2 * t->count);
  w.block = PANEL_ELEMENTS / (w.k * COLUMNS);
  w.block = w.block < across ? w.block : across;
  w.block = w.block < 1 ? 1 : w.block < PANELS ? w.block : PANELS;
  return run_windows(&w, convolution_part, t);
}

/// The gradient of a weight, by tiles; returns as fast_mm does.
static int gradient_tiles(const struct convolution *s,
                          const struct threads *t) {
  struct windows w = {.s = s,
                      .n = s->depth * volume(s->taps),
                      .k = volume(s->result),
                      .lefts = s->batch * s->groups};
  int64_t across = (w.n + COLUMNS - 1) / COLUMNS * s->groups;
  int64_t apart = t->count < 2 ? 1 : (2 * t->count + across - 1) / across;
  w.block = ((s->rows + ROWS - 1) / ROWS + apart - 1) / apart;
  return run_windows(&w, gradient_part, t);
}

#endif
