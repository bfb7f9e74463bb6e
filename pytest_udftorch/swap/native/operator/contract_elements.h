//===- contract_elements.h - Single elements in a fixed order -------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Operators of docs/reproduce/contract.md that work on single elements, and
// take more than one rounding or whose stock kernel does not round correctly. A
// ref_ function is the contract; torch's kernels give its bits at AVX2 and
// AVX-512, which tests hold them to, but for roots, which fast_roots gives.
//
//===----------------------------------------------------------------------===//

#ifndef UDFTORCH_CONTRACT_ELEMENTS_H
#define UDFTORCH_CONTRACT_ELEMENTS_H

#include "contract.h"

//===----------------------------------------------------------------------===//
// The contract
//===----------------------------------------------------------------------===//

/// add with alpha; sub is one with the sign of alpha changed.
static float ref_added(float x, float y, float alpha) {
  return __builtin_fmaf(y, alpha, x);
}

/// lerp goes from the nearer end.
static float ref_between(float x, float y, float weight) {
  float d = y - x;
  return fabsf(weight) < 0.5f ? __builtin_fmaf(weight, d, x)
                              : __builtin_fmaf(weight - 1.0f, d, y);
}

/// addcmul.
static float ref_with_product(float x, float y, float z, float value) {
  return __builtin_fmaf(value * y, z, x);
}

/// addcdiv.
static float ref_with_quotient(float x, float y, float z, float value) {
  return x + value * y / z;
}

EXPORT void ref_add(int64_t n, const float *x, const float *y, float alpha,
                    float *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = ref_added(x[i], y[i], alpha);
}

EXPORT void ref_lerp(int64_t n, const float *x, const float *y, float weight,
                     float *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = ref_between(x[i], y[i], weight);
}

EXPORT void ref_addcmul(int64_t n, const float *x, const float *y,
                        const float *z, float value, float *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = ref_with_product(x[i], y[i], z[i], value);
}

EXPORT void ref_addcdiv(int64_t n, const float *x, const float *y,
                        const float *z, float value, float *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = ref_with_quotient(x[i], y[i], z[i], value);
}

/// A step of SGD. The first step copies the gradient into the momentum.
EXPORT void ref_sgd(int64_t n, float *p, const float *grad, float *momentum,
                    int first, float rate, float decay, float keep, float take,
                    int nesterov) {
  for (int64_t i = 0; i < n; ++i) {
    float g = decay != 0.0f ? ref_added(grad[i], p[i], decay) : grad[i];
    if (momentum) {
      momentum[i] = first ? g : ref_added(momentum[i] * keep, g, take);
      g = nesterov ? ref_added(g, momentum[i], keep) : momentum[i];
    }
    p[i] = ref_added(p[i], g, -rate);
  }
}

/// A step of Adam, or with decoupled decay of AdamW. Factors are what Python
/// computes in float64, rounded: shrink = 1 - rate * decay, take1 = 1 - beta1,
/// take2 = 1 - beta2, size = rate / (1 - beta1^step), correction = the root of
/// 1 - beta2^step.
EXPORT void ref_adam(int64_t n, float *p, const float *grad, float *m, float *v,
                     int decoupled, float decay, float shrink, float take1,
                     float keep2, float take2, float size, float correction,
                     float eps) {
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i];
    if (decay != 0.0f && decoupled)
      p[i] *= shrink;
    else if (decay != 0.0f)
      g = ref_added(g, p[i], decay);
    m[i] = ref_between(m[i], g, take1);
    v[i] = ref_with_product(v[i] * keep2, g, g, take2);
    float below = __builtin_sqrtf(v[i]) / correction + eps;
    p[i] = ref_with_quotient(p[i], m[i], below, -size);
  }
}

/// A step of Adagrad; the rate has its decay already.
EXPORT void ref_adagrad(int64_t n, float *p, const float *grad, float *total,
                        float decay, float rate, float eps) {
  for (int64_t i = 0; i < n; ++i) {
    float g = decay != 0.0f ? ref_added(grad[i], p[i], decay) : grad[i];
    total[i] = ref_with_product(total[i], g, g, 1.0f);
    float root = __builtin_sqrtf(total[i]) + eps;
    p[i] = ref_with_quotient(p[i], g, root, -rate);
  }
}

//===----------------------------------------------------------------------===//
// Roots
//===----------------------------------------------------------------------===//

struct roots {
  int64_t count;
  const float *x;
  float *y;
  int64_t next;
};

static void roots_part(void *data) {
  struct roots *s = data;
  int64_t tasks = (s->count + GRAIN - 1) / GRAIN, task;
  while ((task = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < tasks) {
    int64_t at = task * GRAIN;
    int64_t n = s->count - at < GRAIN ? s->count - at : GRAIN;
    const float *x = s->x + at;
    float *y = s->y + at;
    EACH y[i] = __builtin_sqrtf(x[i]);
  }
}

/// The CPU's own roots, which IEEE 754 rounds correctly. y may be x.
EXPORT void fast_roots(int64_t n, const float *x, float *y,
                       const struct threads *t) {
  struct roots s = {n, x, y, 0};
  share_out(t, n, roots_part, &s);
}

#endif
