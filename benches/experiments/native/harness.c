/* SPDX-License-Identifier: Apache-2.0 */
//===- harness.c - Time one form of a math function over an array ---------===//
//
// Each function here calls a contender over n elements, repeats times, and
// returns nanoseconds per element. The loop is compiled once for every form, so
// contenders of the same form differ in nothing but the function called.
//
//===----------------------------------------------------------------------===//

#include <immintrin.h>
#include <stdint.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

typedef void (*array_function)(int64_t, const float *, float *, int64_t);
typedef void (*array_function_2)(int64_t, const float *, const float *, float *,
                                 int64_t);
typedef void (*reference_function)(int64_t, const float *, const float *,
                                   float *);
typedef float (*scalar_function)(float);
typedef float (*scalar_function_2)(float, float);
typedef __m256 (*v8_function)(__m256);
typedef __m256 (*v8_function_2)(__m256, __m256);
typedef __m512 (*v16_function)(__m512);
typedef __m512 (*v16_function_2)(__m512, __m512);

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

// second is NULL for functions of one argument.
EXPORT double bench_array(void *f, int64_t n, const float *in,
                          const float *second, float *out, int64_t mode,
                          int64_t repeats) {
  double start = now_ns();
  for (int64_t r = 0; r < repeats; ++r)
    if (second)
      ((array_function_2)f)(n, in, second, out, mode);
    else
      ((array_function)f)(n, in, out, mode);
  return (now_ns() - start) / (double)(n * repeats);
}

// The wrappers of LLVM-libc's scalar functions, which loop by themselves.
EXPORT double bench_reference(void *f, int64_t n, const float *in,
                              const float *second, float *out, int64_t mode,
                              int64_t repeats) {
  (void)mode;
  double start = now_ns();
  for (int64_t r = 0; r < repeats; ++r)
    ((reference_function)f)(n, in, second, out);
  return (now_ns() - start) / (double)(n * repeats);
}

EXPORT double bench_scalar(void *f, int64_t n, const float *in,
                           const float *second, float *out, int64_t mode,
                           int64_t repeats) {
  (void)mode;
  double start = now_ns();
  for (int64_t r = 0; r < repeats; ++r)
    if (second)
      for (int64_t i = 0; i < n; ++i)
        out[i] = ((scalar_function_2)f)(in[i], second[i]);
    else
      for (int64_t i = 0; i < n; ++i)
        out[i] = ((scalar_function)f)(in[i]);
  return (now_ns() - start) / (double)(n * repeats);
}

__attribute__((target("avx2,fma"))) EXPORT double
bench_v8(void *f, int64_t n, const float *in, const float *second, float *out,
         int64_t mode, int64_t repeats) {
  (void)mode;
  double start = now_ns();
  for (int64_t r = 0; r < repeats; ++r)
    if (second)
      for (int64_t i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i,
                         ((v8_function_2)f)(_mm256_loadu_ps(in + i),
                                            _mm256_loadu_ps(second + i)));
    else
      for (int64_t i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, ((v8_function)f)(_mm256_loadu_ps(in + i)));
  return (now_ns() - start) / (double)(n * repeats);
}

__attribute__((target("avx512f"))) EXPORT double
bench_v16(void *f, int64_t n, const float *in, const float *second, float *out,
          int64_t mode, int64_t repeats) {
  (void)mode;
  double start = now_ns();
  for (int64_t r = 0; r < repeats; ++r)
    if (second)
      for (int64_t i = 0; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i,
                         ((v16_function_2)f)(_mm512_loadu_ps(in + i),
                                             _mm512_loadu_ps(second + i)));
    else
      for (int64_t i = 0; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, ((v16_function)f)(_mm512_loadu_ps(in + i)));
  return (now_ns() - start) / (double)(n * repeats);
}
