//===- contract_upsampling.h - Upsampling in a fixed order ----------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Upsampling of docs/reproduce/contract.md, one direction at a time: a place of
// a result is a short product over places of the input. The formulas of the
// places and weights are torch's, each operation rounded once to float32.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_UPSAMPLING_H
#define UDFTORCH_CONTRACT_UPSAMPLING_H

#include "contract.h"

//===----------------------------------------------------------------------===//
// The contract
//===----------------------------------------------------------------------===//

enum { NEAREST, NEAREST_EXACT, LINEAR, CUBIC, WIDE_LINEAR, WIDE_CUBIC };

/// One direction of an upsampling.
struct direction {
  int64_t in, out; ///< places
  int64_t kind;
  int64_t corners; ///< the outermost places of both coincide
  double factor;   ///< how many places a place becomes; 0 for out / in
};

/// How many places of the input become one of the result.
static float ref_step(const struct direction *d) {
  if (d->corners)
    return d->out > 1 ? (float)(d->in - 1) / (float)(d->out - 1) : 0.0f;
  return d->factor > 0.0 ? (float)(1.0 / d->factor)
                         : (float)d->in / (float)d->out;
}

/// Where a place of the result lies in the input. Nearest kinds have no
/// corners.
static float ref_position(const struct direction *d, int64_t place) {
  float step = ref_step(d);
  if (d->kind == NEAREST)
    return (float)place * step;
  if (d->kind == NEAREST_EXACT)
    return ((float)place + 0.5f) * step;
  if (d->kind == LINEAR && d->in == d->out)
    return (float)place;
  if (d->corners)
    return (float)place * step;
  float at = ((float)place + 0.5f) * step - 0.5f;
  return d->kind == LINEAR && at < 0.0f ? 0.0f : at;
}

/// The piecewise cubic of Keys (1981) with a = -3/4, of a distance up to 1 and
/// of one from 1 to 2.
static float ref_near(float x) { return (1.25f * x - 2.25f) * x * x + 1.0f; }

static float ref_far(float x) {
  return ((-0.75f * x + 3.75f) * x - 6.0f) * x + 3.0f;
}

/// Antialiased: how far the kernel reaches, which is wider by the step.
static float ref_reach(const struct direction *d) {
  float step = ref_step(d), reach = d->kind == WIDE_LINEAR ? 1.0f : 2.0f;
  return step >= 1.0f ? reach * step : reach;
}

/// How many terms a place has at most.
static int64_t ref_terms(const struct direction *d) {
  if (d->kind >= WIDE_LINEAR)
    return 2 * (int64_t)ceilf(ref_reach(d)) + 1;
  return d->kind == LINEAR ? 2 : d->kind == CUBIC ? 4 : 1;
}

/// The kernel at a distance: linear, or the piecewise cubic of Keys with
/// a = -1/2.
static float ref_kernel(const struct direction *d, float x) {
  x = fabsf(x);
  if (d->kind == WIDE_LINEAR)
    return x < 1.0f ? 1.0f - x : 0.0f;
  if (x < 1.0f)
    return (1.5f * x - 2.5f) * x * x + 1.0f;
  return x < 2.0f ? (((x - 5.0f) * x + 8.0f) * x - 4.0f) * -0.5f : 0.0f;
}

/// The antialiased term of a place, as ref_term; -1 if there is none. Weights
/// are over their sum, of one after the other.
static int64_t ref_wide_term(const struct direction *d, int64_t place,
                             int64_t term, float *weight) {
  float step = ref_step(d), reach = ref_reach(d);
  float narrow = step >= 1.0f ? 1.0f / step : 1.0f, total = 0.0f;
  float centre = step * ((float)place + 0.5f);
  int64_t from = (int64_t)(centre - reach + 0.5f);
  int64_t end = (int64_t)(centre + reach + 0.5f);
  from = from > 0 ? from : 0;
  end = end < d->in ? end : d->in;
  end = end - from < ref_terms(d) ? end : from + ref_terms(d);
  if (term >= end - from)
    return -1;
  for (int64_t at = from; at < end; ++at)
    total += ref_kernel(d, ((float)at - centre + 0.5f) * narrow);
  *weight = ref_kernel(d, ((float)(from + term) - centre + 0.5f) * narrow);
  if (total != 0.0f)
    *weight /= total;
  return from + term;
}

/// The place of the input that is a term of a place of the result, and its
/// weight.
static int64_t ref_term(const struct direction *d, int64_t place, int64_t term,
                        float *weight) {
  if (d->kind >= WIDE_LINEAR)
    return ref_wide_term(d, place, term, weight);
  float at = ref_position(d, place);
  int64_t last = d->in - 1, from = (int64_t)floorf(at);
  from = from < last ? from : last;
  float beyond = at - (float)from;
  beyond = beyond < 1.0f ? beyond : 1.0f;
  float before = 1.0f - beyond;
  *weight = 1.0f;
  if (d->kind == LINEAR) {
    *weight = term ? beyond : before;
    from += term && d->in != d->out;
  } else if (d->kind == CUBIC) {
    *weight = term == 0   ? ref_far(beyond + 1.0f)
              : term == 1 ? ref_near(beyond)
              : term == 2 ? ref_near(before)
                          : ref_far(before + 1.0f);
    from += term - 1;
  }
  return from < 0 ? 0 : from < last ? from : last;
}

/// One place: the first term times its weight; then a fused multiply-add for
/// each term, in their order. Of no term it is +0. For a gradient the terms are
/// those of all places of the result that have the place, place by place.
static float ref_interpolated(const struct direction *d, int gradient,
                              int64_t at, const float *x, int64_t stride) {
  int64_t first = gradient ? 0 : at, end = gradient ? d->out : at + 1;
  float sum = 0.0f, weight;
  int none = 1;
  for (int64_t place = first; place < end; ++place)
    for (int64_t term = 0; term < ref_terms(d); ++term) {
      int64_t from = ref_term(d, place, term, &weight);
      if (from < 0 || (gradient && from != at))
        continue;
      float value = x[(gradient ? place : from) * stride];
      sum = none ? weight * value : __builtin_fmaf(weight, value, sum);
      none = 0;
    }
  return sum;
}

/// One direction, of `outer` times `inner` lines. The result of an upsampling
/// takes the last direction first, that of a gradient the first.
EXPORT void ref_upsample(const struct direction *d, int64_t gradient,
                         int64_t outer, int64_t inner, const float *x,
                         float *y) {
  int64_t in = gradient ? d->out : d->in, out = gradient ? d->in : d->out;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t at = 0; at < out; ++at)
      for (int64_t i = 0; i < inner; ++i)
        y[(o * out + at) * inner + i] = ref_interpolated(
            d, (int)gradient, at, x + o * in * inner + i, inner);
}

//===----------------------------------------------------------------------===//
// Fast
//===----------------------------------------------------------------------===//

/// How many terms a place of the result has at most.
EXPORT int64_t upsampling_width(const struct direction *d) {
  return ref_terms(d);
}

/// Writes the terms of every place of the result; of those that it lacks the
/// place is -1.
EXPORT void upsampling_terms(const struct direction *d, int32_t *from,
                             float *weight) {
  int64_t terms = ref_terms(d);
  for (int64_t e = 0; e < d->out * terms; ++e)
    from[e] = (int32_t)ref_term(d, e / terms, e % terms, weight + e);
}

/// One direction of a plane: place p has the terms from start[p] to
/// start[p + 1]. `terms` is how many each place has, or 0 if they differ.
struct pass {
  int64_t outer, in, out, inner, terms;
  const int64_t *start;
  const int32_t *from;
  const float *weight;
};

enum { DIRECTIONS = 3 };

struct upsampling {
  int64_t planes, passes;
  struct pass pass[DIRECTIONS];
  const float *x;
  float *y;
  int64_t next, failed;
};

#define EACH_PLACE_OF(count)                                                   \
  _Pragma("clang loop vectorize(assume_safety)") for (int64_t i = 0;           \
                                                      i < (count); ++i)

/// Adds one or two terms to places that lie side by side; `none` says that they
/// are the first.
static void add_terms(int64_t n, int64_t terms, int none, const float *weight,
                      const float *a, const float *b, float *y) {
  float v = weight[0], w = terms > 1 ? weight[1] : 0.0f;
  if (none && terms > 1)
    EACH_PLACE_OF(n) y[i] = __builtin_fmaf(w, b[i], v * a[i]);
  else if (none)
    EACH_PLACE_OF(n) y[i] = v * a[i];
  else if (terms > 1)
    EACH_PLACE_OF(n)
  y[i] = __builtin_fmaf(w, b[i], __builtin_fmaf(v, a[i], y[i]));
  else EACH_PLACE_OF(n) y[i] = __builtin_fmaf(v, a[i], y[i]);
}

/// Places whose neighbours in memory have the same terms.
static void upsample_across(const struct pass *p, const float *x, float *y) {
  for (int64_t at = 0; at < p->out; ++at, y += p->inner) {
    int64_t first = p->start[at], end = p->start[at + 1];
    if (first == end)
      memset(y, 0, (size_t)p->inner * sizeof *y);
    for (int64_t e = first; e < end; e += 2)
      add_terms(p->inner, end - e, e == first, p->weight + e,
                x + p->from[e] * p->inner,
                x + p->from[e + 1 < end ? e + 1 : e] * p->inner, y);
  }
}

/// Places along a line, each with as many terms.
static inline __attribute__((always_inline)) void
upsample_evenly(const struct pass *p, int64_t terms, const float *x, float *y) {
  const int32_t *from = p->from;
  const float *weight = p->weight;
  EACH_PLACE_OF(p->out) {
    const int32_t *f = from + i * terms;
    const float *w = weight + i * terms;
    float sum = w[0] * x[f[0]];
    if (terms > 1)
      sum = __builtin_fmaf(w[1], x[f[1]], sum);
    if (terms > 2) {
      sum = __builtin_fmaf(w[2], x[f[2]], sum);
      sum = __builtin_fmaf(w[3], x[f[3]], sum);
    }
    y[i] = sum;
  }
}

static void upsample_along(const struct pass *p, const float *x, float *y) {
  if (p->terms == 1)
    upsample_evenly(p, 1, x, y);
  else if (p->terms == 2)
    upsample_evenly(p, 2, x, y);
  else if (p->terms == 4)
    upsample_evenly(p, 4, x, y);
  else
    for (int64_t at = 0; at < p->out; ++at) {
      int64_t e = p->start[at], end = p->start[at + 1];
      float sum = e < end ? p->weight[e] * x[p->from[e]] : 0.0f;
      for (++e; e < end; ++e)
        sum = __builtin_fmaf(p->weight[e], x[p->from[e]], sum);
      y[at] = sum;
    }
}

static int64_t places_of(const struct pass *p) {
  return p->outer * p->out * p->inner;
}

static void upsampling_part(void *data) {
  struct upsampling *s = data;
  int64_t room = 0, plane;
  for (int64_t i = 0; i < s->passes - 1; ++i)
    room = places_of(&s->pass[i]) > room ? places_of(&s->pass[i]) : room;
  float *rooms = take_room(2 * room);
  if (!rooms) {
    __atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  const struct pass *last = &s->pass[s->passes - 1];
  int64_t in = s->pass[0].outer * s->pass[0].in * s->pass[0].inner;
  while ((plane = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) <
         s->planes) {
    const float *from = s->x + plane * in;
    for (const struct pass *p = s->pass; p <= last; ++p) {
      float *to = p == last ? s->y + plane * places_of(last)
                            : rooms + (p - s->pass) % 2 * room;
      for (int64_t o = 0; o < p->outer; ++o)
        (p->inner > 1 ? upsample_across : upsample_along)(
            p, from + o * p->in * p->inner, to + o * p->out * p->inner);
      from = to;
    }
  }
  give_room(rooms);
}

/// Takes the passes of each plane after each other; returns as fast_mm does.
EXPORT int fast_upsampling(struct upsampling *s, const struct threads *t) {
  int64_t work = 0;
  for (int64_t i = 0; i < s->passes; ++i)
    work += places_of(&s->pass[i]);
  s->next = s->failed = 0;
  share_out(t, s->planes * work, upsampling_part, s);
  return (int)s->failed;
}

#endif
