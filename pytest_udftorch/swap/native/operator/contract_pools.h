//===- contract_pools.h - Pooling in a fixed order ------------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Pooling of docs/reproduce/contract.md, in three directions; of a window of
// one or two the first ones have the size 1. Windows are visited in the order
// of memory, and so are the elements of a window. Torch's kernels give these
// bits, which tests hold them to.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_POOLS_H
#define UDFTORCH_CONTRACT_POOLS_H

#include "contract.h"

/// Of each direction the sizes of input and result. A window is adaptive, or
/// begins at stride * place - padding and has `kernel` places.
struct pool {
  int64_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
  int64_t adaptive;
  int64_t divisor;  ///< of averages; 0 for the number of elements
  int64_t with_pad; ///< that number includes padding
};

/// The places of a window in one direction.
struct window {
  int64_t first, end, step;
  int64_t padded; ///< how many with the padding
};

static struct window ref_window(const struct pool *p, int d, int64_t place) {
  int64_t in = p->in[d], out = p->out[d];
  if (p->adaptive) {
    int64_t first = place * in / out, end = ((place + 1) * in + out - 1) / out;
    return (struct window){first, end, 1, end - first};
  }
  int64_t step = p->dilation[d];
  int64_t first = place * p->stride[d] - p->padding[d];
  int64_t end = first + (p->kernel[d] - 1) * step + 1,
          room = in + p->padding[d];
  int64_t padded = (end < room ? end : room) - first;
  while (first < 0)
    first += step;
  return (struct window){first, end < in ? end : in, step, padded};
}

/// Visits the windows of one plane in their order.
typedef void visit(const struct pool *p, const struct window *w, int64_t place,
                   const float *from, float *to, int64_t *index);

static void ref_visit(const struct pool *p, int64_t planes, visit *each,
                      const float *from, int64_t from_size, float *to,
                      int64_t to_size, int64_t *index) {
  int64_t n = p->out[0] * p->out[1] * p->out[2];
  for (int64_t plane = 0; plane < planes; ++plane)
    for (int64_t o = 0; o < n; ++o) {
      struct window w[3] = {ref_window(p, 0, o / p->out[2] / p->out[1]),
                            ref_window(p, 1, o / p->out[2] % p->out[1]),
                            ref_window(p, 2, o % p->out[2])};
      each(p, w, o, from + plane * from_size, to + plane * to_size,
           index ? index + plane * n : NULL);
    }
}

#define EACH_PLACE(p, w)                                                       \
  for (int64_t z = w[0].first; z < w[0].end; z += w[0].step)                   \
    for (int64_t y = w[1].first; y < w[1].end; y += w[1].step)                 \
      for (int64_t x = w[2].first, at = (z * p->in[1] + y) * p->in[2] + x;     \
           x < w[2].end; x += w[2].step, at += w[2].step)

/// The largest; of equal ones the first, of NaNs the last.
static void ref_largest(const struct pool *p, const struct window *w,
                        int64_t place, const float *from, float *to,
                        int64_t *index) {
  float largest = -INFINITY;
  index[place] = (w[0].first * p->in[1] + w[1].first) * p->in[2] + w[2].first;
  EACH_PLACE(p, w)
  if (from[at] > largest || from[at] != from[at]) {
    largest = from[at];
    index[place] = at;
  }
  to[place] = largest;
}

/// Divides by the number of elements; an adaptive window by one direction's
/// number after the other's.
static float ref_divided(const struct pool *p, const struct window *w,
                         float sum) {
  int64_t n = 1;
  for (int d = 0; d < 3; ++d) {
    int64_t places = p->with_pad ? w[d].padded : w[d].end - w[d].first;
    n *= places;
    if (p->adaptive)
      sum /= (float)places;
  }
  return p->adaptive ? sum : sum / (float)(p->divisor ? p->divisor : n);
}

/// A chain of additions from +0 on, divided.
static void ref_average(const struct pool *p, const struct window *w,
                        int64_t place, const float *from, float *to,
                        int64_t *index) {
  (void)index;
  float sum = 0.0f;
  EACH_PLACE(p, w) sum += from[at];
  to[place] = ref_divided(p, w, sum);
}

/// Each window adds its share to its elements.
static void ref_shares(const struct pool *p, const struct window *w,
                       int64_t place, const float *from, float *to,
                       int64_t *index) {
  (void)index;
  float share = ref_divided(p, w, from[place]);
  EACH_PLACE(p, w) to[at] += share;
}

EXPORT void ref_max_pool(const struct pool *p, int64_t planes, int64_t in,
                         int64_t out, const float *x, float *y,
                         int64_t *index) {
  ref_visit(p, planes, ref_largest, x, in, y, out, index);
}

EXPORT void ref_avg_pool(const struct pool *p, int64_t planes, int64_t in,
                         int64_t out, const float *x, float *y) {
  ref_visit(p, planes, ref_average, x, in, y, out, NULL);
}

/// To gradients of +0.
EXPORT void ref_avg_pool_backward(const struct pool *p, int64_t planes,
                                  int64_t in, int64_t out, const float *grad,
                                  float *to) {
  ref_visit(p, planes, ref_shares, grad, out, to, in, NULL);
}

/// Results add their gradients, in their order, to the elements that they are.
EXPORT void ref_max_pool_backward(int64_t planes, int64_t in, int64_t out,
                                  const float *grad, const int64_t *index,
                                  float *to) {
  for (int64_t plane = 0; plane < planes; ++plane)
    for (int64_t o = 0; o < out; ++o)
      to[plane * in + index[plane * out + o]] += grad[plane * out + o];
}

#endif
