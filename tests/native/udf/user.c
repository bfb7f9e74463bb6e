//===- user.c - A program that calls expf in every way --------------------===//
// SPDX-License-Identifier: Apache-2.0
//===----------------------------------------------------------------------===//
//
// Element-wise loops, single calls, function pointers, vector operands, and a
// function of its own that the map names too.
//
//===----------------------------------------------------------------------===//

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void user_loop(int64_t n, const float *restrict a, float *restrict out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = expf(a[i]);
}

EXPORT void user_if(int64_t n, const float *restrict a, float *restrict out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = a[i] > 0.0f ? expf(a[i]) : a[i];
}

static float (*volatile pointer)(float) = expf;
static float (*const table[])(float) = {sinf, expf};

EXPORT void user_pointer(int64_t n, const float *a, float *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = i % 2 ? pointer(a[i]) : table[1](a[i]);
}

__attribute__((noinline)) static float apply(float (*f)(float), float x) {
  return f(x);
}
EXPORT void user_argument(int64_t n, const float *a, float *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = apply(expf, a[i]);
}

typedef float float3 __attribute__((ext_vector_type(3)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef float float24 __attribute__((ext_vector_type(24)));

// clang has this one from version 17 on.
#if __has_builtin(__builtin_elementwise_exp)
#define EXP(r, x, lanes) r = __builtin_elementwise_exp(x)
#else
#define EXP(r, x, lanes)                                                       \
  for (int j = 0; j < lanes; ++j)                                              \
  r[j] = expf(x[j])
#endif

#define VECTOR(name, T, lanes)                                                 \
  EXPORT void user_##name(int64_t n, const float *a, float *out) {             \
    for (int64_t i = 0; i + lanes <= n; i += lanes) {                          \
      float in[lanes], y[lanes];                                               \
      memcpy(in, a + i, sizeof in);                                            \
      T x;                                                                     \
      for (int j = 0; j < lanes; ++j)                                          \
        x[j] = in[j];                                                          \
      T r;                                                                     \
      EXP(r, x, lanes);                                                        \
      for (int j = 0; j < lanes; ++j)                                          \
        y[j] = r[j];                                                           \
      memcpy(out + i, y, sizeof y);                                            \
    }                                                                          \
  }
VECTOR(three, float3, 3)
VECTOR(four, float4, 4)
VECTOR(twentyfour, float24, 24)

// A library that brings its own function of a mapped name.
__attribute__((noinline)) float own_expf(float x) { return x; }
EXPORT void user_own(int64_t n, const float *a, float *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = own_expf(a[i]);
}
