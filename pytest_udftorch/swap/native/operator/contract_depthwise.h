//===- contract_depthwise.h - Convolutions channel by channel -------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Convolutions whose groups have one channel of the result, with the bits of
// contract_convolutions.h. Vectors go along positions, and for the gradient of
// a weight along taps, so that nothing is copied but the padded input.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_DEPTHWISE_H
#define UDFTORCH_CONTRACT_DEPTHWISE_H

#include "contract_convolutions.h"

// Positions that are computed at once. The last vectors of a plane read beyond
// it, and every second position of two of them.
enum { AT_ONCE = 4 * LANES, BEYOND = 2 * AT_ONCE };

// A task has so many planes.
enum { PLANES = 8 };

/// A convolution as planes: the channels of a group of a sample.
struct planes {
  const struct convolution *s;
  int64_t k;               ///< terms of a product
  int64_t tap[CHUNK];      ///< where terms lie in the padded planes
  int64_t weight[CHUNK];   ///< where they lie in the weight
  const int64_t *position; ///< where windows lie; for the gradient alone
  void (*run)(const struct planes *, int64_t, float *);
  int64_t next;
  int32_t failed;
};

/// Products of a weight and the terms of so many vectors of positions, which
/// are STEP places apart.
#define PLANE_TERMS(STEP, HERE)                                                \
  static void terms_##STEP##_##HERE(const struct planes *p, const float *w,    \
                                    const float *x, float *y) {                \
    lanes acc[HERE];                                                           \
    EACH_LEVEL for (int j = 0; j < HERE; ++j) acc[j] = 0.0f;                   \
    for (int64_t i = 0; i < p->k; ++i) {                                       \
      const float *from = x + p->tap[i];                                       \
      lanes one = w[i];                                                        \
      EACH_LEVEL for (int j = 0; j < HERE; ++j) acc[j] =                       \
          __builtin_elementwise_fma(one, seen_##STEP(from + j * STEP * LANES), \
                                    acc[j]);                                   \
    }                                                                          \
    EACH_LEVEL for (int j = 0; j < HERE; ++j) * (lanes *)(y + j * LANES) =     \
        acc[j];                                                                \
  }

#define seen_1(x) vector_at(x)
#define seen_2(x)                                                              \
  __builtin_shufflevector(vector_at(x), vector_at((x) + LANES), 0, 2, 4, 6, 8, \
                          10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)

PLANE_TERMS(1, 1)
PLANE_TERMS(1, 2)
PLANE_TERMS(1, 4)
PLANE_TERMS(2, 1)
PLANE_TERMS(2, 2)

/// The products of n positions in a line, one step apart. What follows them in
/// y is overwritten.
static void plane_line(const struct planes *p, const float *w, int64_t n,
                       const float *x, float *y) {
  int64_t step = p->s->step[2];
  for (int64_t at = 0, here; at < n; at += here) {
    const float *from = x + at * step;
    here = n - at > 2 * LANES && step == 1 ? 4 * LANES
           : n - at > LANES                ? 2 * LANES
                                           : LANES;
    if (step == 2)
      (here == LANES ? terms_2_1 : terms_2_2)(p, w, from, y + at);
    else if (here == 4 * LANES)
      terms_1_4(p, w, from, y + at);
    else
      (here == LANES ? terms_1_1 : terms_1_2)(p, w, from, y + at);
  }
}

static void write_line(const struct convolution *s, int64_t g, const float *x,
                       float *y) {
  int64_t n = s->result[2];
  if (s->bias)
    for (int64_t i = 0; i < n; ++i)
      y[i] = x[i] + s->bias[g];
  else
    for (int64_t i = 0; i < n; ++i)
      y[i] = x[i];
}

/// Copies the planes of a group of a sample, padded.
static void pad_planes(const struct convolution *s, int64_t i, float *x) {
  for (int64_t c = 0; c < s->depth; ++c)
    pad_channel(s, i * s->depth + c, x + c * volume(s->room));
}

/// A plane of the result. Where windows are one place apart in every direction
/// of a plane, its lines are computed as one, with what is between them.
static void convolve_plane(const struct planes *p, int64_t i, float *x) {
  const struct convolution *s = p->s;
  float *found = x + s->depth * volume(s->room) + BEYOND, w[CHUNK];
  float *y = s->y + i * volume(s->result);
  int64_t g = i % s->groups, line = s->room[2], high = s->result[1];
  int is_one = s->step[1] == 1 && s->step[2] == 1;
  for (int64_t t = 0; t < p->k; ++t)
    w[t] = s->w[g * s->ws[0] + p->weight[t]];
  pad_planes(s, i, x);
  for (int64_t d = 0; d < s->result[0]; ++d) {
    const float *from = x + d * s->step[0] * s->room[1] * line;
    if (is_one)
      plane_line(p, w, (high - 1) * line + s->result[2], from, found);
    for (int64_t h = 0; h < high; ++h, y += s->result[2]) {
      if (!is_one)
        plane_line(p, w, s->result[2], from + h * s->step[1] * line, found);
      write_line(s, g, is_one ? found + h * line : found, y);
    }
  }
}

//===----------------------------------------------------------------------===//
// Gradients of weights
//===----------------------------------------------------------------------===//

// Taps of a line are one vector; there are up to so many lines.
enum { TAP_LANES = 8, TAP_LINES = 7 };
typedef float taps __attribute__((ext_vector_type(TAP_LANES), aligned(4)));

/// Sums over positions of one chunk, or of two that follow each other, for each
/// line of taps.
#define TAP_SUMS(LINES)                                                        \
  static void tap_sums_##LINES(int64_t n, const int64_t *position,             \
                               const int64_t *line, const float *g,            \
                               const float *x, taps *y) {                      \
    taps acc[LINES];                                                           \
    EACH_LEVEL for (int r = 0; r < LINES; ++r) acc[r] = 0.0f;                  \
    for (int64_t i = 0; i < n; ++i) {                                          \
      taps one = g[i];                                                         \
      const float *from = x + position[i];                                     \
      EACH_LEVEL for (int r = 0; r < LINES; ++r) acc[r] =                      \
          __builtin_elementwise_fma(one, *(const taps *)(from + line[r]),      \
                                    acc[r]);                                   \
    }                                                                          \
    EACH_LEVEL for (int r = 0; r < LINES; ++r) y[r] = acc[r];                  \
  }                                                                            \
  static void tap_pairs_##LINES(const int64_t *position, const int64_t *line,  \
                                const float *g, const float *x, taps *y,       \
                                taps *z) {                                     \
    taps acc[LINES], two[LINES];                                               \
    EACH_LEVEL for (int r = 0; r < LINES; ++r) acc[r] = two[r] = 0.0f;         \
    for (int64_t i = 0; i < CHUNK; ++i) {                                      \
      taps one = g[i], other = g[i + CHUNK];                                   \
      const float *from = x + position[i], *at = x + position[i + CHUNK];      \
      EACH_LEVEL for (int r = 0; r < LINES; ++r) {                             \
        acc[r] = __builtin_elementwise_fma(                                    \
            one, *(const taps *)(from + line[r]), acc[r]);                     \
        two[r] = __builtin_elementwise_fma(                                    \
            other, *(const taps *)(at + line[r]), two[r]);                     \
      }                                                                        \
    }                                                                          \
    EACH_LEVEL for (int r = 0; r < LINES; ++r) {                               \
      y[r] = acc[r];                                                           \
      z[r] = two[r];                                                           \
    }                                                                          \
  }

TAP_SUMS(1)
TAP_SUMS(3)
TAP_SUMS(5)
TAP_SUMS(7)

static void tap_sums(int64_t lines, int64_t n, const int64_t *position,
                     const int64_t *line, const float *g, const float *x,
                     taps *y) {
  (lines == 1   ? tap_sums_1
   : lines == 3 ? tap_sums_3
   : lines == 5 ? tap_sums_5
                : tap_sums_7)(n, position, line, g, x, y);
}

static void tap_pairs(int64_t lines, const int64_t *position,
                      const int64_t *line, const float *g, const float *x,
                      taps *y, taps *z) {
  (lines == 1   ? tap_pairs_1
   : lines == 3 ? tap_pairs_3
   : lines == 5 ? tap_pairs_5
                : tap_pairs_7)(position, line, g, x, y, z);
}

typedef taps tap_lines[TAP_LINES];

static void join_lines(tap_lines to, tap_lines rest) {
  for (int r = 0; r < TAP_LINES; ++r)
    to[r] += rest[r];
}

/// Carries the sum of number count, the last of those that wait, into a binary
/// counter; returns how many wait.
static int64_t carry_lines(int64_t count, int64_t waiting, tap_lines *level) {
  for (; count & 1; count >>= 1, --waiting)
    join_lines(level[waiting - 2], level[waiting - 1]);
  return waiting;
}

static void join_all_lines(int64_t waiting, tap_lines *level) {
  for (; waiting > 1; --waiting)
    join_lines(level[waiting - 2], level[waiting - 1]);
}

/// The product of a sample, in the first of the levels.
static void sample_taps(const struct planes *p, const int64_t *line,
                        const float *g, const float *x, tap_lines *level) {
  const struct convolution *s = p->s;
  int64_t lines = s->taps[0] * s->taps[1], n = volume(s->result);
  int64_t waiting = 0, count = 0, at = 0;
  for (; n - at >= 2 * CHUNK; at += 2 * CHUNK, count += 2) {
    tap_lines pair[2] = {{0}};
    tap_pairs(lines, p->position + at, line, g + at, x, pair[0], pair[1]);
    for (int64_t e = 0; e < 2; ++e) {
      memcpy(level[waiting++], pair[e], sizeof pair[e]);
      waiting = carry_lines(count + e, waiting, level);
    }
  }
  for (; at < n; at += CHUNK, ++count) {
    int64_t here = n - at < CHUNK ? n - at : CHUNK;
    memset(level[waiting], 0, sizeof level[waiting]);
    tap_sums(lines, here, p->position + at, line, g + at, x, level[waiting++]);
    waiting = carry_lines(count, waiting, level);
  }
  join_all_lines(waiting, level);
}

/// The gradient of the weight of a group.
static void gradient_plane(const struct planes *p, int64_t g, float *x) {
  const struct convolution *s = p->s;
  int64_t n = volume(s->result), lines = s->taps[0] * s->taps[1];
  int64_t line[TAP_LINES] = {0}, waiting = 0;
  tap_lines level[LEVELS + 1], tree[LEVELS + 1];
  for (int64_t r = 0; r < lines; ++r)
    line[r] = p->tap[r * s->taps[2]];
  for (int64_t b = 0; b < s->batch; ++b) {
    int64_t i = b * s->groups + g;
    pad_planes(s, i, x);
    sample_taps(p, line, s->w + i * n, x, level);
    memcpy(tree[waiting++], level[0], sizeof level[0]);
    waiting = carry_lines(b, waiting, tree);
  }
  join_all_lines(waiting, tree);
  for (int64_t r = 0; r < lines; ++r)
    memcpy(s->y + (g * lines + r) * s->taps[2], &tree[0][r],
           (size_t)s->taps[2] * sizeof(float));
}

//===----------------------------------------------------------------------===//
// What sessions call
//===----------------------------------------------------------------------===//

static void planes_part(void *data) {
  struct planes *p = data;
  const struct convolution *s = p->s;
  int64_t count = p->position ? s->groups : s->batch * s->groups, task;
  int64_t input = s->depth * volume(s->room);
  int64_t found = s->result[1] * s->room[2] + s->result[2];
  float *room = take_room(input + BEYOND + found + BEYOND);
  if (!room) {
    __atomic_store_n(&p->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  // Numbers beyond the planes take part in what is not written.
  memset(room + input, 0, BEYOND * sizeof *room);
  while ((task = __atomic_fetch_add(&p->next, PLANES, __ATOMIC_RELAXED)) <
         count)
    for (int64_t i = task; i < task + PLANES && i < count; ++i)
      p->run(p, i, room);
  give_room(room);
}

/// Runs the planes of a convolution; returns as fast_mm does.
static int run_planes(struct planes *p, const struct threads *t) {
  const struct convolution *s = p->s;
  int64_t of_tap[3] = {s->room[1] * s->room[2], s->room[2], 1};
  int64_t taps = volume(s->taps);
  for (int d = 0; d < 3; ++d)
    of_tap[d] *= s->dilation[d];
  list_places(s->taps, of_tap, p->tap);
  list_places(s->taps, s->ws + 3, p->weight);
  for (int64_t i = taps; i < p->k; ++i) {
    p->tap[i] = p->tap[i - taps] + volume(s->room);
    p->weight[i] = p->weight[i - taps] + s->ws[2];
  }
  share_out(t, s->batch * s->groups * p->k * volume(s->result) / 16,
            planes_part, p);
  return p->failed;
}

/// Whether the groups of a convolution have one row of one chunk each, and
/// there are enough planes for all threads.
static int is_depthwise(const struct convolution *s, const struct threads *t) {
  return s->rows == 1 && s->depth * volume(s->taps) <= CHUNK &&
         s->batch * s->groups >= t->count;
}

EXPORT int fast_convolution(const struct convolution *s,
                            const struct threads *t) {
  struct planes p = {
      .s = s, .k = s->depth * volume(s->taps), .run = convolve_plane};
  if (s->groups == 1 && s->batch * volume(s->result) <= FEW && is_plain(s))
    return convolve_few(s, t);
  if (!is_depthwise(s, t) || s->step[2] > 2)
    return convolve_tiles(s, t);
  return run_planes(&p, t);
}

EXPORT int fast_weight_gradient(const struct convolution *s,
                                const struct threads *t) {
  int64_t lines = s->taps[0] * s->taps[1];
  struct planes p = {.s = s, .k = volume(s->taps), .run = gradient_plane};
  if (!is_depthwise(s, t) || s->depth != 1 || s->groups < t->count ||
      s->taps[2] > TAP_LANES || s->dilation[2] != 1 || lines % 2 == 0 ||
      lines > TAP_LINES)
    return gradient_tiles(s, t);
  const int64_t line[3] = {s->room[1] * s->room[2] * s->step[0],
                           s->room[2] * s->step[1], s->step[2]};
  int64_t *position = malloc((size_t)volume(s->result) * sizeof *position);
  if (!position)
    return 1;
  list_places(s->result, line, position);
  p.position = position;
  int failed = run_planes(&p, t);
  free(position);
  return failed;
}

#endif
