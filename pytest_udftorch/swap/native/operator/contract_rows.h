//===- contract_rows.h - Norms and softmax in a fixed order ---------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Norms, softmax and their gradients as docs/reproduce/contract.md says. A few
// rows are computed at once, so that they stay in the first-level cache, and
// the sums of one row need not wait for those of another. contract/norms.py and
// contract/sums.py compose the same of single operators, for GPUs; tests
// compare the bits.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_ROWS_H
#define UDFTORCH_CONTRACT_ROWS_H

#include "contract.h"

/// What a function of rows takes; contract/rows.py fills it in. What a function
/// does not use is null.
struct rows {
  int64_t rows, n, channels;
  const float *x, *grad, *weight, *bias;
  float *mean, *rstd; ///< of each row or channel
  float *y, *second;
  array1 *exp, *log; ///< of the session
  double eps;
  int64_t next;
  int64_t failed;
};

// Elements of rows that are computed at once, and rows of a task. Memory for
// them does not lie as far into a page as tensors do, or loads would wait for
// stores that only look like theirs.
enum { TOGETHER = 2048, TASK_ROWS = 64, APART = 256, AHEAD = 256 };

#define EACH_OF(count)                                                         \
  _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0;           \
                                                      i < count; ++i)

/// Asks for numbers of the rows that come next, while these are computed.
static void ask(int64_t n, const float *x) {
  for (int64_t i = 0; i < n; i += LANES)
    __builtin_prefetch(x + i);
}

/// A few rows: y and work have room for them, and sums for a number of each.
typedef void some_rows(const struct rows *s, int64_t first, int64_t count,
                       float *work, float *sums);

static void rows_part(struct rows *s, some_rows *run) {
  int64_t together = s->n < TOGETHER ? TOGETHER / s->n : 1, task;
  together = together < TASK_ROWS ? together : TASK_ROWS;
  float sums[2 * TASK_ROWS];
  float *room = take_room(2 * (together * s->n + APART)), *work = room + APART;
  if (!room) {
    __atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) <
         (s->rows + TASK_ROWS - 1) / TASK_ROWS) {
    int64_t end = (task + 1) * TASK_ROWS;
    end = end < s->rows ? end : s->rows;
    for (int64_t at = task * TASK_ROWS; at < end; at += together)
      run(s, at, end - at < together ? end - at : together, work, sums);
  }
  give_room(room);
}

/// Runs a part in torch's threads; returns as fast_mm does.
static int run_rows(struct rows *s, void (*part)(void *),
                    const struct threads *t) {
  s->next = s->failed = 0;
  share_out(t, s->rows * s->n, part, s);
  return (int)s->failed;
}

#define ROWS_FUNCTION(name)                                                    \
  static void name##_part(void *data) { rows_part(data, name##_rows); }        \
  EXPORT int fast_##name(struct rows *s, const struct threads *t) {            \
    return run_rows(s, name##_part, t);                                        \
  }

//===----------------------------------------------------------------------===//
// Layer norm
//===----------------------------------------------------------------------===//

static void scale_row(int64_t n, const float *x, float mean, float factor,
                      const float *weight, const float *bias, float *y) {
  if (weight && bias)
    EACH_OF(n) y[i] = (x[i] - mean) * factor * weight[i] + bias[i];
  else if (weight)
    EACH_OF(n) y[i] = (x[i] - mean) * factor * weight[i];
  else if (bias)
    EACH_OF(n) y[i] = (x[i] - mean) * factor + bias[i];
  else
    EACH_OF(n) y[i] = (x[i] - mean) * factor;
}

/// Sums of squared differences from the means of rows.
static void sum_squares(int64_t n, int64_t count, const float *x,
                        const float *mean, float *work, float *sums) {
  if (n >= SQUARE) {
    sum_squared(count, n, x, mean, sums);
    return;
  }
  for (int64_t r = 0; r < count; ++r)
    EACH_OF(n) {
      float less = x[r * n + i] - mean[r];
      work[r * n + i] = less * less;
    }
  sum_rows(count, n, work, sums);
}

static void layer_norm_rows(const struct rows *s, int64_t first, int64_t count,
                            float *work, float *sums) {
  int64_t n = s->n;
  const float *x = s->x + first * n;
  float *mean = s->mean + first;
  float *rstd = s->rstd + first, size = (float)n, eps = (float)s->eps;
  sum_rows(count, n, x, sums);
  EACH_OF(count) mean[i] = sums[i] / size;
  sum_squares(n, count, x, mean, work, sums);
  EACH_OF(count) rstd[i] = 1.0f / __builtin_sqrtf(sums[i] / size + eps);
  for (int64_t r = 0; r < count; ++r)
    scale_row(n, x + r * n, mean[r], rstd[r], s->weight, s->bias,
              s->y + (first + r) * n);
}

ROWS_FUNCTION(layer_norm)

/// Means of the scaled gradients of rows, and of their products with what is
/// normalized.
static void gradient_means(const struct rows *s, int64_t first, int64_t count,
                           float *work, float *one, float *two) {
  int64_t n = s->n;
  const float *x = s->x + first * n, *g = s->grad + first * n, *w = s->weight;
  const float *mean = s->mean + first, *rstd = s->rstd + first;
  float *scaled = work + count * n + APART, size = (float)n;
  if (n >= SQUARE) {
    struct row_terms t = {x, g, w, mean, rstd};
    if (w)
      for (int64_t r = 0; r < count; ++r)
        sum_times(1, n, w, g + r * n, one + r);
    else
      sum_rows(count, n, g, one);
    sum_normed(count, n, &t, two);
  } else {
    for (int64_t r = 0; r < count; ++r) {
      const float *gr = g + r * n, *xr = x + r * n;
      float *sr = scaled + r * n, *wr = work + r * n;
      if (w)
        EACH_OF(n) sr[i] = gr[i] * w[i];
      else
        EACH_OF(n) sr[i] = gr[i];
      EACH_OF(n) wr[i] = sr[i] * ((xr[i] - mean[r]) * rstd[r]);
    }
    sum_rows(count, n, scaled, one);
    sum_rows(count, n, work, two);
  }
  EACH_OF(count) one[i] = one[i] / size;
  EACH_OF(count) two[i] = two[i] / size;
}

/// The gradient of the input; second is where grad times the normalized input
/// goes, of which the weight's gradient is a sum. Each may be null.
static void layer_norm_backward_rows(const struct rows *s, int64_t first,
                                     int64_t count, float *work, float *sums) {
  int64_t n = s->n;
  const float *x = s->x + first * n, *g = s->grad + first * n, *w = s->weight;
  const float *mean = s->mean + first, *rstd = s->rstd + first;
  float *one = sums, *two = sums + TASK_ROWS;
  if (s->second)
    for (int64_t r = 0; r < count; ++r) {
      float *p = s->second + first * n;
      EACH_OF(n) {
        float hat = (x[r * n + i] - mean[r]) * rstd[r];
        p[r * n + i] = g[r * n + i] * hat;
      }
    }
  if (!s->y)
    return;
  gradient_means(s, first, count, work, one, two);
  for (int64_t r = 0; r < count; ++r) {
    const float *xr = x + r * n, *gr = g + r * n;
    float *yr = s->y + (first + r) * n;
    float m = mean[r], d = rstd[r], a = one[r], b = two[r];
    if (w)
      EACH_OF(n) yr[i] = ((gr[i] * w[i] - a) - (xr[i] - m) * d * b) * d;
    else
      EACH_OF(n) yr[i] = ((gr[i] - a) - (xr[i] - m) * d * b) * d;
  }
}

ROWS_FUNCTION(layer_norm_backward)

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

static float largest_of(int64_t n, const float *x) {
  float lane[LANES], found = -INFINITY;
  int64_t i = 0;
  for (int l = 0; l < LANES; ++l)
    lane[l] = -INFINITY;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l)
      lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  for (int l = 0; i < n; ++i, ++l)
    lane[l] = x[i] > lane[l] ? x[i] : lane[l];
  for (int l = 0; l < LANES; ++l)
    found = lane[l] > found ? lane[l] : found;
  return found;
}

/// Rows less the largest element of each. A row with a NaN has one in its sum,
/// too, so the largest of the other elements will do.
static void less_largest(int64_t n, int64_t count, const float *x, float *y) {
  for (int64_t r = 0; r < count; ++r, x += n, y += n) {
    float largest = largest_of(n, x);
    EACH_OF(n) y[i] = x[i] - largest;
  }
}

/// Quotients by one divisor, correctly rounded. Where no number is so small or
/// large that a remainder would be rounded, they are products with the
/// reciprocal, corrected twice by the remainder: the first correction leaves
/// less than a unit in the last place, and the second rounds correctly if the
/// reciprocal is (Markstein, Computation of elementary functions on the IBM
/// RISC System/6000 processor, 1990, theorem 8.5 of the Handbook of
/// Floating-Point Arithmetic). A division of AVX-512 takes several times as
/// long; those of AVX2 do not.
enum { LEAST = (127 - 60) << 23, MOST = (127 + 60) << 23 }; // bits of 2^-+60
typedef uint32_t bits_of __attribute__((may_alias));
static void divide_by(int64_t n, float divisor, const float *x, float *y) {
#ifdef __AVX512F__
  float reciprocal = 1.0f / divisor;
  if (divisor >= 0x1p-60f && divisor <= 0x1p60f)
    for (int64_t at = 0, here; at < n; at += here) {
      here = n - at < AHEAD ? n - at : AHEAD;
      const float *from = x + at;
      float *to = y + at;
      const bits_of *bits = (const bits_of *)from;
      uint32_t odd = 0;
      for (int64_t i = 0; i < here; ++i)
        odd |= (bits[i] != 0) & (bits[i] - LEAST > (uint32_t)(MOST - LEAST));
      if (odd)
        EACH_OF(here) to[i] = from[i] / divisor;
      else
        EACH_OF(here) {
          float q = from[i] * reciprocal;
          float first = __builtin_fmaf(-q, divisor, from[i]);
          q = __builtin_fmaf(first, reciprocal, q);
          float rest = __builtin_fmaf(-q, divisor, from[i]);
          to[i] = __builtin_fmaf(rest, reciprocal, q);
        }
    }
  else
#endif
    EACH_OF(n) y[i] = x[i] / divisor;
}

static void softmax_rows(const struct rows *s, int64_t first, int64_t count,
                         float *work, float *sums) {
  int64_t n = s->n;
  float *y = s->y + first * n;
  less_largest(n, count, s->x + first * n, work);
  for (int64_t at = 0; at < count * n; at += AHEAD) {
    int64_t here = count * n - at < AHEAD ? count * n - at : AHEAD;
    if (first + 2 * count <= s->rows)
      ask(here, s->x + (first + count) * n + at);
    s->exp(here, work + at, work + at, 0);
  }
  sum_rows(count, n, work, sums);
  for (int64_t r = 0; r < count; ++r)
    divide_by(n, sums[r], work + r * n, y + r * n);
}

ROWS_FUNCTION(softmax)

/// Rows of scores, and what softmax makes weights of them.
struct scores {
  int64_t n;        ///< elements of a row
  int64_t apart;    ///< from row to row
  int64_t place;    ///< of the first row
  int64_t of_heads; ///< rows of a matrix that see the elements up to their own
                    ///< place; 0 if rows see all
  float factor;
  array1 *exp, *log; ///< of the session
};

/// The softmax of rows of scores times a factor; logs is where the logarithms
/// of their sums of exponentials go. A row in which everything is masked has
/// weights of 0. Weights may lie where the scores do.
static void weights_of(const struct scores *s, int64_t count, const float *x,
                       float *y, float *logs, float *work, float *sums) {
  int64_t n = s->n;
  for (int64_t r = 0; r < count; ++r) {
    const float *row = x + r * s->apart;
    float *w = work + r * n, factor = s->factor;
    int64_t seen = s->of_heads ? (s->place + r) % s->of_heads + 1 : n;
    EACH_OF(n) w[i] = i < seen ? row[i] * factor : -INFINITY;
    float largest = largest_of(n, w);
    if (largest == -INFINITY)
      largest = 0.0f;
    EACH_OF(n) w[i] = w[i] - largest;
    logs[r] = largest;
  }
  s->exp(count * n, work, work, 0);
  sum_rows(count, n, work, sums);
  for (int64_t r = 0; r < count; ++r)
    divide_by(n, sums[r] == 0.0f ? 1.0f : sums[r], work + r * n,
              y + r * s->apart);
  s->log(count, sums, sums, 0);
  EACH_OF(count) logs[i] = sums[i] + logs[i];
}

/// The same of rows of which channels are those of a matrix with a causal mask,
/// if it is not 0; eps is the factor, and logarithms go to mean.
static void attention_weights_rows(const struct rows *s, int64_t first,
                                   int64_t count, float *work, float *sums) {
  struct scores of = {s->n,          s->n,   first, s->channels,
                      (float)s->eps, s->exp, s->log};
  weights_of(&of, count, s->x + first * s->n, s->y + first * s->n,
             s->mean + first, work, sums);
}

ROWS_FUNCTION(attention_weights)

static void log_softmax_rows(const struct rows *s, int64_t first, int64_t count,
                             float *work, float *sums) {
  int64_t n = s->n;
  float *y = s->y + first * n;
  less_largest(n, count, s->x + first * n, y);
  s->exp(count * n, y, work, 0);
  sum_rows(count, n, work, sums);
  s->log(count, sums, sums, 0);
  for (int64_t r = 0; r < count; ++r)
    EACH_OF(n) y[r * n + i] = y[r * n + i] - sums[r];
}

ROWS_FUNCTION(log_softmax)

/// The gradient of softmax, whose result is x.
static void softmax_backward_rows(const struct rows *s, int64_t first,
                                  int64_t count, float *work, float *sums) {
  int64_t n = s->n;
  const float *x = s->x + first * n, *g = s->grad + first * n;
  float *y = s->y + first * n;
  if (n >= SQUARE) {
    sum_times(count, n, g, x, sums);
  } else {
    EACH_OF(count * n) work[i] = g[i] * x[i];
    sum_rows(count, n, work, sums);
  }
  for (int64_t r = 0; r < count; ++r)
    EACH_OF(n) y[r * n + i] = (g[r * n + i] - sums[r]) * x[r * n + i];
}

ROWS_FUNCTION(softmax_backward)

/// The gradient of log_softmax, whose result is x.
static void log_softmax_backward_rows(const struct rows *s, int64_t first,
                                      int64_t count, float *work, float *sums) {
  int64_t n = s->n;
  const float *g = s->grad + first * n;
  float *y = s->y + first * n;
  sum_rows(count, n, g, sums);
  s->exp(count * n, s->x + first * n, work, 0);
  for (int64_t r = 0; r < count; ++r)
    EACH_OF(n) y[r * n + i] = g[r * n + i] - work[r * n + i] * sums[r];
}

ROWS_FUNCTION(log_softmax_backward)

//===----------------------------------------------------------------------===//
// Batch norm
//===----------------------------------------------------------------------===//

// A row is a channel of a sample, and rows is their number.

typedef void one_channel(const struct rows *s, int64_t channel, float *sums);

static void channels_part(struct rows *s, one_channel *run) {
  int64_t samples = s->rows / s->channels, task;
  float *sums = take_room(2 * samples);
  if (!sums) {
    __atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) <
         s->channels)
    run(s, task, sums);
  give_room(sums);
}

#define CHANNELS_FUNCTION(name)                                                \
  static void name##_part(void *data) { channels_part(data, name##_channel); } \
  EXPORT int fast_##name(struct rows *s, const struct threads *t) {            \
    return run_rows(s, name##_part, t);                                        \
  }

/// Normalizes a row of a channel.
static void scale_channel(const struct rows *s, int64_t c, const float *x,
                          float mean, float rstd, float *y) {
  int64_t n = s->n;
  if (s->weight && s->bias) {
    float w = s->weight[c], bias = s->bias[c];
    EACH_OF(n) y[i] = (x[i] - mean) * rstd * w + bias;
  } else if (s->weight) {
    float w = s->weight[c];
    EACH_OF(n) y[i] = (x[i] - mean) * rstd * w;
  } else if (s->bias) {
    float bias = s->bias[c];
    EACH_OF(n) y[i] = (x[i] - mean) * rstd + bias;
  } else {
    EACH_OF(n) y[i] = (x[i] - mean) * rstd;
  }
}

/// Normalizes a channel; second is where the sum of squares goes.
static void batch_norm_channel(const struct rows *s, int64_t c, float *sums) {
  int64_t n = s->n, samples = s->rows / s->channels, step = s->channels * n;
  const float *x = s->x + c * n;
  float *y = s->y + c * n, count = (float)(samples * n), eps = (float)s->eps;
  for (int64_t b = 0; b < samples; ++b)
    sums[b] = sum_row(n, x + b * step);
  float mean = sum_row(samples, sums) / count;
  for (int64_t b = 0; b < samples; ++b)
    sum_squared(1, n, x + b * step, &mean, sums + b);
  float squares = sum_row(samples, sums);
  float rstd = 1.0f / __builtin_sqrtf(squares / count + eps);
  for (int64_t b = 0; b < samples; ++b)
    scale_channel(s, c, x + b * step, mean, rstd, y + b * step);
  s->mean[c] = mean;
  s->rstd[c] = rstd;
  s->second[c] = squares;
}

CHANNELS_FUNCTION(batch_norm)

/// Normalizes rows by means and reciprocal deviations that are given.
static void batch_norm_inference_rows(const struct rows *s, int64_t first,
                                      int64_t count, float *work, float *sums) {
  (void)work, (void)sums;
  for (int64_t r = first; r < first + count; ++r) {
    int64_t c = r % s->channels;
    scale_channel(s, c, s->x + r * s->n, s->mean[c], s->rstd[c],
                  s->y + r * s->n);
  }
}

ROWS_FUNCTION(batch_norm_inference)

/// The gradients in training: of the input, and in second those of the weights
/// and then of the biases.
static void batch_norm_backward_channel(const struct rows *s, int64_t c,
                                        float *sums) {
  int64_t n = s->n, samples = s->rows / s->channels, step = s->channels * n;
  const float *x = s->x + c * n, *g = s->grad + c * n;
  float mean = s->mean[c], rstd = s->rstd[c], *products = sums + samples;
  float count = (float)(samples * n);
  for (int64_t b = 0; b < samples; ++b) {
    const float *xb = x + b * step, *gb = g + b * step;
    sums[b] = sum_row(n, gb);
    struct row_terms t = {.x = xb, .g = gb, .mean = &mean, .rstd = &rstd};
    sum_normed(1, n, &t, products + b);
  }
  float sum = sum_row(samples, sums), product = sum_row(samples, products);
  s->second[c] = product;
  s->second[s->channels + c] = sum;
  if (!s->y)
    return;
  float one = sum / count, two = product / count;
  float scale = s->weight ? rstd * s->weight[c] : rstd;
  for (int64_t b = 0; b < samples; ++b) {
    const float *xb = x + b * step, *gb = g + b * step;
    float *yb = s->y + c * n + b * step;
    EACH_OF(n) {
      float hat = (xb[i] - mean) * rstd;
      yb[i] = ((gb[i] - one) - hat * two) * scale;
    }
  }
}

CHANNELS_FUNCTION(batch_norm_backward)

#endif
