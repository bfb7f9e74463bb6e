//===- cpu_recurrent.h - Layers of LSTM cells on the CPU ------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// The steps of a layer: a matrix product of the BLAS in libtorch, then one loop
// for all that the cells do (Hochreiter, Schmidhuber: Long short-term memory,
// 1997, with the forget gate of Gers, Schmidhuber, Cummins, 2000). exp and tanh
// are the array forms of the session. The gradient needs neither: the forward
// pass keeps the gates, the cells and their tanh.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CPU_RECURRENT_H
#define UDFTORCH_CPU_RECURRENT_H

#include "cpu_attention.h"

/// All tensors are dense float32; the gates are i, f, g and o, in this order.
struct layer {
  int64_t steps, lines, size;
  int32_t reverse;
  const float *again;   ///< weights of h, 4 size x size
  const float *h0, *c0; ///< lines x size
  float *gates;         ///< steps x lines x 4 size; comes in as W x + b
  float *h, *c, *t;     ///< steps x lines x size: results, cells, tanh of these
  // Of the gradient. dh and dc come in as the last step's, leave as the
  // first's.
  const float *dy; ///< steps x lines x size
  float *dh, *dc;
  float *dgates;
  array1 *exp, *tanh;
  gemm *product; ///< null if h's products are in the gates already
  const struct threads *threads;
  int64_t step, before; ///< of the loop
};

/// Elements of one piece: its four arrays stay in the first-level cache.
enum { CELLS = PIECE / 2 };

/// How many of n elements from at on lie in at's line.
static int64_t in_line(const struct layer *l, int64_t at, int64_t n) {
  int64_t rest = l->size - at % l->size;
  return rest < n ? rest : n;
}

static float *gate(const struct layer *l, float *gates, int64_t at, int which) {
  int64_t line = l->step * l->lines + at / l->size;
  return gates + (4 * line + which) * l->size + at % l->size;
}

static void cells_forward(const struct layer *l, int64_t at, int64_t count) {
  const float *c0 = (l->before < 0 ? l->c0 : l->c + l->before) + at;
  int64_t here = l->step * l->lines * l->size + at;
  float *c = l->c + here, *t = l->t + here, *h = l->h + here;
  // i, f and o lie side by side, so that exp is called once.
  float sigmoid[3 * CELLS], candidate[CELLS];
  static const int order[3] = {0, 1, 3};
  for (int64_t k = 0, n; k < count; k += n) {
    n = in_line(l, at + k, count - k);
    for (int which = 0; which < 3; ++which) {
      const float *from = gate(l, l->gates, at + k, order[which]);
      float *to = sigmoid + which * count + k;
      EACH to[i] = -from[i];
    }
    memcpy(candidate + k, gate(l, l->gates, at + k, 2), (size_t)n * 4);
  }
  l->exp(3 * count, sigmoid, sigmoid, 0);
  l->tanh(count, candidate, candidate, 0);
  const float *in = sigmoid, *forget = in + count, *out = forget + count;
  int64_t n = 3 * count;
  EACH sigmoid[i] = 1 / (1 + sigmoid[i]);
  n = count;
  EACH c[i] = forget[i] * c0[i] + in[i] * candidate[i];
  l->tanh(n, c, t, 0);
  EACH h[i] = out[i] * t[i];
  for (int64_t k = 0; k < count; k += n) {
    n = in_line(l, at + k, count - k);
    size_t bytes = (size_t)n * 4;
    for (int which = 0; which < 3; ++which)
      memcpy(gate(l, l->gates, at + k, order[which]),
             sigmoid + which * count + k, bytes);
    memcpy(gate(l, l->gates, at + k, 2), candidate + k, bytes);
  }
}

static void cells_backward(const struct layer *l, int64_t at, int64_t count) {
  const float *c0 = (l->before < 0 ? l->c0 : l->c + l->before) + at;
  int64_t here = l->step * l->lines * l->size + at;
  const float *t = l->t + here, *dy = l->dy + here;
  float *dh = l->dh + at, *dc = l->dc + at;
  for (int64_t k = 0, n; k < count;
       k += n, c0 += n, t += n, dy += n, dh += n, dc += n) {
    n = in_line(l, at + k, count - k);
    const float *in = gate(l, l->gates, at + k, 0), *forget = in + l->size;
    const float *candidate = forget + l->size, *out = candidate + l->size;
    float *di = gate(l, l->dgates, at + k, 0), *df = di + l->size;
    float *dg = df + l->size, *dout = dg + l->size;
    EACH {
      float d = dh[i] + dy[i], s = out[i];
      float cell = dc[i] + d * s * (1 - t[i] * t[i]);
      di[i] = cell * candidate[i] * in[i] * (1 - in[i]);
      df[i] = cell * c0[i] * forget[i] * (1 - forget[i]);
      dg[i] = cell * in[i] * (1 - candidate[i] * candidate[i]);
      dout[i] = d * t[i] * s * (1 - s);
      dc[i] = cell * forget[i];
    }
  }
}

/// Cells of a thread; fewer are not worth one.
enum { CELL_GRAIN = 4 * PIECE };

struct cells {
  const struct layer *layer;
  void (*run)(const struct layer *, int64_t, int64_t);
  struct shares shares;
};

static void cells_part(void *data) {
  struct cells *p = data;
  int64_t at, end;
  while (take(&p->shares, &at, &end))
    for (; at < end; at += CELLS)
      p->run(p->layer, at, end - at < CELLS ? end - at : CELLS);
}

static void all_cells(const struct layer *l,
                      void (*run)(const struct layer *, int64_t, int64_t)) {
  struct cells p = {l, run, {0}};
  share_elements(l->threads, &p.shares, l->lines * l->size, CELL_GRAIN,
                 cells_part, &p);
}

/// C (m x n) = A (m x k) B + beta C, by rows; transposed says that B is stored
/// as n x k.
static void step_product(const struct layer *l, int transposed, int64_t m,
                         int64_t n, int64_t k, const float *A, const float *B,
                         float beta, float *C) {
  int M = (int)n, N = (int)m, K = (int)k, ldb = transposed ? K : M;
  float one = 1;
  l->product(transposed ? "T" : "N", "N", &M, &N, &K, &one, B, &ldb, A, &K,
             &beta, C, &M);
}

/// Makes step the s-th of the layer's order.
static void go_to(struct layer *l, int64_t s) {
  l->step = l->reverse ? l->steps - 1 - s : s;
  l->before =
      !s ? -1 : (l->reverse ? l->step + 1 : l->step - 1) * l->lines * l->size;
}

static void layer_forward(void *data) {
  struct layer *l = data;
  for (int64_t s = 0; s < l->steps; ++s) {
    go_to(l, s);
    const float *h = l->before < 0 ? l->h0 : l->h + l->before;
    if (l->product)
      step_product(l, 1, l->lines, 4 * l->size, l->size, h, l->again, 1,
                   gate(l, l->gates, 0, 0));
    all_cells(l, cells_forward);
  }
}

static void layer_backward(void *data) {
  struct layer *l = data;
  for (int64_t s = l->steps; s-- > 0;) {
    go_to(l, s);
    all_cells(l, cells_backward);
    step_product(l, 0, l->lines, l->size, 4 * l->size, gate(l, l->dgates, 0, 0),
                 l->again, 0, l->dh);
  }
}

EXPORT void lstm_forward(struct layer *l) {
  run_kernel(l->threads, layer_forward, l);
}

EXPORT void lstm_backward(struct layer *l) {
  run_kernel(l->threads, layer_backward, l);
}

#endif
