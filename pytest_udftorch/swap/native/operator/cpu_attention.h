//===- cpu_attention.h - Attention on the CPU -----------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// softmax(scale * Q K^T + mask) V and its gradient, block by block, without the
// whole matrix of scores. The forward pass keeps each row's largest score and
// sum so far, and rescales what it has when a larger score turns up (Milakov,
// Gimelshein: Online normalizer calculation for softmax, 2018; Dao and others:
// FlashAttention, 2022). The backward pass computes the weights anew from the
// scores and the logarithm of the row's sum. Products are those of the BLAS in
// libtorch; exp and log are the array forms of the session.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CPU_ATTENTION_H
#define UDFTORCH_CPU_ATTENTION_H

#include "cpu_loops.h"
#include <stdlib.h>

typedef void gemm(const char *ta, const char *tb, const int *m, const int *n,
                  const int *k, const float *alpha, const float *a,
                  const int *lda, const float *b, const int *ldb,
                  const float *beta, float *c, const int *ldc);

/// A tensor of float32: batch, head and row strides; the elements of a row lie
/// side by side.
struct rows {
  float *at;
  int64_t batch, head, row;
};

struct attention {
  struct rows q, k, v, out;
  const float *mask; ///< may be null
  int64_t mask_stride[4];
  struct rows lse;              ///< one number for each row of q
  struct rows grad, dq, dk, dv; ///< of the backward pass
  int64_t batches, heads, key_heads, queries, keys, size;
  float scale;
  int32_t causal;
  int64_t query_block, key_block;
  array1 *exp, *log;
  gemm *product;
  const struct threads *threads;
  int64_t next; ///< task
  int32_t failed;
};

enum { LANES = 16 };

static float *row_of(const struct rows *r, int64_t b, int64_t h, int64_t i) {
  return r->at + b * r->batch + h * r->head + i * r->row;
}

/// C (m x n, rows of ldc) = alpha A B + beta C, all by rows; ta and tb say
/// which of A and B is stored by columns.
static void multiply(const struct attention *a, int ta, int tb, int64_t m,
                     int64_t n, int64_t k, float alpha, const float *A,
                     int64_t lda, const float *B, int64_t ldb, float beta,
                     float *C, int64_t ldc) {
  int M = (int)n, N = (int)m, K = (int)k;
  int la = (int)ldb, lb = (int)lda, lc = (int)ldc;
  // By columns, C is its transpose, B^T A^T.
  a->product(tb ? "T" : "N", ta ? "T" : "N", &M, &N, &K, &alpha, B, &la, A, &lb,
             &beta, C, &lc);
}

static float largest(int64_t n, const float *x) {
  float lane[LANES];
  for (int l = 0; l < LANES; ++l)
    lane[l] = -INFINITY;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l)
      lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  for (int l = 0; i < n; ++i, ++l)
    lane[l] = x[i] > lane[l] ? x[i] : lane[l];
  float found = -INFINITY;
  for (int l = 0; l < LANES; ++l)
    found = lane[l] > found ? lane[l] : found;
  return found;
}

static float total(int64_t n, const float *x) {
  float lane[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l)
      lane[l] += x[i + l];
  for (int l = 0; i < n; ++i, ++l)
    lane[l] += x[i];
  float found = 0;
  for (int l = 0; l < LANES; ++l)
    found += lane[l];
  return found;
}

static float dot(int64_t n, const float *x, const float *y) {
  float lane[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; ++l)
      lane[l] += x[i + l] * y[i + l];
  for (int l = 0; i < n; ++i, ++l)
    lane[l] += x[i] * y[i];
  float found = 0;
  for (int l = 0; l < LANES; ++l)
    found += lane[l];
  return found;
}

/// Keys that the rows from q0 on see.
static int64_t keys_seen(const struct attention *a, int64_t q0, int64_t nq) {
  return a->causal && q0 + nq < a->keys ? q0 + nq : a->keys;
}

/// The scores of a block with the mask, as nq rows of nk.
static void scores(const struct attention *a, int64_t b, int64_t h, int64_t q0,
                   int64_t nq, int64_t k0, int64_t nk, float *s) {
  int64_t kh = h / (a->heads / a->key_heads);
  multiply(a, 0, 1, nq, nk, a->size, a->scale, row_of(&a->q, b, h, q0),
           a->q.row, row_of(&a->k, b, kh, k0), a->k.row, 0, s, nk);
  const int64_t *m = a->mask_stride;
  for (int64_t i = 0; i < nq; ++i) {
    float *row = s + i * nk;
    if (a->mask) {
      const float *mask =
          a->mask + b * m[0] + h * m[1] + (q0 + i) * m[2] + k0 * m[3];
      if (m[3] == 1)
        for (int64_t j = 0; j < nk; ++j)
          row[j] += mask[j];
      else
        for (int64_t j = 0; j < nk; ++j)
          row[j] += mask[j * m[3]];
    }
    if (a->causal)
      for (int64_t j = q0 + i + 1 > k0 ? q0 + i + 1 - k0 : 0; j < nk; ++j)
        row[j] = -INFINITY;
  }
}

static void shift(int64_t n, float *x, float by) { EACH x[i] -= by; }

static void forward_block(const struct attention *a, int64_t b, int64_t h,
                          int64_t q0, float *scratch) {
  int64_t rest = a->queries - q0, size = a->size;
  int64_t nq = rest < a->query_block ? rest : a->query_block;
  int64_t end = keys_seen(a, q0, nq);
  int64_t kh = h / (a->heads / a->key_heads);
  float *s = scratch, *most = s + a->query_block * a->key_block;
  float *sum = most + a->query_block, *factor = sum + a->query_block;
  for (int64_t i = 0; i < nq; ++i) {
    most[i] = -INFINITY;
    sum[i] = 0;
  }
  for (int64_t k0 = 0; k0 < end; k0 += a->key_block) {
    int64_t nk = end - k0 < a->key_block ? end - k0 : a->key_block;
    scores(a, b, h, q0, nq, k0, nk, s);
    for (int64_t i = 0; i < nq; ++i) {
      float here = largest(nk, s + i * nk);
      float now = here > most[i] ? here : most[i];
      // A row without any key so far has nothing to rescale.
      factor[i] = now == -INFINITY ? 0 : most[i] - now;
      shift(nk, s + i * nk, now == -INFINITY ? 0 : now);
      most[i] = now;
    }
    a->exp(nq * nk, s, s, 0);
    if (k0)
      a->exp(nq, factor, factor, 0);
    for (int64_t i = 0; i < nq; ++i) {
      sum[i] = (k0 ? sum[i] * factor[i] : 0) + total(nk, s + i * nk);
      float *out = row_of(&a->out, b, h, q0 + i), by = factor[i];
      for (int64_t j = 0; k0 && j < size; ++j)
        out[j] *= by;
    }
    multiply(a, 0, 0, nq, size, nk, 1, s, nk, row_of(&a->v, b, kh, k0),
             a->v.row, k0 ? 1 : 0, row_of(&a->out, b, h, q0), a->out.row);
  }
  for (int64_t i = 0; i < nq; ++i) {
    if (sum[i] == 0) { // no key at all
      most[i] = 0;
      sum[i] = 1;
    }
    float *out = row_of(&a->out, b, h, q0 + i), by = 1 / sum[i];
    for (int64_t j = 0; j < size; ++j)
      out[j] *= by;
  }
  a->log(nq, sum, sum, 0);
  for (int64_t i = 0; i < nq; ++i)
    *row_of(&a->lse, b, h, q0 + i) = most[i] + sum[i];
}

static void backward_block(const struct attention *a, int64_t b, int64_t h,
                           int64_t q0, float *scratch) {
  int64_t rest = a->queries - q0, size = a->size;
  int64_t nq = rest < a->query_block ? rest : a->query_block;
  int64_t end = keys_seen(a, q0, nq);
  int64_t kh = h / (a->heads / a->key_heads);
  float *s = scratch, *ds = s + a->query_block * a->key_block;
  float *delta = ds + a->query_block * a->key_block;
  const float *grad = row_of(&a->grad, b, h, q0);
  for (int64_t i = 0; i < nq; ++i)
    delta[i] = dot(size, grad + i * a->grad.row, row_of(&a->out, b, h, q0 + i));
  for (int64_t k0 = 0; k0 < end; k0 += a->key_block) {
    int64_t nk = end - k0 < a->key_block ? end - k0 : a->key_block;
    scores(a, b, h, q0, nq, k0, nk, s);
    for (int64_t i = 0; i < nq; ++i)
      shift(nk, s + i * nk, *row_of(&a->lse, b, h, q0 + i));
    a->exp(nq * nk, s, s, 0);
    multiply(a, 1, 0, nk, size, nq, 1, s, nk, grad, a->grad.row, 1,
             row_of(&a->dv, b, kh, k0), a->dv.row);
    multiply(a, 0, 1, nq, nk, size, 1, grad, a->grad.row,
             row_of(&a->v, b, kh, k0), a->v.row, 0, ds, nk);
    for (int64_t i = 0; i < nq; ++i) {
      float *row = ds + i * nk;
      const float *weight = s + i * nk, less = delta[i];
      for (int64_t j = 0; j < nk; ++j)
        row[j] = weight[j] * (row[j] - less) * a->scale;
    }
    multiply(a, 0, 0, nq, size, nk, 1, ds, nk, row_of(&a->k, b, kh, k0),
             a->k.row, 1, row_of(&a->dq, b, h, q0), a->dq.row);
    multiply(a, 1, 0, nk, size, nq, 1, ds, nk, row_of(&a->q, b, h, q0),
             a->q.row, 1, row_of(&a->dk, b, kh, k0), a->dk.row);
  }
}

static float *scratch_of(struct attention *a, int64_t blocks) {
  int64_t count = a->query_block * (blocks * a->key_block + 3);
  float *scratch = aligned_alloc(64, (size_t)(count * 4 + 63) / 64 * 64);
  if (!scratch)
    a->failed = 1;
  return scratch;
}

static void forward_part(void *data) {
  struct attention *a = data;
  int64_t blocks = (a->queries + a->query_block - 1) / a->query_block;
  int64_t tasks = a->batches * a->heads * blocks, task;
  float *scratch = scratch_of(a, 1);
  while (scratch &&
         (task = __atomic_fetch_add(&a->next, 1, __ATOMIC_RELAXED)) < tasks) {
    int64_t head = task / blocks, block = blocks - 1 - task % blocks;
    forward_block(a, head / a->heads, head % a->heads, block * a->query_block,
                  scratch);
  }
  free(scratch);
}

/// A task is a head of the keys: its gradients add up over the queries.
static void backward_part(void *data) {
  struct attention *a = data;
  int64_t tasks = a->batches * a->key_heads, group = a->heads / a->key_heads;
  int64_t task;
  float *scratch = scratch_of(a, 2);
  while (scratch &&
         (task = __atomic_fetch_add(&a->next, 1, __ATOMIC_RELAXED)) < tasks)
    for (int64_t h = 0; h < group; ++h)
      for (int64_t q0 = 0; q0 < a->queries; q0 += a->query_block)
        backward_block(a, task / a->key_heads, task % a->key_heads * group + h,
                       q0, scratch);
  free(scratch);
}

static void attention_parts(struct attention *a, void (*part)(void *)) {
  a->next = a->failed = 0;
  if (a->threads->count < 2)
    part(a);
  else
    in_parallel(a->threads, a->threads->count, part, a);
}

static void forward_kernel(void *data) { attention_parts(data, forward_part); }

static void backward_kernel(void *data) {
  attention_parts(data, backward_part);
}

/// Both return 0, or 1 if there was no memory.
EXPORT int attention_forward(struct attention *a) {
  run_kernel(a->threads, forward_kernel, a);
  return a->failed;
}

EXPORT int attention_backward(struct attention *a) {
  run_kernel(a->threads, backward_kernel, a);
  return a->failed;
}

#endif
