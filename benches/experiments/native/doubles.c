/* SPDX-License-Identifier: Apache-2.0 */
//===- doubles.c - Call one form of a float64 function over an array ------===//
//
// n is a multiple of the lanes of a vector form. Forms of two arguments begin
// with two.
//
//===----------------------------------------------------------------------===//

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

typedef void (*array_function)(int64_t, const double *, double *, int64_t);
typedef double (*scalar_function)(double);
typedef __m256d (*v4_function)(__m256d);
typedef __m512d (*v8_function)(__m512d);
typedef void (*array_of_two)(int64_t, const double *, const double *, double *,
                             int64_t);
typedef double (*scalar_of_two)(double, double);
typedef __m256d (*v4_of_two)(__m256d, __m256d);
typedef __m512d (*v8_of_two)(__m512d, __m512d);

EXPORT void run_array(void *f, int64_t n, const double *in, double *out) {
  ((array_function)f)(n, in, out, 0);
}

EXPORT void run_scalar(void *f, int64_t n, const double *in, double *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = ((scalar_function)f)(in[i]);
}

__attribute__((target("avx2"))) EXPORT void
run_v4(void *f, int64_t n, const double *in, double *out) {
  for (int64_t i = 0; i < n; i += 4)
    _mm256_storeu_pd(out + i, ((v4_function)f)(_mm256_loadu_pd(in + i)));
}

__attribute__((target("avx512f"))) EXPORT void
run_v8(void *f, int64_t n, const double *in, double *out) {
  for (int64_t i = 0; i < n; i += 8)
    _mm512_storeu_pd(out + i, ((v8_function)f)(_mm512_loadu_pd(in + i)));
}

EXPORT void two_array(void *f, int64_t n, const double *a, const double *b,
                      double *out) {
  ((array_of_two)f)(n, a, b, out, 0);
}

EXPORT void two_scalar(void *f, int64_t n, const double *a, const double *b,
                       double *out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = ((scalar_of_two)f)(a[i], b[i]);
}

__attribute__((target("avx2"))) EXPORT void
two_v4(void *f, int64_t n, const double *a, const double *b, double *out) {
  for (int64_t i = 0; i < n; i += 4)
    _mm256_storeu_pd(out + i, ((v4_of_two)f)(_mm256_loadu_pd(a + i),
                                             _mm256_loadu_pd(b + i)));
}

__attribute__((target("avx512f"))) EXPORT void
two_v8(void *f, int64_t n, const double *a, const double *b, double *out) {
  for (int64_t i = 0; i < n; i += 8)
    _mm512_storeu_pd(out + i, ((v8_of_two)f)(_mm512_loadu_pd(a + i),
                                             _mm512_loadu_pd(b + i)));
}

typedef void (*loop_function)(void *, int64_t, const double *, double *);
typedef void (*loop_of_two)(void *, int64_t, const double *, const double *,
                            double *);

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

// Nanoseconds per element of one of the loops above; b is NULL for functions of
// one argument.
EXPORT double bench(void *loop, void *f, int64_t n, const double *a,
                    const double *b, double *out, int64_t repeats) {
  double start = now_ns();
  for (int64_t r = 0; r < repeats; ++r)
    if (b)
      ((loop_of_two)loop)(f, n, a, b, out);
    else
      ((loop_function)loop)(f, n, a, out);
  return (now_ns() - start) / (double)(n * repeats);
}
